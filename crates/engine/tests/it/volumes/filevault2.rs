//! FileVault 2, on volumes of the testkit's maker, which cryptsetup, the kernel and libfvde read, too.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::support::{all_of, described, noise, passphrase, read_only, run_in_kernel, shared, to_file};
use claviger_engine::formats::filevault2::FILEVAULT2;
use claviger_engine::store::MemoryStore;
use claviger_engine::volume::Mapping;
use claviger_engine::{
    Credential, Error, ErrorKind, Format, Result, Secret, Store, Unlock, Unlocked, Verdict, Volume, filesystems,
    formats,
};
use claviger_testkit::filevault2::{self, BLOCK, DATA, Image, Recipe, User, number};
use claviger_testkit::mounts::Mount;
use claviger_testkit::tools;

const PASSPHRASE: &str = "a passphrase";
const RECOVERY_KEY: &str = "35AJ-AC98-TI1H-N4M3-HDUQ-UQFG";

const USERS: &[User<'_>] = &[
    User { passphrase: PASSPHRASE, name: "Ann &amp; Bob", iterations: 1001 },
    User { passphrase: "p\u{e4}ssword", name: "", iterations: 2002 },
    User { passphrase: RECOVERY_KEY, name: "Recovery", iterations: 3003 },
];

/// What looks like the beginning of HFS+, in `blocks` blocks.
fn plaintext(blocks: usize) -> Vec<u8> {
    let mut bytes = noise(blocks * BLOCK, 5);
    bytes[..0x400].fill(0);
    bytes[0x400..0x404].copy_from_slice(b"HX\0\x05");
    bytes
}

/// Every kind that there is: in one part, in several that are in another order on the disk, with its beginning in a block of its
/// own, in one or several parts, and with a compressed encryption context.
fn recipes(plaintext: &[u8]) -> Vec<(&'static str, Recipe<'_>)> {
    let ordinary = Recipe::new(USERS, plaintext);
    let parts = vec![(3, DATA + 40), (1, DATA + 50), (12, DATA)];
    vec![
        ("in one part", ordinary.clone()),
        ("in three parts", Recipe { parts, ..ordinary.clone() }),
        ("of a system", Recipe { beginning: DATA, parts: vec![(16, 0)], ..ordinary.clone() }),
        ("of a system, in two parts", Recipe { beginning: DATA, parts: vec![(6, 0), (10, 20)], ..ordinary.clone() }),
        ("compressed", Recipe { compressed: true, ..ordinary.clone() }),
        ("on its way", Recipe { conversion: "Converting", seed: 7, ..ordinary }),
    ]
}

fn ordinary() -> (Vec<u8>, Image) {
    let plaintext = plaintext(4);
    let image = Recipe::new(USERS, &plaintext).make();
    (plaintext, image)
}

fn in_memory(bytes: &[u8]) -> Arc<dyn Store> {
    shared(MemoryStore::new(bytes.to_vec()))
}

fn unlock(bytes: &[u8], with: &Unlock<'_>) -> Result<Unlocked> {
    FILEVAULT2.open(&in_memory(bytes))?.unlock(with)
}

/// The plaintext of a volume that is opened with one credential.
fn opened(bytes: &[u8], credential: Credential) -> Result<Vec<u8>> {
    let unlocked = unlock(bytes, &Unlock::with(&[credential]))?;
    Ok(all_of(&Volume::new(in_memory(bytes), unlocked.layout)))
}

fn volume_key(bytes: &[u8]) -> Credential {
    Credential::VolumeKey(Secret::copy_from(bytes))
}

fn refused(bytes: &[u8]) -> Error {
    opened(bytes, passphrase(PASSPHRASE)).map(drop).expect_err("it does not open")
}

#[test]
fn each_passphrase_and_key_opens_each_kind() {
    let plaintext = plaintext(16);
    for (what, recipe) in recipes(&plaintext) {
        let image = recipe.make();
        let bytes = image.sealed();
        let typed = ["35ajac98ti1hn4m3hduquqfg", "35aj ac98 ti1h n4m3 hduq uqfg", RECOVERY_KEY];
        let phrases = [PASSPHRASE, "p\u{e4}ssword"].into_iter().chain(typed).map(passphrase);
        let keys = [volume_key(&image.volume_key), volume_key(&image.volume_key[..16])];
        for credential in phrases.chain(keys) {
            let opened = opened(&bytes, credential).unwrap_or_else(|e| panic!("{what}: {e}"));
            assert!(opened == plaintext, "{what}");
        }
        assert!(matches!(FILEVAULT2.identify(&*in_memory(&bytes)), Ok(Verdict::Yes(_))), "{what}");
        let (format, _) = formats::open(&in_memory(&bytes), None).expect("it is found");
        assert_eq!(format.name(), "FileVault2");
    }
    assert_eq!(formats::by_name("filevault-2").expect("hyphens do not count").name(), "FileVault2");
}

#[test]
fn what_is_known_of_it_is_told_and_nothing_secret() {
    let plaintext = plaintext(16);
    for (what, recipe) in recipes(&plaintext) {
        let image = recipe.make();
        let bytes = image.sealed();
        let store = in_memory(&bytes);
        let header = FILEVAULT2.open(&store).expect("a header");
        let about = described(&*header);
        let uuid = |bytes| filevault2::text(bytes).to_lowercase();
        assert_eq!(about["physical_volume"]["uuid"], uuid(&image.physical));
        assert_eq!(about["logical_volume"]["uuid"], uuid(&image.logical));
        assert_eq!(about["logical_volume"]["family"], uuid(&image.family));
        assert_eq!(about["logical_volume"]["name"], "Test & Volume");
        assert_eq!(about["logical_volume"]["size"], 16 * BLOCK as u64);
        let context = &about["encryption_context"];
        assert_eq!(
            (context["volume_keys"].as_u64(), context["conversion"].as_str()),
            (Some(1), Some(recipe.conversion))
        );
        for (told, user) in context["users"].as_array().expect("users").iter().zip(USERS) {
            assert_eq!(told["name"].as_str().unwrap_or_default(), user.name.replace("&amp;", "&"));
            assert_eq!(
                (&told["kdf"]["iterations"], &told["user_type"]),
                (&user.iterations.into(), &"0x10000001".into())
            );
        }
        let digits: String = image.volume_key[..16].iter().map(|byte| format!("{byte:02x}")).collect();
        assert!(!about.to_string().contains(&digits), "{what}");

        for (credential, opened_by, iterations) in [
            (passphrase(PASSPHRASE), "user Ann & Bob", 1001),
            (passphrase("p\u{e4}ssword"), "user 1", 2002),
            (passphrase(RECOVERY_KEY), "user Recovery", 3003),
            (volume_key(&image.volume_key), "volume key", 0),
        ] {
            let unlocked = header.unlock(&Unlock::with(&[credential])).expect("it opens");
            let facts = unlocked.facts;
            assert_eq!((facts.format, facts.opened_by.as_deref()), ("FileVault2", Some(opened_by)));
            assert_eq!((facts.cipher.as_str(), facts.mode.as_str(), facts.key_bits), ("aes", "xts-plain64", 256));
            assert_eq!((facts.size, facts.sector_size, facts.iterations), (16 * BLOCK as u64, 512, iterations));
            assert_eq!(facts.uuid, Some(uuid(&image.logical)));
            assert_eq!(facts.label.as_deref(), Some("Test & Volume"));
            assert!(unlocked.recognised, "{what}");
            assert_eq!(unlocked.warnings.len(), usize::from(recipe.conversion != "Complete"), "{what}");
            let volume = Volume::new(Arc::clone(&store), unlocked.layout);
            assert!(volume.write_clobbering(0, &mut [0; 512]).is_err(), "it is only read");
            let found = filesystems::detect(&volume).expect("it can be read").expect("a file system");
            assert_eq!(found.kind.name(), "HFS+");
        }
    }
}

#[test]
fn the_kernel_has_words_for_it() {
    let plaintext = plaintext(16);
    let (_, recipe) = recipes(&plaintext).swap_remove(1);
    let image = recipe.make();
    let credentials = [passphrase(PASSPHRASE)];
    let with = Unlock { for_kernel: true, ..Unlock::with(&credentials) };
    let unlocked = unlock(&image.sealed(), &with).expect("it opens");
    let mapping = Mapping::of(&unlocked.layout).expect("words for it");
    let parts: Vec<_> = mapping.parts.iter().map(|p| (p.len, p.stored_at, p.layers[0].sectors.iv_offset)).collect();
    let block = BLOCK as u64;
    let expected =
        [(3, DATA + 40, 0), (1, DATA + 50, 24), (12, DATA, 32)].map(|(n, at, iv)| (n * block, at * block, iv));
    assert_eq!((mapping.kind, parts), ("FVAULT2", expected.to_vec()));
    let layer = &mapping.parts[0].layers[0];
    assert!(layer.specification == "aes-xts-plain64" && layer.key.same_as(&image.volume_key));
    assert!(mapping.parts.iter().all(|part| !part.writable));
    assert!(Mapping::of(&unlock(&image.sealed(), &Unlock::with(&credentials)).expect("it opens").layout).is_none());
}

/// The rest of the output line that begins with this word and a colon.
fn told<'a>(output: &'a str, word: &str) -> &'a str {
    let line = output.lines().find_map(|line| line.strip_prefix(word)?.strip_prefix(':'));
    line.unwrap_or_else(|| panic!("no {word} in {output}")).trim()
}

#[test]
fn cryptsetup_reads_the_same_from_the_metadata() {
    let Some(cryptsetup) = tools::program("cryptsetup") else { return };
    let plaintext = plaintext(16);
    let key = to_file(PASSPHRASE.as_bytes());
    // It knows no compressed contexts.
    for (what, recipe) in recipes(&plaintext).into_iter().filter(|(_, recipe)| !recipe.compressed) {
        let image = recipe.make();
        let file = to_file(&image.sealed());
        let folder = tempfile::tempdir().expect("a folder");
        let to = folder.path().join("key");
        let dump = |args: &[&str]| {
            let mut command = Command::new(&cryptsetup);
            command.args(["fvault2Dump", "-q", "--key-file"]).arg(key.path()).args(args).arg(file.path());
            String::from_utf8_lossy(&tools::run(command.env("LC_ALL", "C")).stdout).into_owned()
        };
        let output = dump(&[]);
        let first = (recipe.parts[0].1 * BLOCK as u64).to_string();
        for (word, value) in [
            ("Physical volume UUID", filevault2::text(&image.physical).to_lowercase()),
            ("Family UUID", filevault2::text(&image.family).to_lowercase()),
            ("Logical volume offset", first + " [bytes]"),
            ("Logical volume size", format!("{} [bytes]", plaintext.len())),
            ("PBKDF2 iterations", "1001".to_owned()),
        ] {
            assert_eq!(told(&output, word), value, "{what}");
        }
        dump(&["--dump-volume-key", "--volume-key-file", to.to_str().expect("UTF-8")]);
        assert_eq!(std::fs::read(&to).expect("the key"), image.volume_key, "{what}");
    }
}

#[test]
fn the_kernel_reads_the_same_data() {
    if tools::program("cryptsetup").is_none() {
        return;
    }
    let key = to_file(PASSPHRASE.as_bytes());
    let plaintexts = [16, 1, 300].map(plaintext);
    let sealed = plaintexts.each_ref().map(|plaintext| to_file(&Recipe::new(USERS, plaintext).make().sealed()));
    let raw = plaintexts.each_ref().map(|plaintext| to_file(plaintext));
    let paths: Vec<&Path> = sealed.iter().map(|file| file.path()).collect();
    run_in_kernel(&paths, |i, device| {
        let (key, raw) = (key.path().display(), raw[i].path().display());
        format!(
            "cryptsetup open --type fvault2 --readonly --key-file {key} /dev/{device} v\ncmp /dev/mapper/v {raw}\n\
             cryptsetup close v\n"
        )
    });
    for (file, plaintext) in sealed.iter().zip(&plaintexts) {
        let store = read_only(file.path());
        let unlocked = FILEVAULT2.open(&store).and_then(|h| h.unlock(&Unlock::with(&[passphrase(PASSPHRASE)])));
        assert!(all_of(&Volume::new(store, unlocked.expect("it opens").layout)) == *plaintext);
    }
}

#[test]
fn libfvde_reads_the_same_data() {
    let (Some(fvdemount), Some(())) = (tools::program("fvdemount"), tools::root()) else { return };
    let plaintext = plaintext(16);
    // Debian's version knows neither several parts nor compressed contexts.
    let known = |recipe: &Recipe<'_>| recipe.parts.len() == 1 && !recipe.compressed;
    for (what, recipe) in recipes(&plaintext).into_iter().filter(|(_, recipe)| known(recipe)) {
        let image = recipe.make();
        let file = to_file(&image.sealed());
        let folder = tempfile::tempdir().expect("a folder");
        let key: String = image.volume_key[..16].iter().map(|byte| format!("{byte:02x}")).collect();
        for args in [["-p", PASSPHRASE], ["-r", RECOVERY_KEY], ["-k", &key]] {
            let mounted = Mount::on(folder.path());
            tools::run(Command::new(&fvdemount).args(args).arg(file.path()).arg(folder.path()));
            assert!(mounted.wait(), "fvdemount mounts");
            let read = std::fs::read(folder.path().join("fvde1"));
            assert!(read.expect("the volume") == plaintext, "{what} {}", args[0]);
        }
    }
}

#[test]
fn each_kind_of_refusal_is_told_apart() {
    let (_, image) = ordinary();
    let bytes = image.sealed();
    let wrong = |credential| opened(&bytes, credential).map(drop).expect_err("it is the wrong one");
    for text in ["", "another", "35AJ-AC98-TI1H-N4M3-HDUQ-UQFH", "A passphrase"] {
        let error = wrong(passphrase(text));
        assert!(matches!(&error.kind, ErrorKind::WrongCredential(what) if what.contains("3 users")), "{text}: {error}");
    }
    let mut other = image.volume_key;
    other[31] ^= 1;
    for key in [&other[..], &other[..15], &[], &[7; 64]] {
        assert!(matches!(wrong(volume_key(key)).kind, ErrorKind::WrongCredential(_)), "{} bytes", key.len());
    }
    // One half of the key yields the other half. Only the decrypted data show whether it is right.
    let unlocked = unlock(&bytes, &Unlock::with(&[volume_key(&[7; 16])])).expect("anything opens");
    assert!(!unlocked.recognised);
    let keyfile = Credential::Keyfile(Secret::copy_from(b"x"));
    assert!(matches!(wrong(keyfile).kind, ErrorKind::CredentialKind { format: "FileVault2", kind: "keyfile" }));
    let two = [passphrase(PASSPHRASE), passphrase(PASSPHRASE)];
    assert!(matches!(unlock(&bytes, &Unlock::with(&two)).map_err(|e| e.kind), Err(ErrorKind::Misuse(_))));
    assert!(matches!(unlock(&bytes, &Unlock::with(&[])).map_err(|e| e.kind), Err(ErrorKind::Misuse(_))));

    let edited = |edit: fn(&mut Image)| {
        let mut image = image.clone();
        edit(&mut image);
        refused(&image.sealed())
    };
    let unsupported: [Refused; 6] = [
        ("version 2", |image| number(&mut image.header, 8, 2, 2)),
        ("32-byte key", |image| number(&mut image.header, 168, 4, 32)),
        ("without passphrases", |image| {
            replace(image.block(0x0019), "PassphraseWrappedKEKStruct", "PassphraseWrappedKEKStrukt")
        }),
        ("without an AES-wrapped volume key", |image| {
            replace(image.block(0x0019), "KEKWrappedVolumeKeyStruct", "KEKWrappedVolumeKeyStrukt")
        }),
        ("several disks", |image| number(image.block(0x0305), 72 + 32 + 6, 2, 1)),
        ("no logical volume", |image| number(image.block(0x001a), 10, 2, 0x1b)),
    ];
    for (what, edit) in unsupported {
        let error = edited(edit);
        assert!(
            matches!(&error.kind, ErrorKind::Unsupported { .. }) && error.to_string().contains(what),
            "{what}: {error}"
        );
    }
    let malformed: [Refused; 7] = [
        ("it is 0", |image| number(&mut image.header, 96, 4, 0)),
        ("not a valid size", |image| replace(image.block(0x001a), ">0x4000<", ">0x4001<")),
        ("it has no size", |image| replace(image.block(0x001a), "lv.size", "lv.sise")),
        ("UUID of its family", |image| {
            replace(image.block(0x001a), "lv.familyUUID</key><string>", "lv.familyUUID</key><string>X")
        }),
        ("do not fit", |image| number(image.block(0x0305), 64, 4, 204)),
        ("reaches beyond", |image| number(image.block(0x001a), 128, 4, 8190)),
        ("cut short", |image| replace(image.block(0x001a), ">0x4000<", ">0xfe00<")),
    ];
    for (what, edit) in malformed {
        let error = edited(edit);
        assert!(
            matches!(&error.kind, ErrorKind::Malformed { .. }) && error.to_string().contains(what),
            "{what}: {error}"
        );
    }
}

/// A part of the message, and the change that leads to it.
type Refused = (&'static str, fn(&mut Image));

/// Replaces text in a block. What follows moves.
fn replace(block: &mut Vec<u8>, what: &str, with: &str) {
    let len = block.len();
    let mut from = 0;
    let mut replaced = 0;
    while let Some(at) = block[from..].windows(what.len()).position(|window| window == what.as_bytes()) {
        block.splice(from + at..from + at + what.len(), with.bytes());
        from += at + with.len();
        replaced += 1;
    }
    assert!(replaced > 0, "{what} is there");
    block.resize(len, 0);
}

#[test]
fn copies_stand_in_for_what_is_damaged() {
    let (plaintext, image) = ordinary();
    let bytes = image.sealed();
    let with_damage = |ranges: &[(usize, usize)]| {
        let mut bytes = bytes.clone();
        for (at, len) in ranges {
            bytes[*at..at + len].iter_mut().for_each(|byte| *byte = !*byte);
        }
        bytes
    };
    let still_opens = |ranges: &[(usize, usize)], word: &str| {
        let bytes = with_damage(ranges);
        let unlocked =
            unlock(&bytes, &Unlock::with(&[passphrase(PASSPHRASE)])).unwrap_or_else(|e| panic!("{word}: {e}"));
        assert!(unlocked.warnings.iter().any(|w| w.to_string().contains(word)), "{word}: {:?}", unlocked.warnings);
        assert!(all_of(&Volume::new(in_memory(&bytes), unlocked.layout)) == plaintext, "{word}");
    };
    // Each byte of the header that counts, and all of it.
    for at in (0..512).step_by(7).chain([88, 89]) {
        still_opens(&[(at, 1)], "its copy at the end");
    }
    still_opens(&[(0, 512)], "its copy at the end");
    let labels = [0, 1, 2, 3].map(|label| (Image::label_place(label), 100));
    still_opens(&labels[..1], "label 2 was used");
    still_opens(&labels[..3], "label 4 was used");
    let blocks = image.blocks.len();
    for block in 0..blocks {
        still_opens(&[(Image::place(block, 0) + 4000, 1)], "1 metadata blocks are damaged");
    }
    still_opens(&[(Image::place(0, 0), 8192 * blocks)], "their second copies");
    // A block that does not matter, in both copies.
    let both = |block| [(Image::place(block, 0), 8192), (Image::place(block, 1), 8192)];
    still_opens(&both(0), "damaged in all copies");

    let error = refused(&with_damage(&labels));
    assert!(matches!(&error.kind, ErrorKind::Malformed { field: "label", .. }), "{error}");
    let all = [(Image::place(0, 0), 8192 * blocks), (Image::place(0, 1), 8192 * blocks)];
    let error = refused(&with_damage(&all));
    assert!(matches!(&error.kind, ErrorKind::Malformed { field: "encrypted metadata", .. }), "{error}");
    let error = refused(&with_damage(&[(0, 512), (bytes.len() - 512, 512)]));
    assert!(matches!(&error.kind, ErrorKind::NotThisFormat(_)), "{error}");
    let error = refused(&with_damage(&[(0, 1), (bytes.len() - 512, 1)]));
    assert!(matches!(&error.kind, ErrorKind::Malformed { field: "checksum", .. }), "{error}");
    // The copy at the end of a partition is not one of the disk that the partition is the last of.
    let disk = [&vec![0; 4096][..], &bytes].concat();
    assert!(matches!(FILEVAULT2.identify(&*in_memory(&disk)), Ok(Verdict::No(_))));
}

/// Blocks that were given up do not count, nor do older ones.
#[test]
fn of_several_blocks_the_last_one_counts() {
    let (plaintext, image) = ordinary();
    let mut newer = image.clone();
    let mut old = newer.blocks.clone();
    old.iter_mut().for_each(|block| block[64..].iter_mut().for_each(|byte| *byte ^= 0x20));
    let wiped = [filevault2::WIPED, &old[0][8..]].concat();
    newer.blocks = [old, newer.blocks].concat();
    assert!(opened(&newer.sealed(), passphrase(PASSPHRASE)).expect("it opens") == plaintext);
    newer.blocks.truncate(image.blocks.len());
    assert!(opened(&newer.sealed(), passphrase(PASSPHRASE)).is_err());
    newer = image;
    newer.blocks.insert(1, wiped);
    let unlocked = unlock(&newer.sealed(), &Unlock::with(&[passphrase(PASSPHRASE)])).expect("it opens");
    assert!(unlocked.warnings.is_empty());
}

#[test]
fn what_is_cut_short_opens_only_if_asked_to() {
    let (plaintext, image) = ordinary();
    let bytes = image.sealed();
    let cut = &bytes[..DATA as usize * BLOCK + 3 * BLOCK];
    assert!(matches!(refused(cut).kind, ErrorKind::Malformed { .. }));
    let credentials = [passphrase(PASSPHRASE)];
    let with = Unlock { truncated: true, ..Unlock::with(&credentials) };
    let unlocked = unlock(cut, &with).expect("it opens");
    assert!(unlocked.warnings.iter().any(|w| w.to_string().contains("cut short")));
    let volume = Volume::new(in_memory(cut), unlocked.layout);
    let mut there = vec![0; 3 * BLOCK];
    volume.read_at(0, &mut there).expect("it is there");
    assert!(there == plaintext[..there.len()] && volume.read_at(3 * BLOCK as u64, &mut [0; 512]).is_err());
    for len in (0..cut.len()).step_by(3000) {
        assert!(opened(&bytes[..len], passphrase(PASSPHRASE)).is_err(), "{len} bytes");
    }
}

/// A header can ask for any time: nothing begins before that is known, and it can be stopped.
#[test]
fn hostile_costs_are_known_beforehand() {
    let (_, mut image) = ordinary();
    let block = image.block(0x0019);
    let place = first_user(block);
    let mut wrapped = filevault2::decoded(std::str::from_utf8(&block[place.clone()]).expect("ASCII"));
    number(&mut wrapped, 168, 4, u32::MAX.into());
    block[place].copy_from_slice(filevault2::encoded(&wrapped).as_bytes());
    let bytes = image.sealed();
    let refuse = |time: Duration| {
        assert!(time > Duration::from_secs(60), "{time:?}");
        Err(Error::misuse("too long"))
    };
    let credentials = [passphrase("x")];
    let with = Unlock { may_take: Some(&refuse), ..Unlock::with(&credentials) };
    let header = FILEVAULT2.open(&in_memory(&bytes)).expect("a header");
    assert!(header.effort(&with) > 60_000_000);
    assert!(matches!(header.unlock(&with).map_err(|e| e.kind), Err(ErrorKind::Misuse(_))));
    let stop = AtomicBool::new(false);
    std::thread::scope(|threads| {
        threads.spawn(|| stop.store(true, Ordering::Relaxed));
        let with = Unlock { cancel: Some(&stop), ..Unlock::with(&credentials) };
        assert!(matches!(header.unlock(&with).map_err(|e| e.kind), Err(ErrorKind::Cancelled)));
    });
    // With the passphrase of another user, there is no wait for it.
    let credentials = [passphrase("p\u{e4}ssword")];
    assert!(header.unlock(&Unlock::with(&credentials)).is_ok());
}

/// The first user's box, as the metadata have it: where it is in its block.
fn first_user(block: &[u8]) -> std::ops::Range<usize> {
    let key = b"<key>PassphraseWrappedKEKStruct</key><data ID=\"11\">";
    let at = block.windows(key.len()).position(|window| window == key).expect("it is there") + key.len();
    at..at + block[at..].iter().position(|byte| *byte == b'<').expect("its end")
}

#[test]
fn hostile_contexts_are_refused() {
    let (_, image) = ordinary();
    let with_list = |list: &[u8]| {
        let mut image = image.clone();
        let block = image.block(0x0019);
        let len = list.len().min(block.len() - 0x3b0);
        block[0x3b0..].fill(0);
        block[0x3b0..0x3b0 + len].copy_from_slice(&list[..len]);
        for at in [104, 108, 116] {
            number(block, at, 4, len as u64);
        }
        image.sealed()
    };
    let user = |data: &str| format!("<dict><key>PassphraseWrappedKEKStruct</key><data>{data}</data></dict>");
    let kinds = |error: &Error| matches!(error.kind, ErrorKind::Malformed { .. } | ErrorKind::Unsupported { .. });
    for list in [
        "<dict>".repeat(1000),
        "<array><dict>".repeat(500),
        String::new(),
        "<".repeat(7000),
        "&#x".repeat(2000),
        user(""),
        user("!!!!"),
        user("AAAA"),
        user(&"AA==".repeat(100)),
        user(&"A".repeat(379)),
        user(&filevault2::encoded(&[0; 284])),
        user(&filevault2::encoded(&[0xff; 284])),
        "<dict><key>PassphraseWrappedKEKStruct</key><reference IDREF=\"0\"/></dict>".to_owned(),
        "<dict ID=\"1\"><key>PassphraseWrappedKEKStruct</key><reference IDREF=\"1\"/>".to_owned(),
    ] {
        let error = refused(&with_list(list.as_bytes()));
        assert!(kinds(&error), "{:.60}: {error}", list);
    }
    // Chains that come back to themselves, that end too soon, and what cannot be inflated or becomes too much.
    let plaintext = plaintext(4);
    let compressed = Recipe { compressed: true, ..Recipe::new(USERS, &plaintext) }.make();
    let edits: [fn(&mut Image); 8] = [
        |image| number(image.block(0x0024), 64, 8, 100),
        |image| number(image.block(0x0024), 64, 8, 0),
        |image| number(image.block(0x0024), 72, 8, 0),
        |image| number(image.block(0x0024), 72, 8, u64::MAX),
        |image| number(image.block(0x0019), 96, 8, 99),
        |image| number(image.block(0x0019), 104, 4, u32::MAX.into()),
        |image| number(image.block(0x0019), 108, 4, 10),
        |image| image.block(0x0024)[100] ^= 0xff,
    ];
    for (i, edit) in edits.into_iter().enumerate() {
        let mut image = compressed.clone();
        edit(&mut image);
        let error = refused(&image.sealed());
        assert!(matches!(error.kind, ErrorKind::Malformed { field: "encryption context", .. }), "{i}: {error}");
        // The volume key does without it.
        assert!(opened(&image.sealed(), volume_key(&image.volume_key)).expect("it opens") == plaintext);
    }
}

/// Each number in what is not encrypted by a passphrase, replaced by those that parsers tend to trip over: nothing panics, takes
/// long or fails as something that it is not.
#[test]
fn hostile_numbers_are_refused_or_harmless() {
    let plaintext = plaintext(4);
    let parts = vec![(1, DATA + 10), (3, DATA)];
    let recipe = Recipe { beginning: 0, parts, ..Recipe::new(&USERS[..1], &plaintext) };
    let system = Recipe { beginning: DATA, parts: vec![(1, 0), (3, 8)], ..Recipe::new(&USERS[..1], &plaintext) };
    let try_it = |image: &Image, what: &str| {
        let bytes = image.sealed();
        let store = in_memory(&bytes);
        let _ = FILEVAULT2.identify(&*store).expect("memory can be read");
        let result = FILEVAULT2.open(&store).and_then(|header| {
            assert!(header.describe().is_some());
            header.unlock(&Unlock::with(&[volume_key(&image.volume_key[..16])]))
        });
        match result {
            Ok(unlocked) => drop(Volume::new(store, unlocked.layout).read_at(0, &mut [0; 1024])),
            Err(error) => {
                let kind = matches!(
                    error.kind,
                    ErrorKind::Malformed { .. } | ErrorKind::Unsupported { .. } | ErrorKind::NotThisFormat(_)
                );
                assert!(kind, "{what}: {error:?}");
            }
        }
    };
    for image in [recipe.make(), system.make()] {
        let values = [0, 1, 3, 0x7fff_ffff, 0xffff_ffff, 1 << 52, i64::MAX as u64, u64::MAX - 4095, u64::MAX];
        for value in values {
            for at in [8, 10, 48, 64, 88, 90, 94, 96, 100, 104, 112, 168, 172, 176, 304] {
                let mut image = image.clone();
                number(&mut image.header, at, 8, value);
                try_it(&image, &format!("header {at} {value:#x}"));
            }
            for at in [64, 220, 224, 8192 + 8, 8192 + 24, 8192 + 32, 8192 + 40] {
                let mut image = image.clone();
                image.labels.iter_mut().for_each(|label| number(label, at, 8, value));
                try_it(&image, &format!("label {at} {value:#x}"));
            }
            for (kind, fields) in FIELDS {
                let there = image.blocks.iter().any(|block| block[10..12] == kind.to_le_bytes());
                for at in fields.iter().filter(|_| there) {
                    let mut image = image.clone();
                    number(image.block(*kind), *at, 8, value);
                    try_it(&image, &format!("{kind:#x} {at} {value:#x}"));
                }
            }
        }
    }
}

/// Where numbers are in blocks of metadata.
const FIELDS: &[(u16, &[usize])] = &[
    (0x0305, &[10, 24, 64, 80, 88, 92, 104, 120, 128, 144]),
    (0x0505, &[10, 24, 64, 72, 80]),
    (0x0019, &[10, 24, 96, 104, 108, 112, 116]),
    (0x001a, &[10, 24, 72, 104, 128, 132]),
];
