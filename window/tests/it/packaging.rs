//! What the desktop is told of the window.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::there;

const NAME: &str = "io.github.claviger.Claviger";

fn file(end: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("desktop").join(format!("{NAME}.{end}"))
}

fn passes(program: &str, words: &[&str], end: &str) {
    if there(program) {
        let output = Command::new(program).args(words).arg(file(end)).output().expect("it starts");
        let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && !said.contains("error"), "{program}: {said}");
    }
}

#[test]
fn the_desktops_files_are_valid() {
    passes("desktop-file-validate", &[], "desktop");
    passes("appstreamcli", &["validate", "--no-net"], "metainfo.xml");
}

/// Types that the window says it opens are those that it brings.
#[test]
fn every_type_is_defined() {
    let read = |end| std::fs::read_to_string(file(end)).expect("a file");
    let (desktop, types, metainfo) = (read("desktop"), read("xml"), read("metainfo.xml"));
    let named = desktop.lines().find_map(|line| line.strip_prefix("MimeType=")).expect("types");
    for name in named.split_terminator(';') {
        assert!(types.contains(&format!("type=\"{name}\"")), "{name}");
        assert!(metainfo.contains(&format!("<mediatype>{name}</mediatype>")), "{name}");
    }
    assert_eq!(named.split_terminator(';').count(), types.matches("<mime-type ").count());
}
