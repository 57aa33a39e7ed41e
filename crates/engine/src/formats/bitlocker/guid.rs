//! GUIDs and times, as Windows writes them.

use std::fmt;

use crate::error::Result;
use crate::hex;
use crate::random;

/// A GUID: the first three parts are little-endian numbers (UEFI specification, appendix A).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Guid(pub [u8; 16]);

impl Guid {
    /// Reads a GUID at an offset that is known to exist.
    pub fn at(bytes: &[u8], at: usize) -> Self {
        Self(bytes[at..at + 16].try_into().expect("16 bytes"))
    }

    /// Returns a random GUID (RFC 9562, version 4).
    ///
    /// # Errors
    /// `Io` if the system has no random bytes.
    pub fn random() -> Result<Self> {
        let mut bytes = [0; 16];
        random::fill(&mut bytes)?;
        bytes[7] = bytes[7] & 0x0f | 0x40;
        bytes[8] = bytes[8] & 0x3f | 0x80;
        Ok(Self(bytes))
    }
}

impl fmt::Display for Guid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::guid(&self.0))
    }
}

/// A Windows file time: in units of 100 ns since 1601.
pub(super) mod filetime {
    use std::time::{SystemTime, UNIX_EPOCH};

    /// Seconds from 1601 to 1970.
    const EPOCH: i64 = 11_644_473_600;
    const PER_SECOND: i64 = 10_000_000;

    /// Converts to seconds since 1970. The driver sets the highest bit of a time that it set itself.
    pub fn seconds(time: u64) -> i64 {
        (time & i64::MAX as u64) as i64 / PER_SECOND - EPOCH
    }

    /// The current time, truncated to milliseconds as Windows programs do.
    pub fn now() -> u64 {
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        (since_1970.as_millis() as u64 + EPOCH as u64 * 1000) * 10_000
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guid_reads_as_windows_shows_it() {
        let bytes = [0x3b, 0xd6, 0x67, 0x49, 0x29, 0x2e, 0xd8, 0x4a, 0x83, 0x99, 0xf6, 0xa3, 0x39, 0xe3, 0xd0, 0x01];
        assert_eq!(Guid(bytes).to_string(), "4967d63b-2e29-4ad8-8399-f6a339e3d001");
        assert_ne!(Guid::random().expect("random"), Guid::random().expect("random"));
    }

    #[test]
    fn times_are_counted_from_1601() {
        assert_eq!(filetime::seconds(116_444_736_000_000_000), 0);
        assert_eq!(filetime::seconds(0x01d5_3236_5d42_8a70), 1_562_223_715);
        let now =
            std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970").as_secs() as i64;
        assert!((filetime::seconds(filetime::now()) - now).abs() < 100);
    }
}
