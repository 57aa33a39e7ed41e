//! `.encfs5` and `.encfs4`: configurations of EncFS 1.0 to 1.3, from before 2008 (FileUtils.cpp, `readV5Config` and `readV4Config`,
//! ConfigReader.cpp, ConfigVar.cpp and Interface.cpp of EncFS 1.9.5).
//!
//! The number of entries, then a name and a value for each. A number has seven bits in each byte, the highest first, and the top bit in
//! all but the last. A text and a value have their length in front.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

/// How a value is stored.
enum Stored {
    Number,
    /// The name of an algorithm, its version, and two numbers that do not matter.
    Algorithm,
    Data,
}

/// The entries, by their names here and in the newer format.
const ENTRIES: [(&str, &str, Stored); 11] = [
    ("subVersion", "version", Stored::Number),
    ("cipher", "cipherAlg", Stored::Algorithm),
    ("naming", "nameAlg", Stored::Algorithm),
    ("keySize", "keySize", Stored::Number),
    ("blockSize", "blockSize", Stored::Number),
    ("keyData", "encodedKeyData", Stored::Data),
    ("uniqueIV", "uniqueIV", Stored::Number),
    ("chainedIV", "chainedNameIV", Stored::Number),
    ("externalIV", "externalIVChaining", Stored::Number),
    ("blockMACBytes", "blockMACBytes", Stored::Number),
    ("blockMACRandBytes", "blockMACRandBytes", Stored::Number),
];

/// What `.encfs4` does not say, because there was nothing else.
const OF_4: [(&str, &str); 3] = [("version", "20040813"), ("nameAlg/name", "nameio/stream"), ("nameAlg/major", "1")];

/// The texts of a `.encfs5`, by the names of the newer format; `None` if it ends too early.
pub(super) fn of_5(bytes: &[u8]) -> Option<Vec<(String, String)>> {
    let (mut input, mut fields) = (Input(bytes), Vec::new());
    for _ in 0..input.number()? {
        let (name, value) = (input.bytes()?, Input(input.bytes()?));
        if let Some((_, name, stored)) = ENTRIES.iter().find(|(known, ..)| known.as_bytes() == name) {
            value.append(name, stored, &mut fields)?;
        }
    }
    Some(fields)
}

/// The same of a `.encfs4`.
pub(super) fn of_4(bytes: &[u8]) -> Option<Vec<(String, String)>> {
    let mut fields = of_5(bytes)?;
    fields.retain(|(name, _)| {
        ["cipherAlg/name", "cipherAlg/major", "keySize", "blockSize", "encodedKeyData"].contains(&&**name)
    });
    fields.extend(OF_4.map(|(name, value)| (name.to_owned(), value.to_owned())));
    Some(fields)
}

struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    /// At most 31 bits.
    fn number(&mut self) -> Option<u32> {
        let mut number = 0u32;
        loop {
            let (byte, rest) = self.0.split_first()?;
            self.0 = rest;
            number = number.checked_mul(1 << 7).filter(|number| *number <= i32::MAX as u32)? | u32::from(byte & 0x7f);
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
    }

    fn bytes(&mut self) -> Option<&'a [u8]> {
        let len = self.number()? as usize;
        let (bytes, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(bytes)
    }

    fn append(mut self, name: &str, stored: &Stored, fields: &mut Vec<(String, String)>) -> Option<()> {
        match stored {
            Stored::Number => fields.push((name.to_owned(), self.number()?.to_string())),
            Stored::Data => fields.push((name.to_owned(), STANDARD.encode(self.bytes()?))),
            Stored::Algorithm => {
                let algorithm = String::from_utf8_lossy(self.bytes()?).into_owned();
                fields.push((format!("{name}/name"), algorithm));
                fields.push((format!("{name}/major"), self.number()?.to_string()));
            }
        }
        Some(())
    }
}
