//! Names and contents that lead to what nobody named: images that name other files, files that are called like places elsewhere,
//! places that are only read.

use std::fs;
use std::net::TcpListener;
use std::process::Command;

use crate::common::*;
use claviger_testkit::tools::{self, program};
use claviger_testkit::web::Web;

const DERIVATION: [&str; 4] = ["--kdf", "pbkdf2", "--iterations", "1000"];

/// An image, the scheme it is opened with, and what it names.
struct Evil {
    name: &'static str,
    scheme: &'static str,
    names: String,
}

/// Images of each format that has a way to name another file.
fn evil_images(folder: &Folder, qemu_img: &std::path::Path) -> Vec<Evil> {
    let victim = folder.str("victim");
    let create = |args: &[&str]| drop(tools::run(Command::new(qemu_img).args(["create", "-q", "-f"]).args(args)));
    let descriptor = |name: &str, extent: &str, parent: &str| {
        let text = format!(
            "# Disk DescriptorFile\nversion=1\nCID=12345678\nparentCID={parent}\ncreateType=\"monolithicFlat\"\n\
             parentFileNameHint=\"{victim}\"\nRW 2048 FLAT \"{extent}\" 0\nddb.adapterType = \"ide\"\n"
        );
        fs::write(folder.path(name), text).expect("written");
    };
    create(&["qcow2", "-b", &victim, "-F", "raw", &folder.str("backing.qcow2")]);
    create(&["qcow2", "-b", "victim", "-F", "raw", &folder.str("relative.qcow2")]);
    create(&["qed", "-b", &victim, "-F", "raw", &folder.str("backing.qed")]);
    let json = format!(r#"json:{{"driver":"raw","file":{{"driver":"file","filename":"{victim}"}}}}"#);
    create(&["qcow2", "-u", "-b", &json, "-F", "raw", &folder.str("json.qcow2"), "1M"]);
    create(&["qcow2", "-u", "-b", "nbd:127.0.0.1:9", "-F", "raw", &folder.str("nbd.qcow2"), "1M"]);
    // The data file is made by qemu-img; then it is somebody's.
    create(&[
        "qcow2",
        "-o",
        &format!("data_file={},data_file_raw=on", folder.str("data")),
        &folder.str("data.qcow2"),
        "1M",
    ]);
    fs::write(folder.path("data"), vec![8; 1 << 20]).expect("written");
    descriptor("absolute.vmdk", &victim, "ffffffff");
    descriptor("relative.vmdk", "victim", "ffffffff");
    descriptor("network.vmdk", "nbd:127.0.0.1:9", "ffffffff");
    create(&["vmdk", &folder.str("parent.vmdk"), "1M"]);
    create(&["vmdk", "-b", &folder.str("parent.vmdk"), "-F", "vmdk", &folder.str("child.vmdk")]);
    create(&["vpc", &folder.str("child.vpc"), "8M"]);
    differencing_vhd(folder);
    create(&["vhdx", &folder.str("child.vhdx"), "8M"]);
    differencing_vhdx(folder);
    let evil = |name, scheme, names: &str| Evil { name, scheme, names: names.to_owned() };
    vec![
        evil("backing.qcow2", "qcow2", &victim),
        evil("relative.qcow2", "qcow2", "\"victim\""),
        evil("json.qcow2", "qcow2", "json:"),
        evil("nbd.qcow2", "qcow2", "nbd:127.0.0.1:9"),
        evil("data.qcow2", "qcow2", &folder.str("data")),
        evil("backing.qed", "qed", &victim),
        evil("absolute.vmdk", "vmdk", &victim),
        evil("relative.vmdk", "vmdk", "\"victim\""),
        evil("network.vmdk", "vmdk", "nbd:127.0.0.1:9"),
        evil("child.vmdk", "vmdk", "parent.vmdk"),
        evil("child.vpc", "vpc", "parent disk"),
        evil("child.vhdx", "vhdx", "without a name"),
    ]
}

/// Turns the dynamic disk into one with a parent (Virtual Hard Disk Image Format Specification).
fn differencing_vhd(folder: &Folder) {
    let mut image = fs::read(folder.path("child.vpc")).expect("an image");
    let last = image.len() - 512;
    for at in [0, last] {
        image[at + 60..at + 64].copy_from_slice(&4u32.to_be_bytes());
        image[at + 64..at + 68].fill(0);
        let sum: u32 = image[at..at + 512].iter().map(|byte| u32::from(*byte)).sum();
        image[at + 64..at + 68].copy_from_slice(&(!sum).to_be_bytes());
    }
    for (n, unit) in "parent disk".encode_utf16().enumerate() {
        image[512 + 64 + 2 * n..][..2].copy_from_slice(&unit.to_be_bytes());
    }
    // The header's sum counts, too.
    image[512 + 36..512 + 40].fill(0);
    let sum: u32 = image[512..1536].iter().map(|byte| u32::from(*byte)).sum();
    image[512 + 36..512 + 40].copy_from_slice(&(!sum).to_be_bytes());
    fs::write(folder.path("child.vpc"), image).expect("written");
}

/// Says in the file parameters that there is a parent ([MS-VHDX], section 2.6.2.1).
fn differencing_vhdx(folder: &Folder) {
    const PARAMETERS: [u8; 16] = *b"\x37\x67\xa1\xca\x36\xfa\x43\x4d\xb3\xb6\x33\xf0\xaa\x44\xe7\x6b";
    let mut image = fs::read(folder.path("child.vhdx")).expect("an image");
    let find = |bytes: &[u8]| image.windows(bytes.len()).position(|window| window == bytes).expect("it is there");
    let (metadata, entry) = (find(b"metadata"), find(&PARAMETERS));
    let item = u32::from_le_bytes(image[entry + 16..entry + 20].try_into().expect("four bytes")) as usize;
    image[metadata + item + 4] |= 2;
    fs::write(folder.path("child.vhdx"), image).expect("written");
}

#[test]
fn images_that_name_other_files_are_refused_and_neither_is_touched() {
    let (Some(qemu_img), Some(_)) = (program("qemu-img"), program("qemu-nbd")) else { return };
    let folder = Folder::new();
    // A volume, so that a verb that got there would continue.
    let victim = folder.luks2("victim");
    let new = folder.str("new");
    fs::write(&new, "another").expect("a file");
    let pw = folder.password.clone();
    let images = evil_images(&folder, &qemu_img);
    let kept = [&*victim, &*folder.str("data"), &*folder.str("parent.vmdk")].map(str::to_owned);
    let bytes = |path: &String| fs::read(path).expect("a file");
    let before: Vec<_> = kept.iter().map(bytes).collect();
    for Evil { name, scheme, names } in images {
        let image = folder.str(name);
        let was = bytes(&image);
        let place = format!("{scheme}:{image}");
        let add = ["keyslot", "add", "--password-file", &pw, "--new-password-file", &new, &place];
        for verb in [
            vec!["identify", &place],
            vec!["info", "--password-file", &pw, &place],
            vec!["ls", "--password-file", &pw, &place],
            add.into_iter().chain(DERIVATION).collect(),
            vec!["create", "--force", "--yes", "--format", "LUKS2", "--quick", "--password-file", &pw, &place],
        ] {
            let done = run(&verb);
            assert!(done.code == 5 && done.err.contains(&names), "{verb:?}: {done:?}");
            assert!(done.err.contains("refers to another file"), "{verb:?}: {done:?}");
        }
        // The same by its content.
        for verb in [&["identify"][..], &["info", "--password-file", &pw], &["ls", "--password-file", &pw]] {
            let done = run(verb.iter().copied().chain([&*image]));
            assert!(done.code == 5 && done.err.contains(&names), "{verb:?}: {done:?}");
            assert!(done.err.contains("refers to another file"), "{verb:?}: {done:?}");
        }
        let explained = run(["explain", "--without-password", &image]).fails(5, &[]).text();
        assert!(explained.contains("refers to another file"), "{explained}");
        run(add[..6].iter().copied().chain(DERIVATION).chain([&*image])).fails(1, &["only read", &place]);
        assert!(bytes(&image) == was, "{name}");
    }
    assert!(kept.iter().map(bytes).eq(before), "what they name is as it was");
}

#[test]
fn images_of_each_kind_are_made_opened_and_changed_and_lead_to_themselves() {
    let (Some(qemu_img), Some(_)) = (program("qemu-img"), program("qemu-nbd")) else { return };
    let folder = Folder::new();
    let (pw, new) = (folder.password.clone(), folder.str("new"));
    fs::write(&new, "another").expect("a file");
    for format in ["qcow2", "vmdk", "vhdx", "vpc", "vdi", "qed", "parallels"] {
        let image = folder.str(&format!("it's, an \"image\".{format}"));
        tools::run(Command::new(&qemu_img).args(["create", "-q", "-f", format, &image, "8M"]));
        let place = format!("{format}:{image}");
        let create = ["create", "--force", "--yes", "--quick", "--format", "LUKS2", "--offset", "1M"];
        let small = ["--metadata-size", "16K", "--keyslots-size", "512K", "--password-file", &pw, &place];
        run(create.into_iter().chain(DERIVATION).chain(small)).succeeds();
        let add = ["keyslot", "add", "--password-file", &pw, "--new-password-file", &new, &place];
        run(add.into_iter().chain(DERIVATION)).succeeds();
        run(["verify", "--password-file", &new, &place]).succeeds();
        let identified = run(["identify", &image]).text();
        assert!(identified.contains("the disk in it, 8 MiB: LUKS2"), "{identified}");
        let explained = run(["explain", "--without-password", &image]).fails(2, &[]).text();
        assert!(explained.contains(&format!("claviger info '{format}:")), "{explained}");
        let opened = run(["explain", "--password-file", &pw, &image]).succeeds().text();
        let mounts = |line: &str| line.contains("claviger mount") && line.contains(&format!("'{format}:"));
        assert!(opened.lines().any(mounts), "{opened}");
        assert!(![explained, opened].iter().any(|text| text.contains("claviger explain")));
    }
}

#[test]
fn a_file_that_is_called_like_another_place_is_not_taken_for_that() {
    let folder = Folder::new();
    let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
    listener.set_nonblocking(true).expect("it waits for nobody");
    let port = listener.local_addr().expect("an address").port();
    let volume = folder.luks2("v");
    let names = [
        format!("qcow2:nbd:127.0.0.1:{port}"),
        format!("http:127.0.0.1:{port}"),
        "vmdk:x".into(),
        "ssh:h".into(),
        "s3:b".into(),
        "rbd:p".into(),
    ];
    for name in &names {
        fs::copy(&volume, folder.path(name)).expect("copied");
    }
    // nbd://127.0.0.1:PORT as a path.
    let deep = format!("nbd:/127.0.0.1:{port}");
    fs::create_dir(folder.path("nbd:")).and_then(|()| fs::copy(&volume, folder.path(&deep))).expect("copied");
    let here = |args: &[&str]| done(claviger().args(args).current_dir(folder.path("")).output().expect("it starts"));
    for name in names.iter().cloned().chain([format!("nbd://127.0.0.1:{port}")]) {
        here(&["identify", &name]).fails(1, &["a file here has this name", &format!("./{name}")]);
        here(&["verify", "--password-file", &folder.password, &name]).fails(1, &["a file here has this name"]);
        here(&["identify", &format!("./{name}")]).succeeds();
    }
    // A file that is not there names no protocol either.
    here(&["identify", &format!("qcow2:nbd:localhost:{port}")]).fails(6, &["No such file"]);
    assert!(listener.accept().is_err(), "nobody has connected");
}

#[test]
fn nothing_is_written_over_http_and_nobody_is_asked() {
    let Some(_) = program("nbdkit") else { return };
    let folder = Folder::new();
    let volume = folder.luks2("v");
    let Some(web) = Web::start(&folder.path("web"), None) else { return };
    let object = web.object("v");
    fs::copy(&volume, &object).expect("copied");
    let before = fs::read(&object).expect("a file");
    let (place, new, pw) = (format!("http://127.0.0.1:{}/v", web.port), folder.str("new"), &*folder.password);
    fs::write(&new, "another").expect("a file");
    let mount_point = folder.str("m");
    fs::create_dir(&mount_point).expect("a folder");
    // No password is given, and there is no terminal: a verb that asked would fail otherwise.
    for verb in [
        vec!["mount", &place, &mount_point],
        vec!["serve", &place],
        vec!["keyslot", "add", &place],
        vec!["keyslot", "remove", "--slot", "0", &place],
        vec!["create", "--force", "--format", "LUKS2", &place],
        vec!["reencrypt", &place],
        vec!["header", "restore", "--from", &volume, &place],
    ] {
        let done = run(&verb);
        assert!(done.code == 6 && done.err.contains("is read-only"), "{verb:?}: {done:?}");
    }
    run(["verify", "--password-file", pw, &place]).succeeds();
    run(["header", "backup", &place, &folder.str("backup")]).succeeds();
    assert!(web.asked().lines().all(|line| line.starts_with("GET ") || line.starts_with("HEAD ")), "{}", web.asked());
    assert!(fs::read(&object).expect("a file") == before);
}

/// A row of one's own is behind the same walls.
#[test]
fn a_row_of_ones_own_that_listens_is_refused() {
    let Some(_) = program("nbdkit") else { return };
    let folder = Folder::new();
    let port = tpm::free_port();
    let row = format!(
        "[tape]\nform = \"{{x}}\"\nprogram = \"sh\"\narguments = [\"-c\", \"unset LISTEN_FDS LISTEN_PID; exec nbdkit -f -i 127.0.0.1 -p {port} memory 1M\"]\n"
    );
    fs::create_dir(folder.path("claviger")).expect("a folder");
    fs::write(folder.path("claviger/helpers.toml"), row).expect("written");
    let mut command = claviger();
    command.args(["identify", "tape:x"]).env("XDG_CONFIG_HOME", folder.path(""));
    done(command.output().expect("it starts")).fails(6, &["tape:x", "listen on its own socket"]);
    assert!(std::net::TcpStream::connect(("127.0.0.1", port)).is_err());
}

/// A disk image or an archive is named, with commands that read it. No command that writes into it is suggested.
#[test]
fn images_and_archives_are_told_from_volumes() {
    let folder = Folder::new();
    let filler = |start: &[u8], end: &[u8]| [start, &b"0123456789abcdef".repeat(8192)[..], end].concat();
    let mut aff4 = b"PK\x03\x04".to_vec();
    aff4.resize(30, 0);
    aff4.extend(b"container.description");
    let trailer = |mark: &[u8]| [mark, &vec![0; 512 - mark.len()]].concat();
    for (name, bytes, words) in [
        (
            "d.Ex01",
            filler(b"EVF2\x0d\x0a\x81\0\x02", b""),
            &["ewfmount", "d.Ex01 FOLDER", "FOLDER/ewf1", "read-only"][..],
        ),
        ("d.L01", filler(b"LVF\x09\x0d\x0a\xff\0\x01", b""), &["EnCase", "not a disk"]),
        ("d.aff", filler(b"AFF10\x0d\x0a\0", b""), &["affuse", "FOLDER/d.raw"]),
        ("d.aff4", filler(&aff4, b""), &["AFF4"]),
        ("d.dmg", filler(b"", &trailer(b"koly\0\0\0\x04\0\0\x02\0")), &["DMG"]),
        ("d.gz", filler(b"\x1f\x8b\x08\0", b""), &["gzip -dc", "> COPY"]),
        ("d.xz", filler(b"\xfd7zXZ\0", b""), &["xz -dc", "> COPY"]),
        ("d.zip", filler(b"PK\x03\x04", b""), &["unzip -p", "> COPY"]),
    ] {
        fs::write(folder.path(name), bytes).expect("written");
        let path = folder.str(name);
        let explained = run(["explain", "--without-password", &path]).text();
        let identified = run(["identify", &path]).text();
        assert!(!explained.contains("claviger explain"), "{name}: {explained}");
        for text in [explained, identified] {
            assert!(words.iter().all(|word| text.contains(word)), "{name}: {text}");
            assert!(!text.contains("restore") && !text.contains("repair"), "{name}: {text}");
        }
    }
}

#[test]
fn images_of_reports_are_read_or_led_through_their_helper() {
    let Some(case) = tools::Case::unpack("containers/vhdx-advice.tar.xz") else { return };
    let image = case.path().join("x.vhdx").display().to_string();
    let text = run(["explain", "--without-password", &image]).text();
    assert!(text.contains(&format!("vhdx:{image}")) && !text.contains("claviger explain"), "{text}");
    let Some(case) = tools::Case::unpack("containers/e01-advice.tar.xz") else { return };
    let image = case.path().join("d.E01").display().to_string();
    for verb in [&["explain", "--without-password", &*image][..], &["identify", &image]] {
        let text = run(verb).text();
        assert!(text.contains("a forensic image of EnCase") && !text.contains("restore"), "{text}");
        assert!(!text.contains("ewf:") && !text.contains("ewfmount"), "nothing else is needed to read it: {text}");
    }
}
