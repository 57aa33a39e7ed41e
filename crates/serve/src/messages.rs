//! Messages between processes of this program over a Unix socket: JSON with its length before it, and descriptors.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Maximum length of a message, in bytes. The fixed data of a layout may take some megabytes.
const LONGEST: usize = 64 << 20;

/// Sends a message: its length in four bytes, and JSON.
pub fn send(mut socket: &UnixStream, message: &impl Serialize) -> io::Result<()> {
    let text = serde_json::to_vec(message)?;
    let len = u32::try_from(text.len()).ok().filter(|len| *len as usize <= LONGEST).ok_or_else(|| {
        let what = "a message to another process would be too long";
        io::Error::new(io::ErrorKind::InvalidData, what)
    })?;
    socket.write_all(&[&len.to_le_bytes()[..], &text].concat())
}

/// Receives a message.
pub fn receive<T: DeserializeOwned>(socket: &UnixStream) -> io::Result<T> {
    receive_at_most(socket, LONGEST)
}

/// Receives a message of at most `longest` bytes.
pub fn receive_at_most<T: DeserializeOwned>(socket: impl Read, longest: usize) -> io::Result<T> {
    Ok(serde_json::from_slice(&receive_bytes(socket, longest)?)?)
}

/// Receives at most `longest` bytes, with their length in four bytes before them.
pub fn receive_bytes(mut socket: impl Read, longest: usize) -> io::Result<Vec<u8>> {
    let mut len = [0; 4];
    socket.read_exact(&mut len)?;
    let len = u32::from_le_bytes(len) as usize;
    if len > longest {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut bytes = vec![0; len];
    socket.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// Sends descriptors.
pub fn give<const N: usize>(socket: &UnixStream, descriptors: [BorrowedFd<'_>; N]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut with = SendAncillaryBuffer::new(&mut space);
    with.push(SendAncillaryMessage::ScmRights(&descriptors));
    sendmsg(socket, &[IoSlice::new(&[1])], &mut with, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives the descriptors that the other side gives.
pub fn take<const N: usize>(socket: &UnixStream) -> io::Result<[OwnedFd; N]> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut with = RecvAncillaryBuffer::new(&mut space);
    recvmsg(socket, &mut [IoSliceMut::new(&mut [0])], &mut with, RecvFlags::CMSG_CLOEXEC)?;
    let taken = with.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    let taken: Vec<OwnedFd> = taken.flatten().collect();
    taken.try_into().map_err(|_| io::ErrorKind::InvalidData.into())
}
