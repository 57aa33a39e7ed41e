//! Makes `claviger.h` of the sources beside it.

use std::path::{Path, PathBuf};

fn main() {
    let c = Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("c");
    for file in ["src", "cbindgen.toml"] {
        println!("cargo::rerun-if-changed={}", c.join(file).display());
    }
    let config = cbindgen::Config::from_file(c.join("cbindgen.toml")).expect("its options");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo says where")).join("claviger.h");
    let made = cbindgen::Builder::new().with_config(config).with_src(c.join("src/lib.rs")).generate();
    made.expect("a header").write_to_file(out);
}
