//! BitLocker volumes that Windows made open here, by each of their protectors, wherever they lie.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use crate::support::*;
use claviger_engine::formats::{self, partition};
use claviger_engine::partitions;
use claviger_engine::store::{MemoryStore, SliceStore};
use claviger_engine::{Credential, ErrorKind, Secret, Store, Unlock, Verdict, Volume};
use claviger_testkit::bitlocker::crypto::sha256;
use claviger_testkit::bitlocker::maker::{self, Kind, PASSWORD};
use claviger_testkit::tools;

/// An image, with what cryptsetup's tests know about it.
struct Image {
    name: String,
    facts: HashMap<String, String>,
}

impl Image {
    /// The images in `images.conf`: a name in brackets, then lines of `KEY=value`.
    fn all(folder: &Path) -> Vec<Self> {
        let text = fs::read_to_string(folder.join("images.conf")).expect("the list of images");
        let mut all: Vec<Self> = Vec::new();
        for line in text.lines() {
            if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
                all.push(Self { name: name.to_owned(), facts: HashMap::new() });
            } else if let (Some((key, value)), Some(image)) = (line.split_once('='), all.last_mut()) {
                image.facts.insert(key.to_owned(), value.to_owned());
            }
        }
        all.retain(|image| folder.join(format!("{}.img", image.name)).exists());
        all
    }

    fn fact(&self, key: &str) -> Option<&str> {
        self.facts.get(key).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// Whether its makers wiped all but the header, and with it what tells which parts are encrypted.
    fn is_wiped(&self) -> bool {
        self.name.contains("eow") || self.name.contains("partially-encrypted")
    }

    /// Credentials that open it, each with the GUID of its protector.
    fn credentials(&self, folder: &Path) -> Vec<(Vec<Credential>, Option<&str>)> {
        let mut all = Vec::new();
        if let Some(password) = self.fact("PW") {
            all.push((vec![passphrase(password)], self.fact("PW_VMK_GUID")));
        }
        for (key, guid) in [("RP", "RP_VMK_GUID"), ("RP2", "RP2_VMK_GUID")] {
            if let Some(recovery) = self.fact(key) {
                all.push((vec![passphrase(recovery)], self.fact(guid)));
                all.push((vec![passphrase(&recovery.replace('-', ""))], self.fact(guid)));
            }
        }
        if let Some(guid) = self.fact("SK_VMK_GUID") {
            let key = fs::read(folder.join(format!("{}.BEK", guid.to_uppercase()))).expect("a startup key");
            all.push((vec![Credential::Keyfile(Secret::copy_from(&key))], Some(guid)));
        }
        if let Some(guid) = self.fact("CLEARKEY_VMK_GUID") {
            all.push((Vec::new(), Some(guid)));
        }
        all
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn volumes_of_windows_open_by_each_protector() {
    let Some(images) = Images::unpacked() else { return };
    let folder = images.path("bitlk");
    let all = Image::all(&folder);
    assert!(!all.is_empty(), "there are images");
    for image in &all {
        let name = &image.name;
        let store = read_only(&folder.join(format!("{name}.img")));
        let (format, header) = formats::open(&store, None).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(format.name(), "BitLocker");
        let described = described(&*header);
        assert_eq!(described["guid"].as_str(), image.fact("GUID"), "{name}");
        for (number, (credentials, guid)) in image.credentials(&folder).iter().enumerate() {
            let unlocked = header.unlock(&Unlock::with(credentials)).unwrap_or_else(|e| panic!("{name}: {e}"));
            if let Some(guid) = guid {
                let by = unlocked.facts.opened_by.as_deref().unwrap_or_default();
                assert!(by.contains(guid), "{name}: {by} instead of {guid}");
            }
            let lost = unlocked.warnings.iter().any(|w| w.what.starts_with("the encryption bitmaps are lost"));
            assert_eq!(lost, image.is_wiped(), "{name}: {:?}", unlocked.warnings);
            let volume = Volume::new(Arc::clone(&store), unlocked.layout);
            let mut sector = [0; 512];
            volume.read_at(0, &mut sector).expect("the first sector");
            assert_eq!(sector[510..], [0x55, 0xaa], "{name}: a boot sector");
            // The same key again gives the same data again.
            if let (0, false, Some(sum)) = (number, image.is_wiped(), image.fact("SHA256SUM")) {
                assert_eq!(hex(&sha256(&all_of(&volume))), sum, "{name}");
            }
        }
        let wrong = [passphrase("not the password")];
        let error = header.unlock(&Unlock::with(&wrong)).map(|unlocked| unlocked.facts.opened_by);
        match error {
            Err(e) => assert!(matches!(e.kind, ErrorKind::WrongCredential(_)), "{name}: {e}"),
            Ok(by) => assert!(image.fact("CLEARKEY_VMK_GUID").is_some(), "{name} is opened by {by:?}"),
        }
    }
}

/// A disk of 16 MiB with this table, and a BitLocker volume of 2 MiB in two of its partitions.
fn disk(label: &str, sectors: &[(&str, u64)], volumes: &[(usize, &[u8])]) -> Option<MemoryStore> {
    let sfdisk = tools::program("sfdisk")?;
    let file = tempfile::Builder::new().suffix(".img").tempfile().expect("a temporary file");
    file.as_file().set_len(16 << 20).expect("a size");
    let lines: String = sectors.iter().map(|(kind, at)| format!("start={at}, size=4096, type={kind}\n")).collect();
    let mut child = Command::new(sfdisk)
        .args(["--quiet", "--no-reread", "--no-tell-kernel"])
        .arg(file.path())
        .stdin(Stdio::piped())
        .spawn()
        .expect("sfdisk starts");
    let script = format!("label: {label}\n{lines}");
    std::io::Write::write_all(&mut child.stdin.take().expect("a pipe"), script.as_bytes()).expect("a script");
    assert!(child.wait().expect("sfdisk ends").success());
    let mut bytes = fs::read(file.path()).expect("the disk");
    for (number, image) in volumes {
        bytes[sectors[*number].1 as usize * 512..][..image.len()].copy_from_slice(image);
    }
    Some(MemoryStore::new(bytes))
}

#[test]
fn volumes_in_partitions_open_beside_others() {
    let windows = maker::Volume::new(Kind::Windows8).make();
    let vista = maker::Volume { seed: 2, ..maker::Volume::new(Kind::Vista) }.make();
    let luks = MemoryStore::new(vec![0; 2 << 20]);
    let password = [passphrase(PASSWORD)];
    create(&luks, &claviger_engine::Spec { quick: true, ..Default::default() }, &password).expect("another volume");
    let luks = luks.to_vec();
    let linux = ["83", "0FC63DAF-8483-4772-8E79-3D69D8477DE4"];
    let data = ["7", "EBD0A0A2-B9E5-4433-87C0-68B6B72699C7"];
    for (label, kind) in [("dos", 0), ("gpt", 1)] {
        let sectors = [(data[kind], 2048), (linux[kind], 8192), (data[kind], 16384)];
        let volumes = [(0, &windows.image[..]), (1, &luks), (2, &vista.image)];
        let Some(disk) = disk(label, &sectors, &volumes) else { return };
        let before = disk.to_vec();
        let disk: Arc<dyn Store> = Arc::new(disk);
        let candidates = partition::candidates(&disk).expect("a table").expect("partitions");
        let bitlocker: Vec<_> =
            candidates.iter().filter(|c| c.formats.contains(&"BitLocker")).map(|c| c.partition.number).collect();
        assert_eq!(bitlocker, [1, 3], "{label}");
        for (number, made) in [(1, &windows), (3, &vista)] {
            let header = partition::open(&disk, number, None, false).expect("it looks like a volume");
            let unlocked = header.unlock(&Unlock::with(&password)).unwrap_or_else(|e| panic!("{label}: {e}"));
            let volume = Volume::new(Arc::clone(&disk), unlocked.layout);
            assert!(all_of(&volume) == made.plaintext, "{label}, partition {number}");
            // Tweaks count from the beginning of the partition, and nothing outside it is written.
            volume.write_clobbering(0x4000, &mut [7; 777]).expect("a write");
        }
        let mut after = vec![0; before.len()];
        disk.read_at(0, &mut after).expect("the disk");
        let changed = (0..before.len() / 512).filter(|n| before[n * 512..][..512] != after[n * 512..][..512]);
        let changed: Vec<_> = changed.map(|sector| sector as u64).collect();
        let expected: Vec<_> = [2048u64, 16384].iter().flat_map(|start| [start + 0x20, start + 0x21]).collect();
        assert_eq!(changed, expected, "{label}");
        for number in [1, 3] {
            let part = partitions::find(&disk, number).expect("it is there");
            let slice: Arc<dyn Store> =
                Arc::new(SliceStore::new(Arc::clone(&disk), part.start, part.len).expect("it fits"));
            let (_, header) = formats::open(&slice, None).expect("a volume");
            let volume =
                Volume::new(Arc::clone(&slice), header.unlock(&Unlock::with(&password)).expect("it opens").layout);
            let mut read = [0; 777];
            volume.read_at(0x4000, &mut read).expect("what was written");
            assert!(read == [7; 777]);
        }
    }
}

#[test]
fn what_is_no_bitlocker_volume_is_told() {
    for len in [0, 1, 511, 512, 4096] {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new(vec![0; len]));
        let format = formats::by_name("BitLocker").expect("it is in the table");
        assert!(matches!(format.identify(&*store), Ok(Verdict::No(_))));
        let error = format.open(&store).err().unwrap_or_else(|| panic!("{len} bytes open"));
        assert!(matches!(error.kind, ErrorKind::NotThisFormat(_)), "{error}");
    }
}
