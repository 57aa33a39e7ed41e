//! Reading secrets from files and terminals.

use std::io;

use claviger_crypto::Secret;

/// Calls `read` up to the end or to `max` bytes. The data go directly to their final place, not through buffers that are not wiped.
///
/// # Errors
/// Those of `read`, except interruptions.
pub fn read_up_to(max: usize, mut read: impl FnMut(&mut [u8]) -> io::Result<usize>) -> io::Result<Secret> {
    let mut room = Secret::zeroed(max.min(64 << 10));
    let mut len = 0;
    loop {
        if len == room.len() {
            if len == max {
                return Ok(room);
            }
            let mut larger = Secret::zeroed((len * 4).min(max));
            larger[..len].copy_from_slice(&room);
            room = larger;
        }
        match read(&mut room[len..]) {
            Ok(0) => return Ok(Secret::copy_from(&room[..len])),
            Ok(more) => len += more,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
}
