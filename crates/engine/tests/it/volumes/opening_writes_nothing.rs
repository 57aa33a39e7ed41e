//! Opening, reading and closing a volume leaves every byte of it as it was: in each format, with the right
//! passphrase and with a wrong one, and where the file was cut short.

use std::sync::Arc;

use crate::support::{noise, not_created, passphrase, shared};
use claviger_engine::credential::Headerless;
use claviger_engine::formats::{self, Format, loopaes};
use claviger_engine::spec::Cost;
use claviger_engine::store::MemoryStore;
use claviger_engine::{Credential, FORMATS, Spec, Store, Unlock, Volume};
use claviger_testkit::stores::{FaultStore, Operation};

/// Size of the volumes, in bytes: LUKS takes the larger part of one for its header.
const LEN: usize = 3 << 20;

/// VeraCrypt takes no shorter one with a derivation that costs little.
const LONG: &str = "a passphrase that is long enough";

/// Bytes in front of the data of LUKS2.
const FRONT: u64 = 512 << 10;

/// A volume to be opened.
struct Case {
    format: &'static dyn Format,
    bytes: Vec<u8>,
    credentials: [Credential; 1],
    pim: Option<u32>,
    /// Where it does not open for want of a mark in it.
    opens: bool,
}

impl Case {
    fn new(format: &'static dyn Format, spec: &Spec<'_>, credential: Credential) -> Self {
        let store = MemoryStore::new(noise(LEN, 1));
        let credentials = [credential];
        // Cryptoloop is only for reading.
        let created = format.create(&store, spec, &credentials);
        let opens = created.is_ok();
        assert!(opens || format.name() == "cryptoloop", "{}: {:?}", format.name(), created.err());
        Self { format, bytes: store.to_vec(), credentials, pim: spec.pim, opens }
    }

    /// Everything that reads, with nothing but reading.
    fn look(&self, bytes: &[u8], credentials: &[Credential]) -> bool {
        let name = self.format.name();
        let inner = Arc::new(MemoryStore::new(bytes.to_vec()));
        let store = Arc::new(FaultStore::new(Arc::clone(&inner) as Arc<dyn Store>, None));
        let _ = self.format.identify(&*store).expect("memory can be read");
        let headerless = Headerless { key_bits: self.format.headerless().then_some(256), ..Headerless::default() };
        let truncated = bytes.len() < LEN;
        let with = Unlock { pim: self.pim, headerless, truncated, ..Unlock::with(credentials) };
        let unlocked = self.format.open(&shared(Arc::clone(&store))).and_then(|header| {
            let _ = header.describe();
            header.unlock(&with)
        });
        let opened = unlocked.is_ok();
        if let Ok(unlocked) = unlocked {
            let volume = Volume::new(Arc::clone(&store) as Arc<dyn Store>, unlocked.layout);
            let mut piece = vec![0; 100_000];
            for at in (0..volume.len()).step_by(piece.len()) {
                let len = (volume.len() - at).min(piece.len() as u64) as usize;
                // The part that was cut off cannot be read.
                let _ = volume.read_at(at, &mut piece[..len]);
            }
            volume.flush().expect("there is nothing to do");
        }
        assert_eq!(store.count(Operation::Write), 0, "{name}");
        assert!(inner.to_vec() == bytes, "{name}");
        opened
    }
}

fn cases() -> Vec<Case> {
    let cost = Cost { kdf: Some("pbkdf2"), iterations: Some(1000), ..Cost::default() };
    let plain = Spec { quick: true, ..Spec::default() };
    let luks = Spec { cost, key_bits: Some(256), ..plain };
    let of = |format: &'static dyn Format| match format.name() {
        "TrueCrypt" | "BitLocker" => Case::new(format, &plain, passphrase(LONG)),
        "VeraCrypt" => Case::new(format, &Spec { pim: Some(1), ..plain }, passphrase(LONG)),
        "LUKS2" => Case::new(format, &Spec { data_offset: Some(FRONT), ..luks }, passphrase(LONG)),
        "LUKS1" => Case::new(format, &luks, passphrase(LONG)),
        "loop-AES" => {
            let keys = Credential::Keyfile(loopaes::new_keyfile().expect("random bytes"));
            Case::new(format, &plain, keys)
        }
        name @ ("FileVault2" | "DMG" | "dm-integrity") => {
            Case { format, bytes: not_created(name, LONG), credentials: [passphrase(LONG)], pim: None, opens: true }
        }
        _ => Case::new(format, &Spec { key_bits: Some(256), ..plain }, passphrase(LONG)),
    };
    FORMATS.iter().map(|format| of(*format)).collect()
}

#[test]
fn every_format_is_left_as_it_is() {
    for case in cases() {
        let name = case.format.name();
        assert_eq!(case.look(&case.bytes, &case.credentials), case.opens, "{name}");
        case.look(&case.bytes, &[passphrase("another one")]);
        for len in [case.bytes.len() * 3 / 4, FRONT as usize + 4096, 4096, 512, 0] {
            case.look(&case.bytes[..len], &case.credentials);
        }
    }
}

/// Blocks that are only in the journal, as after a crash, are read from there and stay there.
#[test]
fn a_journal_with_something_in_it_is_left_as_it_is() {
    let format = formats::by_name("LUKS2").expect("it is in the table");
    let cost = Cost { kdf: Some("pbkdf2"), iterations: Some(1000), ..Cost::default() };
    let spec = Spec {
        quick: true,
        cost,
        data_offset: Some(FRONT),
        cipher: Some("aes-xts-plain64"),
        integrity: Some("hmac-sha256"),
        ..Spec::default()
    };
    let mut case = Case::new(format, &spec, passphrase(LONG));
    let store = Arc::new(MemoryStore::new(case.bytes.clone()));
    let header = format.open(&shared(Arc::clone(&store))).expect("a header");
    let unlocked = header.unlock(&Unlock::with(&case.credentials)).expect("it opens");
    let volume = Volume::new(Arc::clone(&store) as Arc<dyn Store>, unlocked.layout);
    volume.write_clobbering(4096, &mut noise(20_000, 2)).expect("it is written");
    volume.flush().expect("it is durable");
    // A crash would leave it as it is now. Closing writes the journal's sectors to their places.
    case.bytes = store.to_vec();
    drop(volume);
    assert!(case.bytes != store.to_vec(), "something was in the journal only");
    assert!(case.look(&case.bytes, &case.credentials));
}
