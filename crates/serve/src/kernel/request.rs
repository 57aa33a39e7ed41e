//! Device-mapper requests, and its tables as text (linux/dm-ioctl.h; Documentation/admin-guide/device-mapper).

use std::io::{self, Write};

use claviger_engine::Secret;
use claviger_engine::volume::KernelCipher;

use super::dm_sys::{HEADER, field};

/// The interface version spoken here: kernels accept versions older than their own. The newest feature used is
/// `DM_SECURE_DATA_FLAG` (4.20, Linux 2.6.39), and kernels that do not know it ignore it.
const VERSION: [u32; 3] = [4, 0, 0];

/// Size of `struct dm_target_spec`, in bytes.
const TARGET: usize = 40;

/// The device-mapper's unit, in bytes.
pub const UNIT: u64 = 512;

/// Room for an answer with data after the header, in bytes.
const ANSWER: usize = 16 << 10;

/// A line of a table.
pub struct MappingTarget {
    /// Start and length, in units of 512 bytes.
    pub start: u64,
    pub len: u64,
    /// `crypt` or `linear`.
    pub kind: &'static str,
    /// The target's parameters, which may hold a key.
    pub parameters: Secret,
}

/// A request without data.
pub fn plain(name: &str, uuid: &str, flags: u32) -> Secret {
    with_room(name, uuid, flags, 0)
}

/// A request with a long answer.
pub fn asking(name: &str) -> Secret {
    with_room(name, "", 0, ANSWER)
}

/// A request with a table.
pub fn table(name: &str, flags: u32, targets: &[MappingTarget]) -> Secret {
    let padded = |t: &MappingTarget| (TARGET + t.parameters.len() + 1).next_multiple_of(8);
    let mut request = with_room(name, "", flags, targets.iter().map(padded).sum());
    put(&mut request, field::TARGET_COUNT, &(targets.len() as u32).to_ne_bytes());
    let mut at = HEADER;
    for target in targets {
        let next = padded(target);
        put(&mut request, at, &target.start.to_ne_bytes());
        put(&mut request, at + 8, &target.len.to_ne_bytes());
        // The status at offset 16 is only set in answers.
        put(&mut request, at + 20, &(next as u32).to_ne_bytes());
        put(&mut request, at + 24, target.kind.as_bytes());
        put(&mut request, at + TARGET, &target.parameters);
        at += next;
    }
    request
}

fn with_room(name: &str, uuid: &str, flags: u32, room: usize) -> Secret {
    let mut request = Secret::zeroed(HEADER + room);
    for (i, number) in VERSION.into_iter().enumerate() {
        put(&mut request, field::VERSION + 4 * i, &number.to_ne_bytes());
    }
    put(&mut request, field::DATA_START, &(HEADER as u32).to_ne_bytes());
    put(&mut request, field::FLAGS, &flags.to_ne_bytes());
    put(&mut request, field::NAME, name.as_bytes());
    put(&mut request, field::UUID, uuid.as_bytes());
    request
}

/// Copies bytes into a request.
pub fn put(request: &mut Secret, at: usize, bytes: &[u8]) {
    request[at..][..bytes.len()].copy_from_slice(bytes);
}

/// A 4-byte number in an answer.
pub fn number(answer: &Secret, at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(answer.get(at..)?.first_chunk().copied()?))
}

/// An 8-byte number in an answer.
pub fn long(answer: &Secret, at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(answer.get(at..)?.first_chunk().copied()?))
}

/// NUL-terminated text in an answer.
pub fn text(answer: &Secret, at: usize) -> String {
    let bytes = answer.get(at..).unwrap_or_default();
    let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

/// Where a layer's key is.
pub enum KeyLocation<'a> {
    /// In the keyring, with this description.
    Keyring(&'a str),
    /// In the table, as hexadecimal digits.
    Table,
}

/// The parameters of `crypt` (dm-crypt.rst): cipher, key, number of the first sector, device, offset there in units of
/// 512 bytes, options.
pub fn crypt(layer: &KernelCipher, key: &KeyLocation<'_>, device: &str, at: u64) -> io::Result<Secret> {
    let KernelCipher { specification, key: bytes, sectors, integrity } = layer;
    if let Some((name, _)) = integrity {
        return Err(io::Error::new(io::ErrorKind::Unsupported, format!("the integrity protection {name}")));
    }
    let mut options = Vec::new();
    if sectors.size as u64 != UNIT {
        options.push(format!("sector_size:{}", sectors.size));
    }
    if sectors.large_iv {
        options.push("iv_large_sectors".to_owned());
    }
    let mut text = Secret::zeroed(specification.len() + 2 * bytes.len() + 400);
    let len = text.len();
    let mut rest = &mut text[..];
    write!(rest, "{specification} ")?;
    match key {
        KeyLocation::Keyring(description) => write!(rest, ":{}:logon:{description}", bytes.len())?,
        // A cipher without a key.
        KeyLocation::Table if bytes.is_empty() => write!(rest, "-")?,
        KeyLocation::Table => bytes.iter().try_for_each(|byte| write!(rest, "{byte:02x}"))?,
    }
    write!(rest, " {} {device} {at}", sectors.iv_offset)?;
    if !options.is_empty() {
        write!(rest, " {} {}", options.len(), options.join(" "))?;
    }
    let left = rest.len();
    Ok(Secret::copy_from(&text[..len - left]))
}

/// The parameters of `linear`: device, and offset there in units of 512 bytes.
pub fn linear(device: &str, at: u64) -> Secret {
    Secret::copy_from(format!("{device} {at}").as_bytes())
}

#[cfg(test)]
mod tests {
    use claviger_crypto::dmcrypt::Sectors;

    use super::*;

    fn layer(sectors: Sectors, key: &[u8]) -> KernelCipher {
        KernelCipher { specification: "aes-xts-plain64".into(), key: Secret::copy_from(key), sectors, integrity: None }
    }

    #[test]
    fn parameters_are_as_the_kernel_reads_them() {
        let small = layer(Sectors { size: 512, large_iv: false, iv_offset: 256 }, &[0xab, 1]);
        let text = crypt(&small, &KeyLocation::Table, "7:0", 9).expect("text");
        assert_eq!(&*text, b"aes-xts-plain64 ab01 256 7:0 9");
        let large = layer(Sectors { size: 4096, large_iv: true, iv_offset: 0 }, &[0; 32]);
        let text = crypt(&large, &KeyLocation::Keyring("claviger:x"), "7:0", 0).expect("text");
        assert_eq!(&*text, b"aes-xts-plain64 :32:logon:claviger:x 0 7:0 0 2 sector_size:4096 iv_large_sectors");
        assert_eq!(
            &*crypt(&layer(Sectors::default(), b""), &KeyLocation::Table, "7:0", 0).expect("text"),
            b"aes-xts-plain64 - 0 7:0 0"
        );
    }

    /// The layout of `struct dm_target_spec`, in either byte order.
    #[test]
    fn a_table_is_a_chain_of_aligned_targets() {
        let target =
            |start, text: &[u8]| MappingTarget { start, len: 8, kind: "linear", parameters: Secret::copy_from(text) };
        let request = table("name", 1, &[target(0, b"7:0 0"), target(8, b"7:0 16 and more")]);
        assert_eq!(number(&request, field::TARGET_COUNT), Some(2));
        assert_eq!(text(&request, field::NAME), "name");
        let next = number(&request, HEADER + 20).expect("a number") as usize;
        assert_eq!(next, 48, "40 and 6 are aligned");
        assert_eq!((long(&request, HEADER + next), text(&request, HEADER + next + 24)), (Some(8), "linear".to_owned()));
        assert_eq!(text(&request, HEADER + next + TARGET), "7:0 16 and more");
        assert_eq!(request.len(), HEADER + 48 + 56);
        assert_eq!((number(&request, request.len() - 3), long(&request, usize::MAX - 8)), (None, None));
    }
}
