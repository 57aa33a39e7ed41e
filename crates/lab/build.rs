//! Compresses the published figures: as the tables that people read and mend, they would be a fifth of the program.

use std::env;
use std::fs;
use std::path::Path;

use miniz_oxide::deflate;

const TABLES: &str = "data/published";

/// The slowest and smallest, as zlib counts.
const LEVEL: u8 = 9;

fn main() {
    println!("cargo::rerun-if-changed={TABLES}");
    println!("cargo::rerun-if-changed=build.rs");
    let out = env::var_os("OUT_DIR").expect("cargo sets it");
    for entry in fs::read_dir(TABLES).expect("the folder of the tables") {
        let path = entry.expect("a name").path();
        if path.extension().is_some_and(|extension| extension == "csv") {
            let table = fs::read(&path).expect("a table");
            let deflated = Path::new(&out).join(path.file_name().expect("a name")).with_extension("deflate");
            fs::write(deflated, deflate::compress_to_vec(&table, LEVEL)).expect("cargo's folder can be written to");
        }
    }
}
