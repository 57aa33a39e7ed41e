//! The five floors of the engine: each knows only those below it.

use std::path::Path;

use claviger_testkit::floors;

/// From the ground up: bytes and what encrypts them; what lies in a volume, and what opens one; formats of folders; formats of volumes;
/// what joins formats.
const FLOORS: &[&[&str]] = &[
    &[
        "advice",
        "copied_text",
        "crc32c",
        "deadline",
        "edit",
        "error",
        "hex",
        "internal",
        "key_process",
        "little_endian",
        "memory",
        "shards",
        "store",
        "volume",
    ],
    &[
        "arrays",
        "clevis",
        "credential",
        "fido2",
        "filesystems",
        "logical_volumes",
        "parameters",
        "partitions",
        "private_keys",
        "spec",
        "tpm2",
        "trees",
        "verdict",
    ],
    &["file_formats"],
    &["formats"],
    &["copy_volume", "diagnosis", "fuzzing", "opening", "recovery"],
];

#[test]
fn no_floor_knows_one_above_it() {
    floors::check(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), FLOORS);
}
