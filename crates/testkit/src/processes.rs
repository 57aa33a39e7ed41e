//! A debugger's view of a process: its memory, and the registers of every thread.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::process::{Command, Stdio};

use crate::tools;

/// A name, and bytes that must or must not be found.
pub type Needle = (String, Vec<u8>);

/// The names of the needles, of two bytes or more, that occur in `hay`.
pub fn found<'a>(hay: &[u8], needles: &'a [Needle]) -> Vec<&'a str> {
    // Few positions begin like a needle.
    let start = |bytes: &[u8]| usize::from(u16::from_le_bytes([bytes[0], bytes[1]]));
    let (mut some, mut by_start) = (vec![false; 1 << 16], HashMap::<usize, Vec<usize>>::new());
    for (i, (_, bytes)) in needles.iter().enumerate() {
        some[start(bytes)] = true;
        by_start.entry(start(bytes)).or_default().push(i);
    }
    let mut seen = vec![false; needles.len()];
    for (at, two) in hay.windows(2).enumerate().filter(|(_, two)| some[start(two)]) {
        for &i in &by_start[&start(two)] {
            seen[i] |= hay[at..].starts_with(&needles[i].1);
        }
    }
    needles.iter().zip(seen).filter(|(_, seen)| *seen).map(|((name, _), _)| name.as_str()).collect()
}

/// The readable and writable memory of a process.
#[derive(Default)]
pub struct Memory {
    /// Pages of secrets: excluded from core dumps (`dd`) and wiped on fork (`wf`).
    pub locked: Vec<u8>,
    /// The rest: stacks, heap, variables.
    pub ordinary: Vec<u8>,
    /// Bytes that nobody else can read, not even root: memfd_secret(2).
    pub hidden: usize,
}

impl Memory {
    /// Reads a process's memory, which root may do even if the process is not dumpable.
    ///
    /// # Panics
    /// If it cannot be read.
    pub fn of(pid: u32) -> Self {
        // A thread that ends in the meantime unmaps its stack: then try again.
        (0..100).find_map(|_| Self::read(pid)).expect("memory that stays as it is for a moment")
    }

    fn read(pid: u32) -> Option<Self> {
        let maps = fs::read_to_string(format!("/proc/{pid}/smaps")).expect("procfs");
        let mut file = File::open(format!("/proc/{pid}/mem")).expect("root may");
        let mut all = Self::default();
        // Each mapping ends with its flags (proc_pid_smaps(5)).
        let (mut range, mut hidden) = (None, false);
        for line in maps.lines() {
            let mut words = line.split_whitespace();
            let first = words.next().expect("a word");
            if let Some((from, to)) = first.split_once('-') {
                let number = |hex| u64::from_str_radix(hex, 16).expect("a number");
                hidden = line.contains("/secretmem");
                range = words.next().is_some_and(|rights| rights.starts_with("rw")).then(|| number(from)..number(to));
            }
            let Some(range) = range.take_if(|_| first == "VmFlags:") else { continue };
            let flags: Vec<_> = words.collect();
            let mut bytes = vec![0; (range.end - range.start) as usize];
            file.seek(SeekFrom::Start(range.start)).expect("a place");
            if hidden {
                assert!(file.read(&mut bytes).is_err(), "the kernel shows memory that it says it hides");
                all.hidden += bytes.len();
                continue;
            }
            file.read_exact(&mut bytes).ok()?;
            let locked = flags.contains(&"dd") && flags.contains(&"wf");
            if locked { &mut all.locked } else { &mut all.ordinary }.append(&mut bytes);
        }
        Some(all)
    }

    /// The values in vector registers that locked memory could produce: each 16 bytes of it, and each word four times,
    /// as ciphers load the round keys of several blocks. Leaves out values that do not look random, which may occur
    /// anywhere.
    pub fn locked_as_vectors(&self) -> Vec<Needle> {
        let different = |bytes: &[u8]| (0..bytes.len()).filter(|&i| !bytes[..i].contains(&bytes[i])).count();
        let whole = self.locked.as_chunks::<16>().0.iter().filter(|chunk| different(&chunk[..]) >= 8);
        let words =
            self.locked.as_chunks::<4>().0.iter().filter(|word| different(&word[..]) == 4 && !word.contains(&0));
        let mut all: Vec<[u8; 16]> = whole.copied().chain(words.map(|w| std::array::from_fn(|i| w[i % 4]))).collect();
        all.sort_unstable();
        all.dedup();
        all.into_iter().map(|bytes| (format!("{bytes:02x?} of locked memory"), bytes.to_vec())).collect()
    }
}

/// The registers of all threads of a process.
pub struct Registers {
    /// How many threads there are.
    pub threads: usize,
    /// General and vector registers, thread by thread, as the kernel saves them.
    pub bytes: Vec<u8>,
}

impl Registers {
    /// Reads the registers of a process, which continues afterwards; root may do so. A reported skip without Python,
    /// which needs no `unsafe` here. gdb does not work: it expects vector registers at Intel's positions on every
    /// processor.
    ///
    /// # Panics
    /// If they cannot be read. As a check, a vector register is changed for a moment, and must be read as changed.
    pub fn of(pid: u32) -> Option<Self> {
        let mut command = Command::new(tools::program("python3")?);
        let output = tools::run(command.args(["-c", REGISTERS, &pid.to_string()]).stdin(Stdio::null()));
        let (threads, bytes) = output.stdout.split_at(8);
        let threads = u64::from_le_bytes(threads.try_into().expect("8 bytes")) as usize;
        Some(Self { threads, bytes: bytes.to_vec() })
    }
}

/// Stops each thread, reads NT_PRSTATUS and its vector registers, and resumes it (ptrace(2); Linux,
/// include/uapi/linux/ptrace.h and elf.h). Prints nothing before that: this program may be debugging its own parent.
const REGISTERS: &str = r#"
import ctypes, errno, os, platform, sys

class Span(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("len", ctypes.c_size_t)]

libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
libc.ptrace.restype = ctypes.c_long
SEIZE, INTERRUPT, DETACH, GET, SET, WALL = 0x4206, 0x4207, 17, 0x4204, 0x4205, 0x40000000
GENERAL, VECTORS = 1, 0x202 if platform.machine() == "x86_64" else 2

def ptrace(request, tid, address, data):
    if libc.ptrace(request, tid, address, data) < 0:
        error = ctypes.get_errno()
        if error == errno.ESRCH:
            raise ProcessLookupError
        sys.exit(f"ptrace {request:x} of {tid}: {os.strerror(error)}")

def stop(tid):
    # A thread may end meanwhile: then it has no registers.
    try:
        ptrace(SEIZE, tid, None, None)
        ptrace(INTERRUPT, tid, None, None)
    except ProcessLookupError:
        return False
    return os.WIFSTOPPED(os.waitpid(tid, WALL)[1])

def get(tid, kind):
    room = ctypes.create_string_buffer(1 << 16)
    span = Span(ctypes.addressof(room), len(room))
    ptrace(GET, tid, kind, ctypes.addressof(span))
    return room.raw[:span.len]

def set(tid, kind, registers):
    room = ctypes.create_string_buffer(registers, len(registers))
    ptrace(SET, tid, kind, ctypes.addressof(Span(ctypes.addressof(room), len(room))))

pid = int(sys.argv[1])
stopped = []
while new := {int(name) for name in os.listdir(f"/proc/{pid}/task")} - {*stopped}:
    stopped += [tid for tid in sorted(new) if stop(tid)]
found = [get(tid, kind) for tid in stopped for kind in (GENERAL, VECTORS)]
# Bytes 160 + 16 * 15 of the area are XMM15 (Intel's manual, the layout of FXSAVE); bit 1 of byte 512 says that it is in use.
if VECTORS == 0x202:
    before = get(pid, VECTORS)
    marked = bytearray(before)
    marked[400:416] = b"marked for once!"
    marked[512] |= 2
    set(pid, VECTORS, bytes(marked))
    seen = get(pid, VECTORS)
    set(pid, VECTORS, before)
    if b"marked for once!" not in seen:
        sys.exit("what is put into a register is not found there")
for tid in stopped:
    ptrace(DETACH, tid, None, None)
sys.stdout.buffer.write(len(stopped).to_bytes(8, "little") + b"".join(found))
"#;
