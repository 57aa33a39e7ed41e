//! Damage to BitLocker volumes, accidental or deliberate.

use super::maker::{Made, State};
use super::metadata::{Datum, HEADERS, Nonces, Seal, set_datums, validation};
use crate::random::Random;

/// All copies of the metadata.
pub const ALL: [usize; 3] = [0, 1, 2];

impl Made {
    /// A copy of the metadata block, without validation.
    pub fn block(&self, copy: usize) -> Vec<u8> {
        let at = self.layout.metadata[copy] as usize;
        let size = usize::from(u16::from_le_bytes([self.image[at + 8], self.image[at + 9]]));
        self.image[at..][..size * if self.image[at + 10] == 1 { 1 } else { 16 }].to_vec()
    }

    /// The datums of a copy of the metadata.
    pub fn datums(&self, copy: usize) -> Vec<Datum> {
        Datum::parse_all(&self.block(copy)[HEADERS..])
    }

    /// Changes copies of the metadata block, and seals them again: their CRC and sealed hash are valid.
    pub fn edit_block(&mut self, copies: &[usize], edit: impl Fn(&mut Vec<u8>)) {
        for &copy in copies {
            let mut block = self.block(copy);
            edit(&mut block);
            self.put_block(copy, &block, &block);
        }
    }

    /// Replaces the datums in copies of the metadata, and seals them again.
    pub fn edit_datums(&mut self, copies: &[usize], edit: impl Fn(&mut Vec<Datum>)) {
        for &copy in copies {
            let (mut block, mut datums) = (self.block(copy), self.datums(copy));
            edit(&mut datums);
            set_datums(&mut block, &datums);
            self.put_block(copy, &block, &block);
        }
    }

    /// Writes a block and then the validation of `hashed`, and fills the area with zeros.
    fn put_block(&mut self, copy: usize, block: &[u8], hashed: &[u8]) {
        let len = self.layout.metadata_len as usize;
        let seal = match self.volume.state {
            _ if block[10] == 1 => Seal::None,
            State::Decrypted => Seal::Clear,
            _ => Seal::Under(self.vmk),
        };
        // Beyond all counters that were used to make the volume.
        let validation = validation(block, hashed, len, seal, &mut Nonces::from(0x1_0000));
        let mut bytes = [block, &validation].concat();
        bytes.resize(len, 0);
        self.image[self.layout.metadata[copy] as usize..][..len].copy_from_slice(&bytes);
    }

    /// Gives a copy of the metadata a wrong CRC.
    pub fn spoil_crc(&mut self, copy: usize) {
        let at = self.layout.metadata[copy] as usize + self.block(copy).len() + 4;
        self.image[at] ^= 1;
    }

    /// Seals the hash of other bytes into a copy of the metadata, under the right key and with a valid CRC.
    pub fn spoil_sealed_hash(&mut self, copy: usize) {
        let block = self.block(copy);
        self.put_block(copy, &block, b"something else");
    }

    /// Cuts off a copy of the metadata after `len` bytes, as if the rest was never written.
    pub fn truncate(&mut self, copy: usize, len: usize) {
        let at = self.layout.metadata[copy] as usize;
        self.image[at + len..at + self.layout.metadata_len as usize].fill(0);
    }

    /// Overwrites the boot sector with noise.
    pub fn wipe_boot_sector(&mut self) {
        self.image[..512].copy_from_slice(&Random::new(0xB007).bytes(512));
    }

    /// Gives copy `copy` of the metadata another label, like a copy from another time. It is otherwise valid.
    pub fn disagree(&mut self, copy: usize) {
        self.edit_datums(&[copy], |datums| {
            let label = datums.iter_mut().find(|datum| datum.role == 7).expect("there is a label");
            *label = Datum::text(7, &format!("OTHER {copy}"));
        });
    }
}

/// This many datums, each the only content of the previous one. Sizes have 16 bits, so 5,461 is the maximum.
///
/// # Panics
/// If there are more.
pub fn nested(depth: u16) -> Datum {
    // A datum of kind 4 has 12 bytes before its content.
    let size = |level: u16| level.checked_mul(12).expect("5,461 at most").to_le_bytes();
    let around = (1..depth).rev().flat_map(|level| {
        let [low, high] = size(level);
        [2, 0x20, 0, 0, low, high, 0, 0, 4, 0, 1, 0]
    });
    assert!(depth <= 5461, "{depth} do not fit");
    Datum::new(0, 4, around.chain([2, 0x20, 0, 0]).collect::<Vec<u8>>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bitlocker::maker::{Kind, Protector, Volume};
    use crate::bitlocker::oracles::Reader;

    /// A volume with a startup key: stretching a password would take each reader a second.
    fn whole() -> Made {
        Volume { protectors: vec![Protector::StartupKey], ..Volume::new(Kind::Windows8) }.make()
    }

    /// Whether each reader that looks for a valid copy opens the volume and reads the right data.
    fn opens(made: &Made, reader: Reader) -> Option<bool> {
        let written = made.write();
        let plain = reader.installed().then(|| reader.read_all(&written.image, made.keys(&written)[0]))?;
        Some(plain.is_ok_and(|plain| plain == made.plaintext))
    }

    #[test]
    fn readers_pass_over_copies_with_wrong_crcs() {
        let whole = whole();
        for reader in [Reader::Dislocker, Reader::Dissect] {
            let mut made = whole.clone();
            for copy in [0, 1] {
                made.spoil_crc(copy);
                assert_ne!(opens(&made, reader), Some(false), "{reader:?} {copy}");
            }
            made.spoil_crc(2);
            assert_ne!(opens(&made, reader), Some(true), "{reader:?}");
        }
    }

    #[test]
    fn the_hash_is_seen_to_be_wrong_and_to_be_right_when_sealed_anew() {
        let whole = whole();
        let mut made = whole.clone();
        made.disagree(1);
        made.edit_block(&ALL, |_| ());
        assert_ne!(opens(&made, Reader::Dissect), Some(false));
        made.spoil_sealed_hash(0);
        assert_ne!(opens(&made, Reader::Dissect), Some(true));
        // A reader that does not check it reads on.
        assert_ne!(opens(&made, Reader::Pybde), Some(false));
        assert_eq!((made.datums(0), made.datums(2)), (whole.datums(0), whole.datums(2)));
        assert_ne!(made.datums(0), made.datums(1));
    }

    #[test]
    fn a_copy_can_be_cut_short_and_the_boot_sector_wiped() {
        let mut made = whole();
        let block = made.block(0);
        made.truncate(0, 200);
        let at = made.layout.metadata[0] as usize;
        assert_eq!(made.image[at..][..200], block[..200]);
        assert!(made.image[at + 200..][..block.len()].iter().all(|&byte| byte == 0));
        assert_ne!(opens(&made, Reader::Dissect), Some(false));
        made.wipe_boot_sector();
        assert_ne!(opens(&made, Reader::Dissect), Some(true));
    }

    #[test]
    fn nesting_is_as_deep_as_asked_for() {
        let mut datum = Datum::parse_all(&nested(5_461).bytes()).remove(0);
        let mut depth = 1;
        while let [inner] = &Datum::parse_all(&datum.data[4..])[..] {
            datum = inner.clone();
            depth += 1;
        }
        assert_eq!((depth, &datum.data[..]), (5_461, &[2, 0x20, 0, 0][..]));
    }
}
