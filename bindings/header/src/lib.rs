//! The header of the library for C, as it should be.

/// What `bindings/c/claviger.h` is to be.
pub const HEADER: &str = include_str!(concat!(env!("OUT_DIR"), "/claviger.h"));

#[cfg(test)]
mod tests {
    use std::path::Path;

    /// With CLAVIGER_WRITE_HEADER in the environment it is written anew: `make bindings-header`.
    #[test]
    fn the_header_is_current() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("c").join("claviger.h");
        if std::env::var_os("CLAVIGER_WRITE_HEADER").is_some() {
            std::fs::write(&file, super::HEADER).expect("it can be written");
        }
        let committed = std::fs::read_to_string(&file).expect("the header");
        assert!(committed == super::HEADER, "{} is stale: make bindings-header", file.display());
    }
}
