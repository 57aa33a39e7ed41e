//! Formats accept exactly the parameters that they declare: every format is tried with every parameter.

use std::sync::Arc;

use crate::support::{not_created, shared};
use claviger_engine::credential::{FolderOptions, HeaderChoice, Headerless};
use claviger_engine::formats::takes::{self, Parameter, Purpose};
use claviger_engine::private_keys::SoftKey;
use claviger_engine::spec::{Cost, ReservedAt};
use claviger_engine::store::MemoryStore;
use claviger_engine::{Credential, Error, ErrorKind, FORMATS, Format, Secret, Spec, Store, Unlock};

const LEN: usize = 36 << 20;

/// Long enough for VeraCrypt to take the cheapest PIM with it.
const PASSPHRASE: &[u8] = b"long enough for a PIM";

fn passphrase() -> Credential {
    Credential::Passphrase(Secret::copy_from(PASSPHRASE))
}

fn cheap() -> Cost<'static> {
    Cost { kdf: Some("pbkdf2"), iterations: Some(1000), ..Cost::default() }
}

/// Options of a new volume with cheap derivations, where the format allows a choice.
fn base(format: &dyn Format) -> Spec<'static> {
    let takes = |parameter| format.takes().creating.contains(&parameter);
    let cost = if takes(Parameter::Iterations) { cheap() } else { Cost::default() };
    Spec { pim: takes(Parameter::Pim).then_some(1), quick: !takes(Parameter::Integrity), cost, ..Spec::default() }
}

/// `base` and a parameter more, with a value that suits every format that takes it; nothing where no `Spec` can say it.
fn asking<'a>(
    parameter: Parameter,
    base: Spec<'a>,
    format: &dyn Format,
    key: &'a Secret,
    data: &'a dyn Store,
) -> Option<Spec<'a>> {
    let choices = format.creator().map(|creator| creator.choices());
    let takes = |parameter| format.takes().creating.contains(&parameter);
    // Only Argon2 has memory and lanes.
    let argon = |cost| match takes(Parameter::Memory) {
        true => Cost { kdf: Some("argon2id"), iterations: Some(4), memory_kib: Some(64), ..cost },
        false => cost,
    };
    Some(match parameter {
        Parameter::Pim => Spec { pim: Some(2), ..base },
        Parameter::Hash => Spec { hash: choices.and_then(|c| c.hashes.get(1).copied()).or(Some("sha256")), ..base },
        Parameter::Cipher => Spec { cipher: choices.map(|c| c.ciphers[1]).or(Some("aes")), ..base },
        Parameter::KeySize => Spec { key_bits: Some(256), ..base },
        Parameter::SectorSize => Spec { sector_size: Some(512), ..base },
        Parameter::Offset => Spec { data_offset: Some(17 << 20), ..base },
        Parameter::VolumeKey => Spec { volume_key: Some(key), ..base },
        Parameter::HiddenVolume => Spec { hidden_size: Some(1 << 20), ..base },
        Parameter::DetachedHeader => Spec { data: Some(data), ..base },
        Parameter::Uuid => Spec { uuid: Some("01234567-89ab-cdef-0123-456789abcdef"), ..base },
        Parameter::Label => Spec { label: Some("a label"), ..base },
        Parameter::Subsystem => Spec { subsystem: Some("a second"), ..base },
        Parameter::Integrity => Spec { integrity: Some("hmac-sha256"), ..base },
        Parameter::MetadataSize => Spec { metadata_size: Some(32 << 10), ..base },
        Parameter::KeyslotsSize => Spec { keyslots_size: Some(4 << 20), ..base },
        Parameter::Kdf => Spec { cost: Cost { kdf: Some("pbkdf2"), ..base.cost }, ..base },
        Parameter::Time => {
            Spec { cost: Cost { time_ms: Some(1), iterations: None, kdf: base.cost.kdf, ..Cost::default() }, ..base }
        }
        Parameter::Iterations => Spec { cost: Cost { iterations: Some(1001), ..base.cost }, ..base },
        Parameter::Memory => Spec { cost: argon(Cost { memory_kib: Some(64), ..Cost::default() }), ..base },
        Parameter::Lanes => Spec { cost: argon(Cost { lanes: Some(1), ..Cost::default() }), ..base },
        Parameter::DiscoveryVolume => Spec { discovery: true, ..base },
        Parameter::FileSystem => Spec { reserved_at: ReservedAt::Spread, ..base },
        Parameter::FirstSector
        | Parameter::DataSize
        | Parameter::LargeVectors
        | Parameter::Seed
        | Parameter::KeyRounds
        | Parameter::Keyfile
        | Parameter::PrivateKey
        | Parameter::FreshKeyfile
        | Parameter::RecoveryPassword
        | Parameter::RecoveryKey
        | Parameter::Token
        | Parameter::Tpm
        | Parameter::StartupKey
        | Parameter::Keyslot
        | Parameter::BackupHeader
        | Parameter::NamePassphrase
        | Parameter::ClearNames
        | Parameter::WrappedPassphrase
        | Parameter::Passthrough
        | Parameter::EncryptedView
        | Parameter::ReverseView
        | Parameter::MetadataInAttributes => return None,
        other => panic!("say how one asks for {other:?}"),
    })
}

/// The one wording, and formats named that do take it.
fn assert_refused(error: &Error, format: &dyn Format, parameter: Parameter, purpose: Purpose) {
    let expected = format!("{} takes no {}", format.name(), parameter.name());
    assert!(matches!(&error.kind, ErrorKind::Misuse(what) if *what == expected), "{expected}: {error:?}");
    for other in FORMATS.iter().filter(|f| f.takes().to(purpose).contains(&parameter)) {
        let hint = error.hint.as_deref().unwrap_or_default();
        assert!(hint.contains(other.name()), "{expected}: {hint}");
    }
}

#[test]
fn new_volumes_take_what_their_formats_say() {
    let key = Secret::copy_from(&[0x5a; 64]);
    for format in FORMATS {
        let name = format.name();
        for parameter in Parameter::ALL {
            let (store, data) =
                (Arc::new(MemoryStore::new(vec![0; LEN])), Arc::new(MemoryStore::new(vec![0; 4 << 20])));
            let Some(spec) = asking(*parameter, base(*format), *format, &key, &*data) else { continue };
            assert!(spec.parameters().contains(parameter), "{parameter:?}");
            let done = format.create(&*store, &spec, &[passphrase()]);
            match (format.creator(), format.takes().creating.contains(parameter)) {
                (None, taken) => {
                    assert!(!taken, "{name} takes {parameter:?}, but nothing creates it");
                    let unsupported = |e: Error| matches!(e.kind, ErrorKind::Unsupported { .. });
                    assert!(done.is_err_and(unsupported), "{name} {parameter:?}");
                }
                (Some(_), true) => {
                    done.unwrap_or_else(|e| panic!("{name} takes {parameter:?}: {e}"));
                    let credentials = [passphrase()];
                    let with = format.takes().reopening(&spec, &credentials);
                    let (header, data) = (shared(Arc::clone(&store)), shared(Arc::clone(&data)));
                    let opened = match spec.data {
                        Some(_) => format.open_detached(&header, &data),
                        None => format.open(&header),
                    };
                    let opened = opened.and_then(|header| header.unlock(&with));
                    opened.unwrap_or_else(|e| panic!("{name} with {parameter:?} opens again: {e}"));
                    continue;
                }
                (Some(_), false) => {
                    assert_refused(&done.expect_err("it is not taken"), *format, *parameter, Purpose::Creating);
                }
            }
            assert!([&store, &data].iter().all(|s| s.to_vec().iter().all(|b| *b == 0)), "{name} {parameter:?} wrote");
        }
    }
}

#[test]
fn only_formats_that_say_so_make_key_files() {
    for format in FORMATS {
        let taken = format.takes().creating.contains(&Parameter::FreshKeyfile);
        let made = format.creator().is_some_and(|creator| creator.fresh_keyfile().is_ok());
        assert_eq!(made, taken, "{}", format.name());
    }
}

/// The options for opening, with one more parameter; `None` for a parameter of new volumes alone.
fn opening<'a>(parameter: Parameter, base: Unlock<'a>, other: &'a Secret) -> Option<Unlock<'a>> {
    let plain = FolderOptions::default();
    let of_folder = |folder| Unlock { folder, ..Unlock::with(base.credentials) };
    let place = base.headerless;
    let choose = |header| Unlock { header, ..Unlock::with(base.credentials) };
    Some(match parameter {
        Parameter::Pim => Unlock { pim: Some(1), ..base },
        Parameter::Hash => Unlock { hash: Some("sha512"), ..base },
        Parameter::Cipher => Unlock { cipher: Some("aes"), ..base },
        Parameter::KeySize => Unlock { headerless: Headerless { key_bits: Some(256), ..place }, ..base },
        Parameter::SectorSize => Unlock { headerless: Headerless { sector_size: Some(512), ..place }, ..base },
        Parameter::Offset => Unlock { headerless: Headerless { offset: Some(4096), ..place }, ..base },
        Parameter::FirstSector => Unlock { headerless: Headerless { skip: Some(8), ..place }, ..base },
        Parameter::DataSize => Unlock { headerless: Headerless { size: Some(1 << 20), ..place }, ..base },
        Parameter::LargeVectors => Unlock { headerless: Headerless { large_iv: true, ..place }, ..base },
        Parameter::KeyRounds => Unlock { headerless: Headerless { iterations_k: Some(1), ..place }, ..base },
        Parameter::Seed => Unlock { seed: Some(b"a seed"), ..base },
        Parameter::Keyslot => Unlock { keyslot: Some(0), ..base },
        Parameter::BackupHeader => Unlock { pim: base.pim, ..choose(HeaderChoice::Backup) },
        Parameter::HiddenVolume => {
            Unlock { pim: base.pim, ..choose(HeaderChoice::One { hidden: true, backup: false }) }
        }
        Parameter::NamePassphrase => of_folder(FolderOptions { name_passphrase: Some(other), ..plain }),
        Parameter::ClearNames => of_folder(FolderOptions { clear_names: true, ..plain }),
        Parameter::WrappedPassphrase => of_folder(FolderOptions { wrapped_passphrase: Some(other), ..plain }),
        Parameter::Passthrough => of_folder(FolderOptions { passthrough: true, ..plain }),
        Parameter::EncryptedView => of_folder(FolderOptions { encrypted_view: true, ..plain }),
        Parameter::ReverseView => of_folder(FolderOptions { reverse: true, ..plain }),
        Parameter::MetadataInAttributes => of_folder(FolderOptions { metadata_in_attributes: true, ..plain }),
        _ => return None,
    })
}

/// A volume of the format, or what could be one.
fn volume(format: &dyn Format, spec: &Spec<'_>) -> Arc<dyn Store> {
    let text = std::str::from_utf8(PASSPHRASE).expect("ASCII");
    let there = if format.creator().is_none() && !format.headerless() {
        not_created(format.name(), text)
    } else {
        vec![0x5c; LEN]
    };
    let store = shared(MemoryStore::new(there));
    if format.creator().is_some() {
        format.create(&*store, spec, &[passphrase()]).unwrap_or_else(|e| panic!("{}: {e}", format.name()));
    }
    store
}

#[test]
fn volumes_open_with_what_their_formats_say() {
    for format in FORMATS {
        let name = format.name();
        let spec = base(*format);
        let store = volume(*format, &spec);
        let (credentials, other) = ([passphrase()], Secret::copy_from(b"another"));
        let header = format.open(&store).unwrap_or_else(|e| panic!("{name}: {e}"));
        for parameter in Parameter::ALL {
            let base = format.takes().reopening(&spec, &credentials);
            let unlocked = match parameter {
                Parameter::DetachedHeader => {
                    format.open_detached(&store, &store).and_then(|header| header.unlock(&base))
                }
                _ => {
                    let Some(with) = opening(*parameter, base, &other) else { continue };
                    assert!(with.parameters().contains(parameter), "{parameter:?}");
                    header.unlock(&with)
                }
            };
            match (unlocked, format.takes().opens_with(*parameter)) {
                // The parameter's value may be wrong, as where there is no hidden volume. The parameter is still accepted.
                (Ok(_), true) => {}
                (Err(e), true) => assert!(matches!(e.kind, ErrorKind::WrongCredential(_)), "{name} {parameter:?}: {e}"),
                (Ok(_), false) => panic!("{name} opens with {parameter:?}"),
                (Err(e), false) => assert_refused(&e, *format, *parameter, Purpose::Opening),
            }
        }
    }
}

#[test]
fn credentials_of_other_kinds_are_refused_as_such() {
    let private_key = Arc::new(SoftKey::generate(2048).expect("a key"));
    for format in FORMATS {
        let name = format.name();
        let spec = base(*format);
        let store = volume(*format, &spec);
        let header = format.open(&store).unwrap_or_else(|e| panic!("{name}: {e}"));
        let contents = |len| Secret::copy_from(&vec![7; len]);
        for (credential, parameter) in [
            (Credential::Keyfile(contents(4096)), Parameter::Keyfile),
            (Credential::VolumeKey(contents(32)), Parameter::VolumeKey),
            (Credential::PrivateKey(private_key.clone()), Parameter::PrivateKey),
        ] {
            let credentials = [credential];
            let unlocked = header.unlock(&format.takes().reopening(&spec, &credentials));
            let kind_refused =
                unlocked.is_err_and(|e| matches!(e.kind, ErrorKind::CredentialKind { format, .. } if format == name));
            assert_eq!(kind_refused, !format.takes().opens_with(parameter), "{name} {parameter:?}");
        }
    }
}

#[test]
fn nobody_is_told_of_formats_that_do_not_take_it() {
    let luks1 = claviger_engine::formats::by_name("LUKS1").expect("it is in the table");
    let refused = takes::check(luks1.name(), &luks1.takes(), Purpose::Creating, &[Parameter::Pim]).expect_err("no PIM");
    assert_eq!(
        (refused.kind.to_string().as_str(), refused.hint.as_deref()),
        ("LUKS1 takes no PIM", Some("VeraCrypt does."))
    );
    let refused = takes::check(luks1.name(), &luks1.takes(), Purpose::Opening, &[Parameter::LargeVectors]);
    assert_eq!(refused.expect_err("not taken").hint.as_deref(), Some("plain and cryptoloop do."));
}
