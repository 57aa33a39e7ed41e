//! Damaged and hostile LUKS2 headers, one defect each: the exact error, what cryptsetup makes of the same header, and that nothing
//! was written.

use std::sync::Arc;

use crate::support::luks::{ARGON2, Cryptsetup, PBKDF2};
use crate::support::*;
use claviger_crypto::hash::SHA256;
use claviger_engine::formats;
use claviger_engine::store::MemoryStore;
use claviger_engine::{ErrorKind, Result, Store, Unlock, Volume, Warning};
use claviger_testkit::random::Random;
use claviger_testkit::stores::{FaultStore, Operation};
use serde_json::{Value, json};

/// Size of a copy of the header, and where its JSON area begins.
const SIZE: usize = 0x4000;
const JSON: u64 = 4096;
/// Where the second area of keyslots begins in the base image: after two copies and one area.
const SECOND: u64 = 2 * 0x4000 + 258_048;

/// A volume with two keyslots and two segments.
struct Image(Vec<u8>);

/// The result of opening it.
#[derive(Debug)]
enum Ours {
    Malformed(&'static str, u64),
    /// With this in the message.
    Unsupported(&'static str),
    NotThisFormat,
    /// By this copy, with so much of a warning; none at all if it is empty.
    Opens(&'static str, &'static str),
}
use Ours::{Malformed, NotThisFormat, Opens, Unsupported};

/// cryptsetup 2.6's verdict on it.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Theirs {
    Opens,
    Refuses,
}
use Theirs::{Opens as Take, Refuses};

type Case = (&'static str, fn(&mut Image), Ours, Theirs);

impl Image {
    /// Changes the metadata in both copies.
    fn json(&mut self, change: impl FnOnce(&mut Value)) {
        let area = &self.0[JSON as usize..SIZE];
        let len = area.iter().position(|b| *b == 0).expect("text ends");
        let mut metadata = serde_json::from_slice(&area[..len]).expect("JSON");
        change(&mut metadata);
        self.text(&serde_json::to_vec(&metadata).expect("JSON"));
    }

    /// Puts a text into both JSON areas, and zeros after it.
    fn text(&mut self, text: &[u8]) {
        for copy in [0, SIZE] {
            let area = &mut self.0[copy + JSON as usize..copy + SIZE];
            area.fill(0);
            area[..text.len()].copy_from_slice(text);
        }
        self.sum();
    }

    /// Changes the text of the metadata.
    fn edit(&mut self, change: impl FnOnce(String) -> String) {
        let area = &self.0[JSON as usize..SIZE];
        let len = area.iter().position(|b| *b == 0).expect("text ends");
        let text = String::from_utf8(area[..len].to_vec()).expect("text");
        self.text(change(text).as_bytes());
    }

    /// Puts bytes into both binary headers, and makes their checksums right.
    fn both(&mut self, at: usize, bytes: &[u8]) {
        for copy in [0, SIZE] {
            self.0[copy + at..][..bytes.len()].copy_from_slice(bytes);
        }
        self.sum();
    }

    /// Puts bytes into one place.
    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.0[at..][..bytes.len()].copy_from_slice(bytes);
    }

    /// Makes both checksums right.
    fn sum(&mut self) {
        for copy in [0, SIZE] {
            self.sum_of(copy, SIZE);
        }
    }

    fn sum_of(&mut self, copy: usize, size: usize) {
        let whole = &mut self.0[copy..copy + size];
        whole[448..512].fill(0);
        let mut sum = [0; 32];
        SHA256.digest(&[whole], &mut sum);
        whole[448..480].copy_from_slice(&sum);
    }
}

/// Member of the metadata, by a JSON pointer.
fn at<'a>(metadata: &'a mut Value, pointer: &str) -> &'a mut Value {
    metadata.pointer_mut(pointer).unwrap_or_else(|| panic!("there is no {pointer}"))
}

/// Sets a member, by the pointer of what it is in and its name.
fn set(image: &mut Image, pointer: &str, name: &str, value: Value) {
    image.json(|metadata| at(metadata, pointer)[name] = value);
}

fn remove(image: &mut Image, pointer: &str, name: &str) {
    image.json(|metadata| drop(at(metadata, pointer).as_object_mut().expect("an object").remove(name)));
}

/// In the binary headers.
const BINARY: &[Case] = &[
    ("nothing", |_| {}, Opens("primary", ""), Take),
    ("written anew", |i| i.json(|_| {}), Opens("primary", ""), Take),
    ("no primary magic", |i| i.put(0, &[0; 6]), Opens("secondary", "the signature of the primary"), Take),
    (
        "no magic",
        |i| {
            i.put(0, &[0; 6]);
            i.put(SIZE, &[0; 6])
        },
        Opens("primary", "the signature of the"),
        Refuses,
    ),
    (
        "no magic, and another bit",
        |i| {
            i.put(0, &[0; 6]);
            i.put(SIZE, &[0; 6]);
            i.put(600, &[1]);
            i.put(SIZE + 600, &[1])
        },
        NotThisFormat,
        Refuses,
    ),
    ("the second magic in front", |i| i.put(0, b"SKUL"), Opens("secondary", "the signature of the primary"), Take),
    ("version 3", |i| i.both(6, &[0, 3]), Unsupported("LUKS version 3"), Refuses),
    (
        "version 0 in front",
        |i| {
            i.put(6, &[0, 0]);
            i.sum()
        },
        Opens("secondary", "version 0"),
        Take,
    ),
    ("another offset", |i| i.both(256, &[0, 0, 0, 0, 0, 0, 2, 0]), Malformed("hdr_offset", 256), Refuses),
    ("a size between two", |i| i.both(8, &0x5000u64.to_be_bytes()), Malformed("hdr_size", 8), Refuses),
    ("no size", |i| i.both(8, &[0; 8]), Malformed("hdr_size", 8), Refuses),
    ("a size near 2^64", |i| i.both(8, &(u64::MAX - 4095).to_be_bytes()), Malformed("hdr_size", 8), Refuses),
    (
        "twice the size",
        |i| {
            i.both(8, &0x8000u64.to_be_bytes());
            i.sum_of(0, 2 * SIZE)
        },
        Malformed("JSON area", 0x4000),
        Refuses,
    ),
    ("a hash that nobody knows", |i| i.both(72, b"sha999"), Unsupported("header checksums by \"sha999\""), Refuses),
    ("no hash", |i| i.both(72, &[0; 32]), Unsupported("header checksums by"), Refuses),
    ("a hash that is no text", |i| i.both(72, &[0xff, 0xfe]), Malformed("csum_alg", 72), Refuses),
    (
        "both checksums",
        |i| {
            i.put(450, &[1, 2]);
            i.put(SIZE + 450, &[1, 2])
        },
        Malformed("csum", 448),
        Refuses,
    ),
    ("the first checksum", |i| i.put(450, &[1, 2]), Opens("secondary", "checksum"), Take),
    ("the second checksum", |i| i.put(SIZE + 450, &[1, 2]), Opens("primary", "checksum"), Take),
    ("a bit of the padding", |i| i.put(4095, &[1]), Opens("secondary", "checksum"), Take),
    ("a bit of the first metadata", |i| i.put(5000, b"x"), Opens("secondary", "checksum"), Take),
    (
        "a newer second copy",
        |i| {
            i.put(SIZE + 16, &[0, 0, 0, 1]);
            i.sum()
        },
        Opens("secondary", "is older"),
        Take,
    ),
    (
        "a newer first copy",
        |i| {
            i.put(16, &[0xff; 8]);
            i.sum()
        },
        Opens("primary", "is older"),
        Take,
    ),
    (
        "copies that differ",
        |i| {
            i.put(24, b"x");
            i.sum()
        },
        Opens("primary", "but differs"),
        Take,
    ),
    ("a label without an end", |i| i.both(24, &[b'x'; 48]), Opens("primary", ""), Take),
    ("cut in the first copy", |i| i.0.truncate(0x2000), Malformed("hdr_size", 8), Refuses),
    ("cut in the second copy", |i| i.0.truncate(0x7000), Malformed("keyslots_size", JSON), Refuses),
    ("cut in the keyslots", |i| i.0.truncate(0x20000), Malformed("keyslots_size", JSON), Refuses),
    ("cut in the data", |i| i.0.truncate(0x108000), Malformed("segments", JSON), Take),
];

/// In the text of the JSON area.
const TEXT: &[Case] = &[
    ("a blank in front", |i| i.edit(|t| format!(" {t}")), Malformed("JSON area", JSON), Refuses),
    ("a blank behind", |i| i.edit(|t| format!("{t} ")), Opens("primary", ""), Take),
    ("an array", |i| i.text(b"[]"), Malformed("JSON area", JSON), Refuses),
    ("nothing", |i| i.text(b""), Malformed("JSON area", JSON), Refuses),
    ("no end", |i| i.text(&[b"{".to_vec(), vec![b' '; SIZE - 4097]].concat()), Malformed("JSON area", 0x3fff), Refuses),
    (
        "something behind",
        |i| {
            i.put(0x3000, b"x");
            i.put(SIZE + 0x3000, b"x");
            i.sum()
        },
        Malformed("JSON area", 0x3000),
        Refuses,
    ),
    ("no JSON", |i| i.text(br#"{"keyslots": }"#), Malformed("JSON area", JSON + 13), Refuses),
    ("no text", |i| i.text(b"{\"\xff\xfe\":1}"), Malformed("JSON area", JSON + 2), Refuses),
    (
        "deep arrays",
        |i| i.edit(|t| t.replacen('{', &format!("{{\"x\":{}{},", "[".repeat(32), "]".repeat(32)), 1)),
        Malformed("JSON area", JSON + 36),
        Refuses,
    ),
    (
        "arrays as deep as may be",
        |i| i.edit(|t| t.replacen('{', &format!("{{\"x\":{}{},", "[".repeat(31), "]".repeat(31)), 1)),
        Opens("primary", ""),
        Take,
    ),
    (
        "nothing but deep arrays",
        |i| i.text(format!("{{\"x\":{}{}}}", "[".repeat(6000), "]".repeat(6000)).as_bytes()),
        Malformed("JSON area", JSON + 36),
        Refuses,
    ),
    ("a key twice", |i| i.edit(|t| t.replacen('{', "{\"x\":1,\"x\":2,", 1)), Malformed("JSON area", JSON + 11), Take),
    ("a section twice", |i| i.edit(|t| t.replacen('{', "{\"tokens\":{},", 1)), Malformed("JSON area", 0), Take),
    (
        "keyslots twice in a section",
        |i| i.edit(|t| t.replacen("\"keyslots\":{\"0\":", "\"keyslots\":{\"0\":1,\"0\":", 1)),
        Malformed("JSON area", 0),
        Take,
    ),
    (
        "a member that is not known",
        |i| i.edit(|t| t.replacen('{', "{\"x\":{\"y\":[1e9,null,true]},", 1)),
        Opens("primary", ""),
        Take,
    ),
    ("no keyslots", |i| remove(i, "", "keyslots"), Malformed("JSON area", 0), Refuses),
    ("no tokens", |i| remove(i, "", "tokens"), Malformed("JSON area", 0), Refuses),
    ("no segments", |i| remove(i, "", "segments"), Malformed("JSON area", 0), Refuses),
    ("no digests", |i| remove(i, "", "digests"), Malformed("JSON area", 0), Refuses),
    ("no config", |i| remove(i, "", "config"), Malformed("JSON area", 0), Refuses),
    ("keyslots in an array", |i| set(i, "", "keyslots", json!([])), Malformed("JSON area", 0), Refuses),
    (
        "a keyslot called 00",
        |i| i.json(|m| m["keyslots"]["00"] = m["keyslots"]["0"].clone()),
        Malformed("JSON area", 0),
        Refuses,
    ),
    (
        "a keyslot called -1",
        |i| i.json(|m| m["keyslots"]["-1"] = m["keyslots"]["0"].clone()),
        Malformed("JSON area", 0),
        Refuses,
    ),
    (
        "a size of 2^64",
        |i| set(i, "/segments/1", "size", json!("18446744073709551616")),
        Malformed("JSON area", 0),
        Refuses,
    ),
    ("a size below 0", |i| set(i, "/segments/1", "size", json!("-512")), Malformed("JSON area", 0), Refuses),
    ("a size that is a number", |i| set(i, "/segments/1", "size", json!(4096)), Malformed("JSON area", 0), Refuses),
    (
        "an offset that is no number",
        |i| set(i, "/segments/1", "offset", json!("1 MiB")),
        Malformed("JSON area", 0),
        Refuses,
    ),
    ("a salt that is no Base64", |i| set(i, "/keyslots/0/kdf", "salt", json!("!")), Malformed("JSON area", 0), Refuses),
    ("a key of -1 bytes", |i| set(i, "/keyslots/0", "key_size", json!(-1)), Malformed("JSON area", 0), Refuses),
];

/// In what the metadata say.
const METADATA: &[Case] = &[
    (
        "a keyslot number 32",
        |i| {
            i.json(|m| {
                m["keyslots"]["32"] = json!({"type": "x", "key_size": 1,
        "area": {"type": "raw", "offset": "323584", "size": "4096"}})
            })
        },
        Malformed("keyslots", JSON),
        Refuses,
    ),
    (
        "a digest for no keyslot",
        |i| set(i, "/digests/0", "keyslots", json!(["0", "1", "5"])),
        Malformed("digests", JSON),
        Refuses,
    ),
    (
        "a digest for no segment",
        |i| set(i, "/digests/0", "segments", json!(["0", "1", "7"])),
        Malformed("digests", JSON),
        Refuses,
    ),
    (
        "a token for no keyslot",
        |i| set(i, "/tokens", "3", json!({"type": "x", "keyslots": ["9"]})),
        Malformed("tokens", JSON),
        Refuses,
    ),
    ("a token without a type", |i| set(i, "/tokens", "3", json!({"keyslots": []})), Malformed("tokens", JSON), Refuses),
    ("a token without keyslots", |i| set(i, "/tokens", "3", json!({"type": "x"})), Malformed("tokens", JSON), Refuses),
    (
        "a token that is not known",
        |i| set(i, "/tokens", "3", json!({"type": "x", "keyslots": ["0"], "y": 1})),
        Opens("primary", ""),
        Take,
    ),
    (
        "an area in the header",
        |i| set(i, "/keyslots/0/area", "offset", json!("16384")),
        Malformed("area", JSON),
        Refuses,
    ),
    (
        "an area behind the others",
        |i| set(i, "/keyslots/0/area", "offset", json!("1048576")),
        Malformed("area", JSON),
        Refuses,
    ),
    (
        "an area near 2^64",
        |i| set(i, "/keyslots/0/area", "offset", json!("18446744073709551615")),
        Malformed("area", JSON),
        Refuses,
    ),
    (
        "an area of 2^64 bytes",
        |i| set(i, "/keyslots/0/area", "size", json!("18446744073709551615")),
        Malformed("area", JSON),
        Refuses,
    ),
    ("an area of no bytes", |i| set(i, "/keyslots/0/area", "size", json!("0")), Malformed("area", JSON), Refuses),
    (
        "areas that overlap",
        |i| set(i, "/keyslots/1/area", "offset", json!((SECOND - 4096).to_string())),
        Malformed("area", JSON),
        Refuses,
    ),
    ("an area twice", |i| set(i, "/keyslots/1/area", "offset", json!("32768")), Malformed("area", JSON), Refuses),
    (
        "no segment",
        |i| {
            i.json(|m| {
                m["segments"] = json!({});
                m["digests"]["0"]["segments"] = json!([])
            })
        },
        Malformed("segments", JSON),
        Refuses,
    ),
    (
        "a segment inside a sector",
        |i| set(i, "/segments/0", "offset", json!("1048577")),
        Malformed("segments", JSON),
        Refuses,
    ),
    (
        "a segment in the header",
        |i| set(i, "/segments/0", "offset", json!("36864")),
        Malformed("segments", JSON),
        Refuses,
    ),
    ("a segment without bytes", |i| set(i, "/segments/0", "size", json!("0")), Malformed("segments", JSON), Refuses),
    ("a segment of 513 bytes", |i| set(i, "/segments/0", "size", json!("513")), Malformed("segments", JSON), Refuses),
    (
        "a segment of half a sector",
        |i| {
            i.json(|m| {
                m["segments"]["0"]["sector_size"] = json!(4096);
                m["segments"]["0"]["size"] = json!("512")
            })
        },
        Malformed("segments", JSON),
        Refuses,
    ),
    (
        "a segment that ends nowhere",
        |i| set(i, "/segments/1", "size", json!("18446744073709551104")),
        Malformed("segments", JSON),
        Refuses,
    ),
    (
        "one segment of 2^64 - 512 bytes",
        |i| {
            i.json(|m| {
                m["segments"] = json!({"0": m["segments"]["0"]});
                m["segments"]["0"]["size"] = json!("18446744073709551104");
                m["digests"]["0"]["segments"] = json!(["0"])
            })
        },
        Malformed("segments", JSON),
        Take,
    ),
    (
        "a segment that ends at 2^64",
        |i| set(i, "/segments/1", "size", json!((u64::MAX - 511 - 1_081_344).to_string())),
        Malformed("segments", JSON),
        Refuses,
    ),
    (
        "a dynamic segment in front",
        |i| set(i, "/segments/0", "size", json!("dynamic")),
        Malformed("segments", JSON),
        Refuses,
    ),
    (
        "segments that overlap",
        |i| set(i, "/segments/1", "offset", json!("1081344")),
        Malformed("segments", JSON),
        Refuses,
    ),
    (
        "a number left out",
        |i| {
            i.json(|m| {
                m["segments"]["2"] = m["segments"]["1"].take();
                m["segments"].as_object_mut().unwrap().remove("1");
                m["digests"]["0"]["segments"] = json!(["0", "2"])
            })
        },
        Malformed("segments", JSON),
        Refuses,
    ),
    (
        "a number left out between backups",
        |i| {
            i.json(|m| {
                m["segments"]["2"] = m["segments"]["1"].clone();
                m["segments"]["2"]["flags"] = json!(["backup-final"]);
                m["segments"]["4"] = m["segments"]["2"].clone();
                m["digests"]["0"]["segments"] = json!(["0", "1", "2", "4"])
            })
        },
        Malformed("segments", JSON),
        Refuses,
    ),
    (
        "a number left out before a backup",
        |i| {
            i.json(|m| {
                m["segments"]["3"] = m["segments"]["1"].clone();
                m["segments"]["3"]["flags"] = json!(["backup-final"]);
                m["digests"]["0"]["segments"] = json!(["0", "1", "3"])
            })
        },
        Malformed("segments", JSON),
        Refuses,
    ),
    (
        "a cipher without a name",
        |i| set(i, "/segments/1", "encryption", json!("")),
        Malformed("segments", JSON),
        Refuses,
    ),
    (
        "nothing but a backup",
        |i| {
            i.json(|m| {
                m["segments"]["0"]["flags"] = json!(["backup-final"]);
                m["segments"]["1"]["flags"] = json!(["backup-previous"])
            })
        },
        Malformed("segments", JSON),
        Refuses,
    ),
    (
        "a backup in front",
        |i| set(i, "/segments/0", "flags", json!(["backup-final"])),
        Malformed("segments", JSON),
        Refuses,
    ),
    (
        "sectors of 513 bytes",
        |i| set(i, "/segments/0", "sector_size", json!(513)),
        Malformed("sector_size", JSON),
        Refuses,
    ),
    (
        "sectors of 8192 bytes",
        |i| set(i, "/segments/0", "sector_size", json!(8192)),
        Malformed("sector_size", JSON),
        Take,
    ),
    (
        "sectors of no bytes",
        |i| set(i, "/segments/0", "sector_size", json!(0)),
        Malformed("sector_size", JSON),
        Refuses,
    ),
    ("a segment without a cipher", |i| remove(i, "/segments/0", "encryption"), Malformed("segments", JSON), Refuses),
    (
        "a segment without a digest",
        |i| set(i, "/digests/0", "segments", json!(["0"])),
        Malformed("digests", JSON),
        Refuses,
    ),
    (
        "another size of the JSON area",
        |i| set(i, "/config", "json_size", json!("16384")),
        Malformed("json_size", JSON),
        Refuses,
    ),
    (
        "keyslots of odd size",
        |i| set(i, "/config", "keyslots_size", json!("516097")),
        Malformed("keyslots_size", JSON),
        Refuses,
    ),
    (
        "keyslots of 256 MiB",
        |i| set(i, "/config", "keyslots_size", json!("268435456")),
        Malformed("keyslots_size", JSON),
        Refuses,
    ),
    (
        "keyslots of 2^64 bytes",
        |i| set(i, "/config", "keyslots_size", json!("18446744073709547520")),
        Malformed("keyslots_size", JSON),
        Refuses,
    ),
    (
        "keyslots that reach into the data",
        |i| set(i, "/config", "keyslots_size", json!("1048576")),
        Malformed("segments", JSON),
        Refuses,
    ),
    ("priority 3", |i| set(i, "/keyslots/0", "priority", json!(3)), Malformed("priority", JSON), Refuses),
    ("a keyslot without a derivation", |i| remove(i, "/keyslots/0", "kdf"), Malformed("kdf", JSON), Refuses),
    ("a derivation without a hash", |i| remove(i, "/keyslots/0/kdf", "hash"), Malformed("kdf", JSON), Refuses),
    ("Argon2 without memory", |i| remove(i, "/keyslots/1/kdf", "memory"), Malformed("kdf", JSON), Refuses),
    ("a keyslot without a splitter", |i| remove(i, "/keyslots/0", "af"), Malformed("af", JSON), Refuses),
    (
        "a splitter of another type",
        |i| set(i, "/keyslots/0/af", "type", json!("luks9")),
        Malformed("af", JSON),
        Refuses,
    ),
    (
        "an area of another type",
        |i| set(i, "/keyslots/0/area", "type", json!("journal")),
        Malformed("area", JSON),
        Refuses,
    ),
    ("an area without a cipher", |i| remove(i, "/keyslots/0/area", "encryption"), Malformed("area", JSON), Refuses),
    (
        "a keyslot without a digest",
        |i| set(i, "/digests/0", "keyslots", json!(["1"])),
        Malformed("digests", JSON),
        Refuses,
    ),
    (
        "a keyslot with two digests",
        |i| {
            i.json(|m| {
                let mut d = m["digests"]["0"].clone();
                d["segments"] = json!([]);
                m["digests"]["1"] = d
            })
        },
        Malformed("digests", JSON),
        Refuses,
    ),
    (
        "a reencryption that nobody began",
        |i| i.json(|m| m["keyslots"]["5"] = reencryption()),
        Malformed("requirements", JSON),
        Refuses,
    ),
    (
        "a reencryption without a state",
        |i| set(i, "/config", "requirements", json!({"mandatory": ["online-reencrypt-v2"]})),
        Malformed("keyslots", JSON),
        Refuses,
    ),
    (
        "a reencryption, and a requirement that is not known",
        |i| {
            i.json(|m| {
                m["keyslots"]["5"] = reencryption();
                m["config"]["requirements"] = json!({"mandatory": ["online-reencrypt-v2", "tea"]})
            })
        },
        Unsupported("the requirement \"tea\""),
        Refuses,
    ),
    (
        "a reencryption of nothing",
        |i| {
            i.json(|m| {
                m["keyslots"]["5"] = reencryption();
                m["config"]["requirements"] = json!({"mandatory": ["online-reencrypt-v2"]})
            })
        },
        Malformed("segments", JSON),
        Refuses,
    ),
];

fn reencryption() -> Value {
    json!({"type": "reencrypt", "key_size": 1, "mode": "reencrypt", "direction": "forward",
        "area": {"type": "none", "offset": "548864", "size": "4096"}})
}

/// In what is only examined when a keyslot is tried, or the volume laid out. Keyslot 1 is gone.
const TRIED: &[Case] = &[
    ("no iterations", |i| set(i, "/keyslots/0/kdf", "iterations", json!(0)), Malformed("kdf", JSON), Refuses),
    ("a hash that is not known", |i| set(i, "/keyslots/0/kdf", "hash", json!("md0")), Unsupported("\"md0\""), Refuses),
    (
        "a derivation that is not known",
        |i| set(i, "/keyslots/0/kdf", "type", json!("scrypt")),
        Unsupported("\"scrypt\""),
        Refuses,
    ),
    (
        "escapes in a name",
        |i| set(i, "/keyslots/0/kdf", "type", json!("\u{1b}[31m")),
        Unsupported("\"\\u{1b}[31m\""),
        Refuses,
    ),
    ("another number of stripes", |i| set(i, "/keyslots/0/af", "stripes", json!(3999)), Malformed("af", JSON), Take),
    (
        "a splitter's hash that is not known",
        |i| set(i, "/keyslots/0/af", "hash", json!("md0")),
        Unsupported("\"md0\""),
        Refuses,
    ),
    ("a key of 4 GiB", |i| set(i, "/keyslots/0", "key_size", json!(u32::MAX)), Malformed("area", JSON), Refuses),
    ("a key of no bytes", |i| set(i, "/keyslots/0", "key_size", json!(0)), Malformed("area", JSON), Refuses),
    (
        "an area that is too small",
        |i| set(i, "/keyslots/0/area", "size", json!("253952")),
        Malformed("area", JSON),
        Take,
    ),
    (
        "a keyslot's cipher that is not known",
        |i| set(i, "/keyslots/0/area", "encryption", json!("rot13-ecb")),
        Unsupported("rot13-ecb"),
        Refuses,
    ),
    (
        "a key that the keyslot's cipher does not take",
        |i| set(i, "/keyslots/0/area", "key_size", json!(17)),
        Malformed("area", JSON),
        Refuses,
    ),
    ("a digest of no bytes", |i| set(i, "/digests/0", "digest", json!("")), Malformed("digests", JSON), Take),
    (
        "a digest of 19 bytes",
        |i| set(i, "/digests/0", "digest", json!("AAAAAAAAAAAAAAAAAAAAAAAAAA==")),
        Malformed("digests", JSON),
        Take,
    ),
    (
        "a digest without iterations",
        |i| set(i, "/digests/0", "iterations", json!(0)),
        Malformed("digests", JSON),
        Refuses,
    ),
    ("a digest of another type", |i| set(i, "/digests/0", "type", json!("crc")), Unsupported("\"crc\""), Refuses),
    (
        "a requirement that is not known",
        |i| set(i, "/config", "requirements", json!({"mandatory": ["tea"]})),
        Unsupported("the requirement \"tea\""),
        Take,
    ),
    ("OPAL", |i| set(i, "/config", "requirements", json!({"mandatory": ["opal"]})), Unsupported("OPAL"), Take),
    (
        "flags that are not known",
        |i| set(i, "/config", "flags", json!(["tea", "allow-discards"])),
        Opens("primary", ""),
        Take,
    ),
    ("a segment in the drive", |i| set(i, "/segments/1", "type", json!("hw-opal")), Unsupported("OPAL"), Take),
    ("a segment that is not known", |i| set(i, "/segments/1", "type", json!("tea")), Unsupported("\"tea\""), Take),
    ("a linear segment", |i| set(i, "/segments/1", "type", json!("linear")), Malformed("segments", JSON), Take),
    (
        "a linear segment in front",
        |i| set(i, "/segments/0", "type", json!("linear")),
        Malformed("segments", JSON),
        Take,
    ),
    (
        "a cipher that is not known",
        |i| set(i, "/segments/1", "encryption", json!("rot13-ecb")),
        Unsupported("rot13-ecb"),
        Take,
    ),
    (
        "no cipher in a part",
        |i| set(i, "/segments/1", "encryption", json!("cipher_null-ecb")),
        Malformed("segments", JSON),
        Take,
    ),
    (
        "no cipher",
        |i| {
            set(i, "/segments/0", "encryption", json!("cipher_null-ecb"));
            set(i, "/segments/1", "encryption", json!("cipher_null-ecb"));
        },
        Opens("primary", "It is read-only."),
        Take,
    ),
    (
        "a fixed end behind the file's",
        |i| set(i, "/segments/1", "size", json!("1073741824")),
        Malformed("segments", JSON),
        Take,
    ),
];

/// The base: two keyslots, and the data in two segments.
fn base(cryptsetup: &Cryptsetup) -> Vec<u8> {
    let size: &[&str] = &["--luks2-metadata-size", "16k", "--luks2-keyslots-size", "768k", "--offset", "2048"];
    let path = cryptsetup.format("base", 1200, &[PBKDF2, size]);
    cryptsetup.add_key(&path, "second", &[ARGON2]);
    let mut image = Image(std::fs::read(path).expect("the image"));
    image.json(|metadata| {
        let mut second = metadata["segments"]["0"].clone();
        metadata["segments"]["0"]["size"] = json!("65536");
        second["offset"] = json!("1114112");
        second["iv_tweak"] = json!("128");
        metadata["segments"]["1"] = second;
        metadata["digests"]["0"]["segments"] = json!(["0", "1"]);
    });
    image.0
}

#[test]
fn each_defect_gives_its_error_and_nothing_is_written() {
    let Some(cryptsetup) = Cryptsetup::found() else { return };
    let base = base(&cryptsetup);
    let mut wrong = Vec::new();
    for (group, cases) in [("binary", BINARY), ("text", TEXT), ("metadata", METADATA), ("tried", TRIED)] {
        for case in cases {
            let mut image = Image(base.clone());
            if group == "tried" {
                image.json(|m| {
                    m["keyslots"].as_object_mut().expect("an object").remove("1");
                    m["digests"]["0"]["keyslots"] = json!(["0"]);
                });
            }
            case.1(&mut image);
            wrong.extend(differs(case, &image.0, &cryptsetup).map(|how| format!("{group}: {}: {how}", case.0)));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Members of the metadata that are mangled one by one, with all that is in them.
const MANGLED: [&str; 6] = ["/keyslots/0", "/keyslots/1/kdf", "/segments", "/digests", "/tokens", "/config"];

/// The values that replace each field.
fn mangled_values() -> Vec<Value> {
    let texts = ["", "0", "-1", "513", "0512", "512 ", "18446744073709551104", "18446744073709551616", "x"];
    let others = [json!(0), json!(-1), json!(513), json!(1u64 << 32), json!(1.5), json!(true), json!([]), json!({})];
    let lists = [json!(["0"]), json!(["0", "0"]), json!(["9"]), json!([0]), Value::Null];
    texts.map(Value::from).into_iter().chain(others).chain(lists).collect()
}

/// Whether this is a value that this program refuses, but cryptsetup shows, because it checks it later or never. No program writes it.
fn is_shown_there(pointer: &str, value: Option<&Value>) -> bool {
    let number_that_does_not_fit = matches!(value, Some(Value::Number(_)))
        && ["stripes", "key_size", "iterations", "time", "memory", "cpus"].iter().any(|n| pointer.ends_with(n));
    let no_base64 = pointer.ends_with("/salt") && matches!(value, Some(Value::String(_)));
    // It knows digests by their type, and looks at nothing else before one is used.
    let in_a_digest = ["/salt", "/digest", "/hash", "/iterations"].iter().any(|n| pointer == format!("/digests/0{n}"));
    number_that_does_not_fit || no_base64 || in_a_digest
}

/// Pointers of all members of `value` and of what is in them.
fn members(value: &Value, at: &str, found: &mut Vec<String>) {
    let inner: Vec<(String, &Value)> = match value {
        Value::Object(members) => members.iter().map(|(name, value)| (name.clone(), value)).collect(),
        Value::Array(members) => members.iter().enumerate().map(|(i, value)| (i.to_string(), value)).collect(),
        _ => Vec::new(),
    };
    for (name, value) in inner {
        found.push(format!("{at}/{name}"));
        members(value, &format!("{at}/{name}"), found);
    }
}

/// Of an object whose type it does not know cryptsetup looks at nothing else. Here its other members have to be what they are in
/// objects of known types.
fn of_unknown_type(changes: &[(&str, Option<&Value>)]) -> bool {
    changes.len() > 1
        && changes.iter().any(|(pointer, value)| pointer.ends_with("/type") && value.is_some_and(Value::is_string))
}

/// Puts a value in place of a member, or leaves it out. Another change may have taken what it was in.
fn mangle(metadata: &mut Value, pointer: &str, value: Option<&Value>) {
    let (parent, name) = pointer.rsplit_once('/').expect("a slash");
    match (metadata.pointer_mut(parent), value) {
        (Some(Value::Object(members)), None) => drop(members.remove(name)),
        (Some(Value::Array(members)), None) => {
            // Another change may have put an array in place of an object, whose members have names.
            if let Some(at) = name.parse().ok().filter(|at| *at < members.len()) {
                members.remove(at);
            }
        }
        (Some(parent), Some(value)) => {
            if let Some(member) = parent.pointer_mut(&format!("/{name}")) {
                *member = value.clone();
            }
        }
        _ => {}
    }
}

/// The header to mangle, and its fields.
struct Mangler {
    cryptsetup: Cryptsetup,
    base: Image,
    pointers: Vec<String>,
    values: Vec<Value>,
    /// How many were refused, and how many shown, by both.
    agreed: [usize; 2],
    wrong: Vec<String>,
}

impl Mangler {
    fn new() -> Option<Self> {
        let cryptsetup = Cryptsetup::found()?;
        let mut base = Image(base(&cryptsetup));
        set(&mut base, "/tokens", "0", json!({"type": "x", "keyslots": ["0"]}));
        let mut metadata = Value::Null;
        base.json(|m| metadata = m.clone());
        let mut pointers = Vec::new();
        for at in MANGLED {
            members(metadata.pointer(at).expect("it is there"), at, &mut pointers);
        }
        Some(Self { cryptsetup, base, pointers, values: mangled_values(), agreed: [0; 2], wrong: Vec::new() })
    }

    /// Has both judge a header with these changes.
    fn judge(&mut self, changes: &[(&str, Option<&Value>)]) {
        let mut image = Image(self.base.0.clone());
        image.json(|m| changes.iter().for_each(|(pointer, value)| mangle(m, pointer, *value)));
        let ours = formats::luks2::read(&MemoryStore::new(image.0.clone())).is_ok();
        let path = self.cryptsetup.path("mangled");
        std::fs::write(&path, &image.0).expect("a copy");
        let theirs = self.cryptsetup.try_run(&["luksDump"], &path).status.success();
        if ours == theirs {
            self.agreed[usize::from(ours)] += 1;
        } else if ours
            || !changes.iter().any(|(pointer, value)| is_shown_there(pointer, *value)) && !of_unknown_type(changes)
        {
            self.wrong.push(format!("{changes:?}: shown: here {ours}, there {theirs}"));
        }
    }

    fn finish(self, least: usize) {
        assert!(self.wrong.is_empty(), "{}", self.wrong.join("\n"));
        assert!(self.agreed.into_iter().all(|count| count > least), "{:?}", self.agreed);
    }
}

/// Each member is left out, and replaced by values of every kind: a header is shown if and only if cryptsetup shows it.
#[test]
fn mangled_headers_are_judged_as_cryptsetup_judges_them() {
    let Some(mut mangler) = Mangler::new() else { return };
    let (pointers, values) = (mangler.pointers.clone(), mangler.values.clone());
    for pointer in &pointers {
        for value in values.iter().map(Some).chain([None]) {
            mangler.judge(&[(pointer, value)]);
        }
    }
    mangler.finish(50);
}

/// Up to three members at once, at random, in as many headers as `TORTURE_HEADERS` says.
#[test]
#[ignore = "it takes most of an hour: make torture"]
fn torture_of_headers_at_random() {
    let headers = std::env::var("TORTURE_HEADERS").map_or(50_000, |n| n.parse().expect("TORTURE_HEADERS is a number"));
    let Some(mut mangler) = Mangler::new() else { return };
    let (pointers, values) = (mangler.pointers.clone(), mangler.values.clone());
    let mut random = Random::new(1);
    for _ in 0..headers {
        let mut change = || {
            let value = random.below(values.len() + 1);
            (pointers[random.below(pointers.len())].as_str(), values.get(value))
        };
        let changes: Vec<_> = (0..3).map(|_| change()).collect();
        mangler.judge(&changes[..1 + random.below(3)]);
    }
    println!(
        "{headers} headers; refused and shown by both: {:?}; {} judged otherwise.",
        mangler.agreed,
        mangler.wrong.len()
    );
    mangler.finish(headers / 100);
}

/// How opening it differs from what is expected.
fn differs((_, _, ours, theirs): &Case, bytes: &[u8], cryptsetup: &Cryptsetup) -> Option<String> {
    let memory = Arc::new(MemoryStore::new(bytes.to_vec()));
    let store = Arc::new(FaultStore::new(memory.clone(), None));
    let result = open(&(Arc::clone(&store) as Arc<dyn Store>));
    let as_expected = match (&result, ours) {
        (Ok((header, warnings)), Opens(which, warning)) => {
            header == which
                && warnings.is_empty() == warning.is_empty()
                && warnings.iter().all(|w| w.what.contains(warning))
        }
        (Err(e), ours) => match (&e.kind, ours) {
            // An exact place only where it is not the whole of a JSON text.
            (ErrorKind::Malformed { field, offset, .. }, Malformed(expected, at)) => {
                field == expected && (*at == 0 || offset == at)
            }
            (ErrorKind::Unsupported { what }, Unsupported(part)) => what.contains(part),
            (ErrorKind::NotThisFormat(_), NotThisFormat) => true,
            _ => false,
        },
        _ => false,
    };
    if !as_expected {
        return Some(format!("not {ours:?}, but {result:?}"));
    }
    if (store.count(Operation::Write), store.count(Operation::Flush)) != (0, 0) || contents(&*memory) != bytes {
        return Some("something was written".into());
    }
    // cryptsetup repairs what it opens.
    let path = cryptsetup.path("copy");
    std::fs::write(&path, bytes).expect("a copy");
    let key = cryptsetup.key("first");
    let output = cryptsetup.try_run(&["open", "--test-passphrase", "--key-file", &key], &path);
    let opinion = if output.status.success() { Take } else { Refuses };
    (opinion != *theirs).then(|| format!("cryptsetup: {opinion:?}: {}", String::from_utf8_lossy(&output.stderr)))
}

/// Which copy opened, and the warnings.
fn open(store: &Arc<dyn Store>) -> Result<(String, Vec<Warning>)> {
    let (_, header) = formats::open(store, Some("LUKS2"))?;
    let unlocked = header.unlock(&Unlock::with(&[passphrase("first")]))?;
    Ok((unlocked.facts.header.name().to_owned(), unlocked.warnings))
}

fn contents(store: &dyn Store) -> Vec<u8> {
    let mut all = vec![0; store.len() as usize];
    store.read_at(0, &mut all).expect("memory");
    all
}

#[test]
fn a_keyslot_that_is_damaged_does_not_keep_another_from_opening() {
    let Some(cryptsetup) = Cryptsetup::found() else { return };
    let mut image = Image(base(&cryptsetup));
    set(&mut image, "/keyslots/0/kdf", "type", json!("scrypt"));
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new(image.0));
    let (_, header) = formats::open(&store, None).expect("a good header");
    let unlocked = header.unlock(&Unlock::with(&[passphrase("second")])).expect("the other keyslot");
    assert_eq!(unlocked.facts.keyslot, Some(1));
    assert!(
        unlocked.warnings.iter().any(|w| w.what.contains("Keyslot 0 could not be tried")),
        "{:?}",
        unlocked.warnings
    );
    // With the passphrase of the damaged one, the error says that it was not tried.
    let error = header.unlock(&Unlock::with(&[passphrase("first")])).err().expect("it cannot be tried");
    assert!(matches!(error.kind, ErrorKind::WrongCredential(_)), "{error}");
    assert!(error.hint.as_deref().is_some_and(|h| h.contains("keyslot 0 (not supported")), "{error:?}");
}

#[test]
fn a_volume_that_was_cut_short_is_read_if_that_is_allowed() {
    let Some(cryptsetup) = Cryptsetup::found() else { return };
    let mut image = Image(base(&cryptsetup));
    set(&mut image, "/segments/1", "size", json!("1073741824"));
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new(image.0));
    let credentials = [passphrase("first")];
    let (_, header) = formats::open(&store, None).expect("a good header");
    let unlocked = header.unlock(&Unlock { truncated: true, ..Unlock::with(&credentials) }).expect("it opens");
    assert_eq!(unlocked.facts.size, 65_536 + 1_073_741_824);
    assert!(!unlocked.layout.segments()[1].writable && unlocked.warnings[0].what.starts_with("Read-only"));
}

/// A readable header is shown even if its volume cannot be opened because no store is that long.
#[test]
fn a_segment_that_is_too_long_for_any_store_is_shown() {
    let Some(cryptsetup) = Cryptsetup::found() else { return };
    let mut image = Image(base(&cryptsetup));
    image.json(|m| {
        m["segments"] = json!({"0": m["segments"]["0"]});
        m["segments"]["0"]["size"] = json!("18446744073709551104");
        m["digests"]["0"]["segments"] = json!(["0"]);
    });
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new(image.0));
    let (_, header) = formats::open(&store, None).expect("a good header");
    assert!(described(&*header).to_string().contains("18446744073709551104"));
    let credentials = [passphrase("first")];
    for truncated in [false, true] {
        let error = header.unlock(&Unlock { truncated, ..Unlock::with(&credentials) }).err();
        let error = error.unwrap_or_else(|| panic!("truncated: {truncated}: it opens"));
        assert!(matches!(error.kind, ErrorKind::Malformed { .. } | ErrorKind::Misuse(_)), "{error}");
    }
}

/// A header that was changed so that its data count as those of no cipher: what is there can be read, and nothing is written to it in
/// clear unless that is asked for.
#[test]
fn data_without_a_cipher_are_read_only() {
    let Some(cryptsetup) = Cryptsetup::found() else { return };
    let mut image = Image(base(&cryptsetup));
    for segment in ["/segments/0", "/segments/1"] {
        set(&mut image, segment, "encryption", json!("cipher_null-ecb"));
    }
    let credentials = [passphrase("first")];
    for write_unencrypted in [false, true] {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new(image.0.clone()));
        let (_, header) = formats::open(&store, None).expect("a good header");
        let with = Unlock { write_unencrypted, ..Unlock::with(&credentials) };
        let unlocked = header.unlock(&with).expect("it opens");
        assert_eq!(unlocked.warnings.len(), 1, "{:?}", unlocked.warnings);
        let volume = Volume::new(Arc::clone(&store), unlocked.layout);
        assert_eq!(volume.writable(), write_unencrypted);
        assert_eq!(volume.write_clobbering(512, &mut [7; 512]).is_ok(), write_unencrypted);
        assert_eq!(contents(&*store) == image.0, !write_unencrypted);
    }
}
