//! Folders whose files are encrypted one by one: on this machine, in a volume, and in an image that is not encrypted.

use std::fs;
use std::process::Command;

use crate::common::*;
use claviger_testkit::tools;

/// An ext4 of 16 MiB with the files of `from`, which nothing encrypts.
fn ext4(folder: &Folder, name: &str, from: &str) -> Option<String> {
    let image = folder.str(name);
    fs::File::create(&image).and_then(|f| f.set_len(16 << 20)).expect("an image");
    tools::run(Command::new(tools::program("mkfs.ext4")?).args(["-q", "-d", from]).arg(&image));
    Some(image)
}

#[test]
fn files_of_an_image_that_nothing_encrypts_are_reached() {
    let folder = Folder::new();
    fs::create_dir_all(folder.path("from/inner")).expect("folders");
    fs::write(folder.path("from/inner/one"), "first").expect("a file");
    let Some(image) = ext4(&folder, "image", &folder.str("from")) else { return };
    let before = fs::read(&image).expect("an image");
    let listing = run(["ls", "--json", &image, "/inner"]).succeeds().json();
    let kind = listing["filesystem"]["kind"].as_str();
    assert_eq!((listing["entries"][0]["name"].as_str(), kind), (Some("one"), Some("ext4")), "{listing}");
    assert!(run(["tree", &image]).succeeds().text().contains("one"));
    assert_eq!(run(["cat", &image, "/inner/one"]).succeeds().out, b"first");
    run(["cp", "-r", &image, ":/inner", &folder.str("out")]).succeeds();
    assert_eq!(fs::read(folder.path("out/one")).expect("a copy"), b"first");
    // Whoever gives a password, or asks for bytes, believes that it is encrypted.
    run(["ls", "--password-file", &folder.password, &image]).fails(3, &["nothing in the folder shows a format"]);
    run(["ls", "--hash", "SHA-512", &image]).fails(3, &["not encrypted", "hash"]);
    run(["ls", "--format", "TrueCrypt", &image]).fails(3, &["TrueCrypt"]);
    run(["cat", &image]).fails(3, &[]);
    run(["info", &image]).fails(3, &[]);
    run(["cp", &image, &folder.password, ":/"]).fails(1, &["not encrypted"]);
    fs::create_dir(folder.path("dir")).expect("a folder");
    run(["mount", &image, &folder.str("dir")]).fails(3, &["not encrypted", "--raw"]);
    assert!(fs::read(&image).expect("an image") == before, "nothing was written");
}
