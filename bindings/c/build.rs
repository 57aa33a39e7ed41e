//! The name that programs ask for which are linked with the shared library: it changes with what they could no longer use.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libclaviger.so.0");
}
