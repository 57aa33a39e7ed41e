//! BitLocker metadata that are nearly valid: members are mangled, with checksum and sealed hash mended. What dislocker, libbde and this
//! program read of them is the same, or the difference has its name here.

use std::ops::Range;
use std::sync::Arc;

use crate::support::*;
use claviger_engine::store::MemoryStore;
use claviger_engine::{Credential, Secret, Store, Unlock, Volume, formats};
use claviger_testkit::bitlocker::maker::{self, Kind, Made, Protector};
use claviger_testkit::bitlocker::metadata::{Datum, HEADERS, Nonces, Seal, validation};
use claviger_testkit::bitlocker::oracles::{Judges, sha256};

/// Names and lengths of the numbers in both headers of a block.
const NUMBERS: [(&str, usize); 22] = [
    ("signature", 8),
    ("block size", 2),
    ("version", 2),
    ("state", 2),
    ("next state", 2),
    ("watermark", 8),
    ("log size", 4),
    ("header sectors", 4),
    ("place 1", 8),
    ("place 2", 8),
    ("place 3", 8),
    ("header place", 8),
    ("dataset size", 4),
    ("dataset version", 4),
    ("dataset header", 4),
    ("dataset end", 4),
    ("GUID", 8),
    ("GUID", 8),
    ("nonce", 4),
    ("cipher", 2),
    ("cipher again", 2),
    ("time", 8),
];

/// A number in the block, and what it is called.
type Member = (String, Range<usize>);

/// All of them in a block.
fn members(block: &[u8]) -> Vec<Member> {
    let mut members = Vec::new();
    let mut at = 0;
    for (name, len) in NUMBERS {
        members.push((name.to_owned(), at..at + len));
        at += len;
    }
    assert_eq!(at, HEADERS);
    let len = Datum::parse_all(&block[HEADERS..]).iter().map(|datum| datum.bytes().len()).sum::<usize>();
    members_of_datums("", block, HEADERS..HEADERS + len, &mut members);
    members
}

fn members_of_datums(outer: &str, block: &[u8], place: Range<usize>, members: &mut Vec<Member>) {
    let mut at = place.start;
    for datum in Datum::parse_all(&block[place]) {
        // Protectors and stretched keys have other datums after numbers of their own.
        let (name, own) = match (datum.role, datum.kind) {
            (2, 8) => ("protector", Some(28)),
            (_, 4) => ("use", Some(4)),
            (3, 5) => ("volume key", None),
            (_, 5) => ("box", None),
            (_, 2) => ("text", None),
            (_, 0xf) => ("header", None),
            _ => ("datum", None),
        };
        let name = format!("{outer}{name}");
        for (word, part) in ["size", "role", "kind", "version"].into_iter().enumerate() {
            members.push((format!("{name}: {part}"), at + 2 * word..at + 2 * word + 2));
        }
        let end = at + 8 + datum.data.len();
        let data = at + 8..own.map_or(end, |own| at + 8 + own);
        members.extend(data.clone().step_by(8).map(|from| (format!("{name}: data"), from..data.end.min(from + 8))));
        if own.is_some() {
            members_of_datums(&format!("{name}: "), block, data.end..end, members);
        }
        at = end;
    }
}

/// The values that replace a number.
fn values(old: u64, len: usize) -> Vec<u64> {
    let most = u64::MAX >> (64 - 8 * len);
    let mut values = vec![0, 1, 2, old.wrapping_add(1) & most, old.wrapping_sub(1) & most, most, old ^ (most / 2 + 1)];
    values.retain(|value| *value != old);
    values.sort_unstable();
    values.dedup();
    values
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// A program that judges differently from this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Judge {
    Dislocker,
    Libbde,
}
use Judge::{Dislocker, Libbde};

/// How.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Difference {
    /// It opens what is refused here.
    Opens,
    /// It refuses what opens here.
    Refuses,
    /// It reads something else.
    ReadsOther,
}
use Difference::{Opens, ReadsOther, Refuses};

/// All differences there are, by the member that was changed. Why it is right here, or does no harm.
const ON_PURPOSE: &[(Judge, &[&str], &[Difference], &str)] = &[
    (Dislocker, &["signature", "place 1", "place 2", "place 3"], &[Opens], "it believes the first sector alone"),
    (
        Dislocker,
        &["state", "watermark"],
        &[Opens, ReadsOther, Refuses],
        "it decrypts below any watermark, whatever the state",
    ),
    (
        Dislocker,
        &["header sectors", "header place"],
        &[Opens, ReadsOther],
        "it reads the length here alone, where it has to be that of the datum",
    ),
    (Dislocker, &["header: data"], &[Opens], "nor does it see that the datum contradicts"),
    (Dislocker, &["dataset size"], &[Opens, Refuses], "it takes a last datum that is cut off for whole"),
    (Dislocker, &["dataset end"], &[Refuses], "it stops there; here the first size counts, in all of this"),
    (Dislocker, &["cipher"], &[Opens], "it falls back to a cipher of its own"),
    (Dislocker, &["protector: data"], &[Opens], "it tells protectors by what is in them"),
    (
        Dislocker,
        &["header: kind", "text: kind", "protector: text: kind", "use: kind"],
        &[Refuses],
        "it stops at kinds that it does not know",
    ),
    (Dislocker, &["box: size"], &[Refuses], "it stops at a copy of a key that nobody needs"),
    (
        Libbde,
        &["block size", "state", "watermark", "header sectors", "header: data"],
        &[Opens, ReadsOther],
        "it does not compare these with anything",
    ),
    (Libbde, &["header place"], &[Refuses], "it wants the place in both; the datum counts"),
    (Libbde, &["dataset size", "dataset version", "dataset end"], &[Refuses], "it wants them as Windows writes them"),
    (Libbde, &["cipher"], &[Refuses], "it wants the key's kind to be the same"),
    (Dislocker, &["header: size"], &[Opens, Refuses], "here a size of zero is the end, and the block tells the place"),
    (Libbde, &["header: size"], &[Refuses], "as above"),
    (Libbde, &["header: role", "text: role"], &[Refuses], "it takes them for another datum, which is cut off"),
    (Libbde, &["box: data", "volume key: data"], &[Opens], "it does not look at the tag of a sealed key"),
];

struct Mangler {
    made: Made,
    startup_key: Vec<u8>,
    judges: Judges,
    members: Vec<Member>,
    /// How many nobody opened, how many all read the same of, and how many were judged otherwise on purpose.
    judged: [usize; 3],
    wrong: Vec<String>,
}

impl Mangler {
    fn new(kind: Kind) -> Option<Self> {
        let made = maker::Volume { protectors: vec![Protector::StartupKey], ..maker::Volume::new(kind) }.make();
        let maker::Unlock::StartupKey(_, startup_key) = made.unlocks[0].clone() else { panic!("it has a startup key") };
        let judges = Judges::start(&startup_key)?;
        let members = members(&made.block(0));
        Some(Self { made, startup_key, judges, members, judged: [0; 3], wrong: Vec::new() })
    }

    /// Each member with each value.
    fn changes(&self) -> Vec<(usize, u64)> {
        let block = self.made.block(0);
        let each = self.members.iter().enumerate();
        each.flat_map(|(member, (_, at))| {
            values(number(&block[at.clone()]), at.len()).into_iter().map(move |v| (member, v))
        })
        .collect()
    }

    /// The SHA-256 of the plaintext, if it opens here.
    fn ours(&self, image: &[u8]) -> Option<String> {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new(image.to_vec()));
        let with = [Credential::Keyfile(Secret::copy_from(&self.startup_key))];
        let unlocked = formats::open(&store, Some("BitLocker")).ok()?.1.unlock(&Unlock::with(&with)).ok()?;
        Some(sha256(&all_of(&Volume::new(store, unlocked.layout))))
    }

    /// Has all judge the volume with these changes in all copies.
    fn judge(&mut self, changes: &[(usize, u64)]) {
        let mut block = self.made.block(0);
        for (member, value) in changes {
            let at = self.members[*member].1.clone();
            block[at.clone()].copy_from_slice(&value.to_le_bytes()[..at.len()]);
        }
        let mut image = self.made.image.clone();
        let len = self.made.layout.metadata_len as usize;
        let behind = validation(&block, &block, len, Seal::Under(self.made.vmk), &mut Nonces::from(0x1_0000));
        for at in self.made.layout.metadata {
            let bytes = [&block[..], &behind].concat();
            image[at as usize..][..bytes.len()].copy_from_slice(&bytes);
        }
        let ours = self.ours(&image);
        let theirs = self.judges.judge(&image);
        let differences = [Dislocker, Libbde].into_iter().zip(&theirs).filter(|(_, theirs)| **theirs != ours);
        let differences: Vec<_> = differences
            .map(|(who, theirs)| match (&ours, theirs) {
                (None, _) => (who, Opens),
                (_, None) => (who, Refuses),
                _ => (who, ReadsOther),
            })
            .collect();
        let name = |member: usize| self.members[member].0.as_str();
        let on_purpose = |(who, how): &(Judge, Difference)| {
            ON_PURPOSE.iter().any(|(judge, members, hows, _)| {
                let is = |name: &str, member: &str| {
                    name.strip_suffix(member).is_some_and(|outer| outer.is_empty() || outer.ends_with(": "))
                };
                let changed = |member: &&str| changes.iter().any(|(at, _)| is(name(*at), member));
                judge == who && hows.contains(how) && members.iter().any(changed)
            })
        };
        if let Some(unknown) = differences.iter().find(|difference| !on_purpose(difference)) {
            let changes: Vec<_> =
                changes.iter().map(|(member, value)| format!("{} {value:#x}", name(*member))).collect();
            self.wrong.push(format!("{:?}, {}: {unknown:?}", self.made.volume.kind, changes.join(", ")));
        }
        let verdict = if !differences.is_empty() { 2 } else { usize::from(ours.is_some()) };
        self.judged[verdict] += 1;
    }

    fn finish(self, least: usize) -> [usize; 3] {
        assert!(self.wrong.is_empty(), "{}", self.wrong.join("\n"));
        assert!(self.judged.iter().all(|count| *count > least), "{:?}", self.judged);
        self.judged
    }
}

/// Some members with some values.
#[test]
fn mangled_metadata_are_judged_as_others_judge_them() {
    for (kind, first) in [(Kind::Windows7, 0), (Kind::Windows8, 6)] {
        let Some(mut mangler) = Mangler::new(kind) else { return };
        for change in mangler.changes().into_iter().skip(first).step_by(13) {
            mangler.judge(&[change]);
        }
        mangler.finish(5);
    }
}
