//! The one way from a path or a store to an open volume: every format, partitions, detached headers, backups, and what is said
//! where it does not lead there.

use std::fs;
use std::sync::Arc;

use crate::support::{filevault2_start, noise, not_created, passphrase, shared};
use claviger_engine::credential::{HeaderChoice, Headerless};
use claviger_engine::formats::{self, loopaes};
use claviger_engine::opening::{OpenVolume, Opening};
use claviger_engine::spec::Cost;
use claviger_engine::store::{Access, MemoryStore, SliceStore};
use claviger_engine::{Advice, Credential, ErrorKind, FORMATS, Format, Result, Spec, Store, Unlock};

/// Size of the volumes, in bytes.
const LEN: usize = 3 << 20;

const PASSPHRASE: &str = "a passphrase that is long enough";

/// Where the partition begins, in bytes.
const START: u64 = 1 << 20;

/// A volume of each format, and what opens it. Nobody creates cryptoloop.
struct Case {
    format: &'static dyn Format,
    bytes: Vec<u8>,
    credentials: Vec<Credential>,
}

impl Case {
    fn of(format: &'static dyn Format) -> Self {
        let credentials = match format.name() {
            "loop-AES" => vec![Credential::Keyfile(loopaes::new_keyfile().expect("random bytes"))],
            _ => vec![passphrase(PASSPHRASE)],
        };
        let bytes = match format.creator() {
            None => not_created(format.name(), PASSPHRASE),
            Some(_) => {
                let store = MemoryStore::new(noise(LEN, 1));
                format.create(&store, &spec(format.name()), &credentials).expect("a volume");
                store.to_vec()
            }
        };
        let case = Self { format, bytes, credentials };
        let volume = case.unlock(Opening::store(case.store())).expect("a new volume opens").volume;
        drop(volume);
        case
    }

    fn store(&self) -> Arc<dyn Store> {
        shared(MemoryStore::new(self.bytes.clone()))
    }

    fn with(&self) -> Unlock<'_> {
        let named = |name| (self.format.name() == name).then_some(1);
        let hash = matches!(self.format.name(), "TrueCrypt" | "VeraCrypt").then_some("SHA-512");
        let headerless = Headerless { key_bits: Some(256), ..Headerless::default() };
        let headerless = if self.format.name() == "plain" { headerless } else { Headerless::default() };
        Unlock { pim: named("VeraCrypt"), hash, headerless, ..Unlock::with(&self.credentials) }
    }

    fn unlock(&self, opening: Opening) -> Result<OpenVolume> {
        opening.format(self.format.name()).find()?.unlock(&self.with())?.bytes()
    }
}

fn cases() -> impl Iterator<Item = Case> {
    FORMATS.iter().filter(|format| format.name() != "cryptoloop").map(|format| Case::of(*format))
}

fn spec(format: &str) -> Spec<'static> {
    let cost = Cost { kdf: Some("pbkdf2"), iterations: Some(1000), ..Cost::default() };
    let plain = Spec { quick: true, ..Spec::default() };
    match format {
        "TrueCrypt" => Spec { hash: Some("SHA-512"), ..plain },
        "VeraCrypt" => Spec { hash: Some("SHA-512"), pim: Some(1), ..plain },
        "LUKS1" => Spec { cost, key_bits: Some(256), ..plain },
        "LUKS2" => Spec { cost, key_bits: Some(256), data_offset: Some(512 << 10), ..plain },
        "plain" => Spec { key_bits: Some(256), ..plain },
        _ => plain,
    }
}

/// The bytes in the one partition of a disk, by a master boot record.
fn in_partition(bytes: &[u8]) -> Vec<u8> {
    let mut disk = vec![0; START as usize];
    disk[510..512].copy_from_slice(&[0x55, 0xaa]);
    disk[446 + 4] = 0x83;
    disk[446 + 8..446 + 12].copy_from_slice(&(START as u32 / 512).to_le_bytes());
    disk[446 + 12..446 + 16].copy_from_slice(&(bytes.len() as u32 / 512).to_le_bytes());
    [&disk, bytes].concat()
}

fn start_of(open: &OpenVolume) -> Vec<u8> {
    let mut start = vec![0; 8192];
    open.volume.read_at(0, &mut start).expect("the data can be read");
    start
}

/// Data written to a volume opened in one way are read in the others: by its path, by its store, and in a partition.
#[test]
fn every_format_opens_by_path_by_store_and_in_a_partition() {
    let folder = tempfile::tempdir().expect("a folder");
    for mut case in cases() {
        let name = case.format.name();
        let path = folder.path().join(name);
        fs::write(&path, &case.bytes).expect("a file");
        let open = case.unlock(Opening::path(&path).access(Access::ReadWrite)).expect("it opens");
        assert_eq!((open.stored, open.facts.format), (LEN as u64, name));
        let start = match case.format.creator() {
            None if !open.volume.writable() => filevault2_start(8192),
            _ => {
                open.volume.write_clobbering(0, &mut noise(8192, 2)).expect("it is written");
                open.volume.flush().expect("it is durable");
                noise(8192, 2)
            }
        };
        drop(open);
        case.bytes = fs::read(&path).expect("it");

        let by_store = case.unlock(Opening::store(case.store())).expect("it opens");
        assert!(start_of(&by_store) == start, "{name}");
        let disk = shared(MemoryStore::new(in_partition(&case.bytes)));
        let in_it = case.unlock(Opening::store(disk).partition(1)).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert!(start_of(&in_it) == start, "{name}");
        assert_eq!(in_it.facts.size, by_store.facts.size, "{name}");

        let reader = case.unlock(Opening::path(&path)).expect("it opens");
        assert!(
            !reader.volume.writable() || reader.volume.write_clobbering(0, &mut [0; 512]).is_err(),
            "{name}: only for reading"
        );
    }
}

/// The format need not be named where it has a mark. Before any trial, a header says what a trial costs and which credentials it needs.
#[test]
fn a_header_is_found_before_anything_is_tried() {
    for case in cases().filter(|case| !case.format.headerless()) {
        let locked = Opening::store(case.store()).find().expect("a header");
        // Without encryption there may be no credential.
        assert!(locked.asks_passphrase(&[]) != (case.format.name() == "dm-integrity") && !locked.headerless());
        let luks = case.format.name().starts_with("LUKS");
        assert_eq!(locked.plan(&case.with()).is_some(), luks, "{}", case.format.name());
    }
    let plain = Opening::store(shared(MemoryStore::new(noise(4096, 1)))).format("plain").find().expect("anything");
    assert!(plain.headerless());
}

#[test]
fn a_detached_header_opens_data_that_may_be_in_a_partition() {
    let folder = tempfile::tempdir().expect("a folder");
    for name in ["LUKS1", "LUKS2"] {
        let format = formats::by_name(name).expect("it is in the table");
        let (header, data) = (MemoryStore::new(vec![0; LEN]), MemoryStore::new(noise(64 << 10, 3)));
        let credentials = [passphrase(PASSPHRASE)];
        let spec = Spec { data: Some(&data), data_offset: None, ..spec(name) };
        format.create(&header, &spec, &credentials).expect("a volume");
        let path = folder.path().join(name);
        fs::write(&path, header.to_vec()).expect("a file");
        let disk = shared(MemoryStore::new(in_partition(&data.to_vec())));
        let opening = Opening::store(Arc::clone(&disk)).partition(1).detached_header(path.as_path());
        let open = opening.find().expect("a header").unlock(&Unlock::with(&credentials)).expect("it opens");
        let open = open.bytes().expect("a volume");
        assert_eq!((open.facts.size, open.stored), (64 << 10, disk.len()), "{name}");
        assert!(open.warnings.is_empty(), "{name}: {:?}", open.warnings);
        open.volume.write_clobbering(0, &mut noise(8192, 2)).expect("it is written");
        let mut stored = vec![0; 8192];
        disk.read_at(START, &mut stored).expect("the partition");
        assert!(stored != noise(8192, 2) && start_of(&open) == noise(8192, 2), "{name}");

        // Without its other part, the error names the format, and what to do.
        let alone = Opening::path(&path).find().and_then(|locked| locked.unlock(&Unlock::with(&credentials)));
        assert_eq!(alone.err().expect("the data are elsewhere").advice.as_deref(), Some(&Advice::NameHeader), "{name}");
        // Whoever looks after it needs no data.
        let found = Opening::path(&path).find_header().expect("a header");
        assert!(found.header.unlock(&Unlock::with(&credentials)).is_ok(), "{name}");
    }
    let random = shared(MemoryStore::new(noise(LEN, 1)));
    let none = with_header(random.clone(), random).format("TrueCrypt").find().err();
    assert!(matches!(none.expect("it has none").kind, ErrorKind::Misuse(what) if what.contains("detached")));
}

/// Opens `data` with the header in another store.
fn with_header(data: Arc<dyn Store>, header: Arc<dyn Store>) -> Opening {
    Opening::store(data).remote_detached_header("header", Arc::new(move |_| Ok(Arc::clone(&header))))
}

/// An old header opens noise where the volume has another key by now: nothing but the header in front can tell.
#[test]
fn a_detached_header_of_another_key_is_warned_of() {
    for (old, new) in [("LUKS1", "LUKS2"), ("LUKS2", "LUKS2"), ("LUKS1", "LUKS1"), ("LUKS2", "LUKS1")] {
        let of = |name: &str| Case::of(formats::by_name(name).expect("it is in the table"));
        let (old, new) = (of(old), of(new));
        let warnings = |header: &Case, data: &Case| {
            let opening = with_header(data.store(), header.store());
            header.unlock(opening).expect("it opens").warnings
        };
        let told = |header, data| warnings(header, data).iter().any(|w| w.what.contains("different volume key"));
        assert!(told(&old, &new));
        assert!(!told(&new, &new), "a copy of the header in front");
    }
}

#[test]
fn a_volume_whose_beginning_is_lost_opens_by_its_backup() {
    let mut case = Case::of(formats::by_name("TrueCrypt").expect("it is in the table"));
    case.bytes[..128 << 10].fill(b'x');
    let error = Opening::store(case.store()).find().err().expect("it begins as none does");
    assert_eq!(
        (matches!(error.kind, ErrorKind::NotThisFormat(_)), error.advice.as_deref()),
        (true, Some(&Advice::NameFormat))
    );
    let with = Unlock { header: HeaderChoice::Backup, ..case.with() };
    let locked = Opening::store(case.store()).by_backup(true).find().expect("a backup");
    let open = locked.unlock(&with).expect("it opens").bytes().expect("a volume");
    assert_eq!(open.facts.header.name(), "backup");
    assert!(Opening::store(case.store()).find_header().is_err());
    assert!(Opening::store(case.store()).by_backup(true).find_header().is_ok());
}

#[test]
fn a_disk_that_does_not_open_names_its_partitions() {
    let case = Case::of(formats::by_name("LUKS2").expect("it is in the table"));
    let disk = shared(MemoryStore::new(in_partition(&case.bytes)));
    let error = Opening::store(Arc::clone(&disk)).find().err().expect("it is a disk");
    assert_eq!(error.advice.as_deref(), Some(&Advice::ChoosePartition(vec![1])));
    let empty = shared(MemoryStore::new(in_partition(&vec![0; LEN])));
    let error = Opening::store(empty).find().err().expect("it is a disk");
    assert_eq!(error.advice.as_deref(), Some(&Advice::ChoosePartition(Vec::new())));
    assert!(Opening::store(disk).partition(2).find().is_err_and(|e| matches!(e.kind, ErrorKind::Misuse(_))));
}

/// Changes of a header are written to the partition alone, and read again from there.
#[test]
fn a_header_is_looked_after_in_its_partition() {
    let case = Case::of(formats::by_name("LUKS1").expect("it is in the table"));
    let disk = shared(MemoryStore::new(in_partition(&case.bytes)));
    let found = Opening::store(Arc::clone(&disk)).partition(1).find_header().expect("a header");
    let slice = SliceStore::new(disk, START, LEN as u64).expect("it fits");
    assert_eq!((found.store.len(), found.format.name(), slice.len()), (LEN as u64, "LUKS1", LEN as u64));
    assert!(found.file.is_none());
    let facts = found.again().expect("a header").unlock(&case.with()).expect("it opens").facts;
    assert_eq!(facts.keyslot, Some(0));
    assert!(found.again().expect("a header").unlock(&Unlock::with(&[passphrase("wrong")])).is_err());
}

/// A file that may not be written is told so, where it was to be.
#[test]
fn what_may_only_be_read_is_said() {
    use std::os::unix::fs::PermissionsExt;
    let file = tempfile::NamedTempFile::new().expect("a file");
    fs::set_permissions(file.path(), fs::Permissions::from_mode(0o444)).expect("its mode");
    match Opening::path(file.path()).access(Access::ReadWrite).stored() {
        Err(error) => assert_eq!(error.advice.as_deref(), Some(&Advice::OpenReadOnly), "{error}"),
        // Root may write anything.
        Ok(store) => assert!(store.writable()),
    }
    let none = Opening::path("/no/such/file").find().err().expect("there is none");
    assert!(none.to_string().starts_with("/no/such/file: "), "{none}");
    assert_eq!(none.advice, None);
}
