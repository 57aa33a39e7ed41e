//! A thread's slot in a queue of a FUSE connection over io_uring: the memory that the kernel writes a request to and reads its answer from.
//!
//! Source: the Linux kernel's `include/uapi/linux/fuse.h` and `Documentation/filesystems/fuse/fuse-io-uring.rst`.
#![allow(unsafe_code)]

use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};

use io_uring::{IoUring, cqueue, opcode, squeue, types};
use rustix::io::Errno;

use super::protocol::{IN_HEADER, MAX_DATA, OUT_HEADER};
use crate::aligned::Aligned;

/// `enum fuse_uring_cmd`.
const REGISTER: u32 = 1;
const COMMIT_AND_FETCH: u32 = 2;

/// `struct fuse_uring_req_header`: a request's header or its answer's, 128 bytes for arguments, and
/// `struct fuse_uring_ent_in_out`: 8 bytes of flags, the number to commit under, 4 bytes of payload's length.
const HEADERS: usize = 288;
const ARGUMENTS_AT: usize = 128;
const COMMIT_AT: usize = 264;
const PAYLOAD_LEN_AT: usize = 272;

/// Marks the completions of the wake descriptor and of the slot.
const WOKEN: u64 = 0;
const SLOT: u64 = 1;

/// A slot for one request at a time, from one processor's queue.
pub struct RingSlot {
    queue: u16,
    // Dropped before the memory: without a ring, the kernel no longer uses it.
    ring: ManuallyDrop<IoUring<squeue::Entry128, cqueue::Entry>>,
    connection: OwnedFd,
    memory: ManuallyDrop<Aligned>,
    owner: Owner,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    /// The kernel may read and write the memory at any time.
    Kernel {
        /// Whether the slot was just registered and has had no request yet.
        registering: bool,
    },
    Us,
}

/// An event on a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A request has come.
    Request,
    /// The kernel rejected the slot.
    Refused(Errno),
    /// The kernel has no more requests.
    Ended(Errno),
    /// The descriptor given to [`RingSlot::start`] is readable.
    Woken,
}

/// A request that has come, and room for its answer.
pub struct Delivered<'a> {
    headers: &'a mut [u8],
    /// Room for [`MAX_DATA`], aligned to a page.
    pub payload: &'a mut [u8],
}

impl RingSlot {
    /// Creates a slot in queue number `queue` of `connection`. It is inactive until started.
    ///
    /// # Errors
    /// Fails if this process may not use io_uring or the kernel's is too old.
    pub fn new(connection: OwnedFd, queue: u16) -> io::Result<Self> {
        let ring = IoUring::<squeue::Entry128, cqueue::Entry>::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_r_disabled()
            .build(2)?;
        let memory = ManuallyDrop::new(Aligned::new(Aligned::PAGE + MAX_DATA));
        Ok(Self { queue, ring: ManuallyDrop::new(ring), connection, memory, owner: Owner::Us })
    }

    /// Offers the slot to the kernel. The same thread must make all later calls. `wake` is polled once and must stay open while the
    /// slot exists.
    pub fn start(&mut self, wake: impl AsFd) -> io::Result<()> {
        self.ring.submitter().register_enable_rings()?;
        const POLLIN: u32 = 1;
        let wake = opcode::PollAdd::new(types::Fd(wake.as_fd().as_raw_fd()), POLLIN).build().user_data(WOKEN);
        self.push(wake.into())?;
        self.register()
    }

    /// Submits the answer and waits for an event.
    pub fn next(&mut self) -> io::Result<Event> {
        let completion = loop {
            if let Some(completion) = self.ring.completion().next() {
                break completion;
            }
            match self.ring.submit_and_wait(1) {
                Ok(_) => {}
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        };
        if completion.user_data() == WOKEN {
            return Ok(Event::Woken);
        }
        let before = std::mem::replace(&mut self.owner, Owner::Us);
        Ok(match (completion.result(), before) {
            (0.., _) => Event::Request,
            (error, Owner::Kernel { registering: true }) => Event::Refused(Errno::from_raw_os_error(-error)),
            (error, _) => Event::Ended(Errno::from_raw_os_error(-error)),
        })
    }

    /// The request of [`Event::Request`].
    pub fn delivered(&mut self) -> Delivered<'_> {
        assert!(self.owner == Owner::Us, "the kernel may be writing to it");
        let (headers, payload) = self.memory.split_at_mut(Aligned::PAGE);
        Delivered { headers: &mut headers[..HEADERS], payload: &mut payload[..MAX_DATA] }
    }

    /// Returns the slot with its answer to the kernel, which may put the next request into it. It is submitted by [`RingSlot::next`].
    pub fn commit(&mut self) -> io::Result<()> {
        let delivered = self.delivered();
        let id = delivered.headers[COMMIT_AT..COMMIT_AT + 8].try_into().expect("8 bytes");
        let command = self.command(COMMIT_AND_FETCH, u64::from_ne_bytes(id)).build().user_data(SLOT);
        self.owner = Owner::Kernel { registering: false };
        self.push(command)
    }

    fn register(&mut self) -> io::Result<()> {
        let memory = self.memory.as_mut_ptr();
        let part = |skip: usize, len: usize| iovec { base: memory as u64 + skip as u64, len: len as u64 };
        // The kernel reads this at submission, which is before this function returns.
        let parts = [part(0, Aligned::PAGE), part(Aligned::PAGE, MAX_DATA)];
        let command = self.command(REGISTER, 0).addr(Some(parts.as_ptr() as u64)).build().user_data(SLOT);
        self.owner = Owner::Kernel { registering: true };
        self.push(with_len(command, parts.len() as u32))?;
        self.submit()
    }

    /// The beginning of a command, with its `struct fuse_uring_cmd_req`.
    fn command(&self, what: u32, commit: u64) -> opcode::UringCmd80 {
        let mut request = [0; 80];
        request[8..16].copy_from_slice(&commit.to_ne_bytes());
        request[16..18].copy_from_slice(&self.queue.to_ne_bytes());
        opcode::UringCmd80::new(types::Fd(self.fd()), what).cmd(request)
    }

    fn fd(&self) -> RawFd {
        self.connection.as_raw_fd()
    }

    fn push(&mut self, entry: squeue::Entry128) -> io::Result<()> {
        // SAFETY: the descriptors live as long as the ring. So does the memory that the kernel learns of by a REGISTER: nothing here
        // accesses it while it is the kernel's, and `drop` only frees it when it is not. Everything else that an entry points to is
        // read before `register` returns.
        unsafe { self.ring.submission().push(&entry) }.map_err(|_| io::ErrorKind::QuotaExceeded.into())
    }

    fn submit(&self) -> io::Result<()> {
        loop {
            match self.ring.submit() {
                Ok(_) => return Ok(()),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
    }
}

impl Drop for RingSlot {
    fn drop(&mut self) {
        // SAFETY: after this, neither the ring nor, below, the memory is used.
        unsafe { ManuallyDrop::drop(&mut self.ring) };
        // Leaks memory that the kernel never returned: otherwise the kernel could write to somebody else's memory.
        if self.owner == Owner::Us {
            // SAFETY: as above.
            unsafe { ManuallyDrop::drop(&mut self.memory) };
        }
    }
}

impl Delivered<'_> {
    /// `struct fuse_in_header`.
    pub fn header(&self) -> &[u8] {
        &self.headers[..IN_HEADER]
    }

    /// The arguments, and anything after them.
    pub fn arguments(&self) -> &[u8] {
        &self.headers[ARGUMENTS_AT..2 * ARGUMENTS_AT]
    }

    /// Length of the received payload, in bytes.
    pub fn payload_len(&self) -> usize {
        let len = self.headers[PAYLOAD_LEN_AT..PAYLOAD_LEN_AT + 4].try_into().expect("4 bytes");
        (u32::from_ne_bytes(len) as usize).min(self.payload.len())
    }

    /// Answers with this many bytes of payload.
    pub fn answer(&mut self, header: &[u8; OUT_HEADER], payload_len: usize) {
        self.headers[..OUT_HEADER].copy_from_slice(header);
        self.headers[PAYLOAD_LEN_AT..PAYLOAD_LEN_AT + 4].copy_from_slice(&(payload_len as u32).to_ne_bytes());
    }
}

/// `struct iovec`, as io_uring reads it.
#[repr(C)]
#[allow(non_camel_case_types)]
struct iovec {
    base: u64,
    len: u64,
}

/// Sets `len` of a `struct io_uring_sqe`, which the crate's command leaves at 0.
fn with_len(mut entry: squeue::Entry128, len: u32) -> squeue::Entry128 {
    /// Offset of `len` (`include/uapi/linux/io_uring.h`).
    const LEN_AT: usize = 24;
    const { assert!(size_of::<squeue::Entry128>() == 128) };
    let bytes = std::ptr::from_mut(&mut entry).cast::<u8>();
    // SAFETY: an entry is a `struct io_uring_sqe` of 128 bytes (`repr(C)`). It consists of plain numbers and is aligned
    // to 8 bytes.
    unsafe { bytes.add(LEN_AT).cast::<u32>().write(len) };
    entry
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_length_is_where_the_kernel_looks_for_it() {
        let entry = with_len(opcode::Nop::new().build().into(), 5).user_data(9);
        let plain = std::ptr::from_ref(&entry).cast::<[u32; 32]>();
        // SAFETY: the type has that size and alignment, and no padding.
        let words = unsafe { &*plain };
        assert_eq!((words[6], words[8]), (5, 9));
    }
}
