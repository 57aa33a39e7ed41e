//! Files of NTFS that are encrypted for certificates (EFS), opened with private keys of every kind; and new certificates.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::*;
use claviger_testkit::dpapi::{Account, Era, Key, Kind, Profile};
use claviger_testkit::efs::{self, Cipher, Identity, info, put};
use claviger_testkit::{random::Random, tools};
use serde_json::json;

const WINDOWS_PASSWORD: &str = "the Windows password";

/// An NTFS with a file that is encrypted for somebody, and that person's profile.
struct Disk {
    folder: Folder,
    image: String,
    plain: Vec<u8>,
    me: Identity,
}

/// An NTFS that ntfs-3g has mounted. It is unmounted when this is dropped.
struct Mounted(PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        let umount = Command::new("timeout").args(["10", "umount"]).arg(&self.0).stderr(Stdio::null()).status();
        assert!(umount.is_ok_and(|status| status.success()) || std::thread::panicking());
    }
}

impl Disk {
    /// A reported skip where programs are missing.
    fn new() -> Option<Self> {
        tools::root()?;
        let (mkntfs, ntfs_3g) = (tools::program("mkntfs")?, tools::program("ntfs-3g")?);
        if !Path::new("/dev/fuse").exists() {
            return tools::skip("there is no /dev/fuse");
        }
        let me = Identity::new("Me", false)?;
        let folder = Folder::new();
        let image = folder.str("disk.img");
        File::create(&image).and_then(|file| file.set_len(40 << 20)).expect("an empty image");
        tools::run(Command::new(mkntfs).args(["-F", "-Q", "-q"]).arg(&image));
        let plain = Random::new(3).bytes(70_001);
        let at = folder.path("mounted");
        fs::create_dir(&at).expect("a folder");
        tools::run(Command::new("timeout").arg("60").arg(ntfs_3g).args(["-o", "efs_raw", &image]).arg(&at));
        let mounted = Mounted(at.clone());
        let key = Random::new(4).bytes(32);
        let documents = at.join("Users/me/Documents");
        fs::create_dir_all(&documents).expect("a folder");
        put(
            &documents.join("secret.docx"),
            &Cipher::Aes256.raw(&key, &plain),
            &info(Cipher::Aes256, &key, &[&me], &[]),
        );
        fs::write(documents.join("clear.txt"), "in clear").expect("a file");
        let (pkcs1, certificate) = (der(&me, true), Some(der(&me, false)));
        let key = Key { kind: Kind::Capi, container: "mine".into(), pkcs1, certificate };
        let profile = Profile::new(WINDOWS_PASSWORD, Era::Seven, Account::Domain);
        profile.write(&at.join("Users/me"), std::slice::from_ref(&key));
        drop(mounted);
        // Its server holds a lock until all is written.
        let until = Instant::now() + Duration::from_secs(60);
        while run(["ls", &image]).code != 0 {
            assert!(Instant::now() < until, "ntfs-3g does not end");
            std::thread::sleep(Duration::from_millis(50));
        }
        profile.write(&folder.path("copied"), &[key]);
        for (name, contents) in [("pfx-password", efs::PASSWORD), ("windows", WINDOWS_PASSWORD), ("wrong", "wrong")] {
            fs::write(folder.path(name), format!("{contents}\n")).expect("a file");
        }
        Some(Self { folder, image, plain, me })
    }

    fn str(&self, name: &str) -> String {
        self.folder.str(name)
    }

    /// The file, with these options.
    fn cat(&self, how: &[&str]) -> Done {
        run([&["cat", &self.image, "--file", "/Users/me/Documents/secret.docx"], how].concat())
    }

    #[track_caller]
    fn opens(&self, how: &[&str]) {
        let done = self.cat(how).succeeds();
        assert!(done.out == self.plain, "{how:?}: {}", done.err);
    }
}

/// The private key as PKCS#1 has it, or the certificate.
fn der(me: &Identity, private: bool) -> Vec<u8> {
    let (key, certificate) = (me.pfx().with_file_name("key.pem"), me.pfx().with_file_name("certificate.pem"));
    let mut openssl = Command::new("openssl");
    match private {
        true => openssl.args(["rsa", "-traditional", "-outform", "DER", "-in"]).arg(key),
        false => openssl.args(["x509", "-outform", "DER", "-in"]).arg(certificate),
    };
    tools::run(&mut openssl).stdout
}

#[test]
fn encrypted_files_open_with_private_keys_from_everywhere() {
    let Some(disk) = Disk::new() else { return };
    let (pfx, password) = (disk.me.pfx().display().to_string(), disk.str("pfx-password"));
    disk.opens(&["--certificate", &pfx, "--certificate-password-file", &password]);
    let pem = disk.me.pfx().with_file_name("key.pem").display().to_string();
    disk.opens(&["--certificate", &pem]);
    // The folder has the same key three times, once in a PFX.
    let folder = disk.me.pfx().parent().expect("a folder").display().to_string();
    disk.opens(&["--certificate", &folder, "--certificate-password-file", &password]);
    let windows = disk.str("windows");
    disk.opens(&["--windows-profile", ":/Users/me", "--certificate-password-file", &windows]);
    disk.opens(&["--windows-profile", &disk.str("copied"), "--certificate-password-file", &windows]);
    // MD4 of the password in UTF-16.
    let mut md4 = Command::new("openssl");
    md4.args(["dgst", "-md4", "-provider", "legacy", "-provider", "default", "-r"]);
    fs::write(disk.folder.path("wide"), WINDOWS_PASSWORD.encode_utf16().flat_map(u16::to_le_bytes).collect::<Vec<_>>())
        .expect("a file");
    let digest = tools::run(md4.arg(disk.folder.path("wide"))).stdout;
    fs::write(disk.folder.path("hash"), &digest[..32]).expect("a file");
    disk.opens(&["--windows-profile", ":/Users/me", "--windows-hash-file", &disk.str("hash")]);

    // Whole folders, with their unencrypted files.
    let out = disk.str("out");
    run(["cp", "-r", "--certificate", &pem, &disk.image, ":/Users/me/Documents", &out]).succeeds();
    assert!(fs::read(disk.folder.path("out/secret.docx")).expect("copied") == disk.plain);
    assert_eq!(fs::read(disk.folder.path("out/clear.txt")).expect("copied"), b"in clear");
}

#[test]
fn what_does_not_open_says_why() {
    let Some(disk) = Disk::new() else { return };
    let (pfx, wrong) = (disk.me.pfx().display().to_string(), disk.str("wrong"));
    disk.cat(&["--certificate", &pfx, "--certificate-password-file", &wrong]).fails(2, &["wrong password", "key.pfx"]);
    disk.cat(&["--certificate", &pfx]).fails(1, &["no terminal", "--certificate-password-file"]);
    disk.cat(&["--windows-profile", ":/Users/me", "--certificate-password-file", &wrong])
        .fails(2, &["master keys of S-1-5-21", "not a PIN"]);
    disk.cat(&["--windows-profile", ":/Users/you", "--certificate-password-file", &wrong])
        .fails(3, &["/Users/you", "no such folder"]);
    disk.cat(&["--certificate-password-file", &wrong]).fails(1, &["no private key", "--pkcs11-module"]);
    disk.cat(&["--pkcs11-module", "/nonexistent.so"]).fails(6, &["not a PKCS#11 module"]);
    // Another key opens the disk, and says for whom the file is.
    let other = disk.str("other.pfx");
    run(["keyfile", "--efs", &other, "--name", "Other", "--password-file", &disk.str("windows")]).succeeds();
    let done = disk.cat(&["--certificate", &other, "--certificate-password-file", &disk.str("windows")]);
    let thumbprint: String = disk.me.thumbprint.iter().map(|byte| format!("{byte:02x}")).collect();
    assert!(done.code != 0 && done.err.to_lowercase().contains(&thumbprint), "{}", done.err);
    // A volume has no use for it.
    let volume = disk.folder.volume("volume", "1M", &[]);
    run(["serve", "--certificate", &pfx, &volume]).fails(1, &["encrypted folder"]);
}

#[test]
fn a_wrong_password_of_a_private_key_is_asked_for_again() {
    let Some(disk) = Disk::new() else { return };
    let (pfx, copied) = (disk.me.pfx().display().to_string(), disk.str("copied"));
    for (n, (how, question, password)) in [
        (["--certificate", &pfx], format!("Password of {pfx}: "), efs::PASSWORD),
        (["--windows-profile", ":/Users/me"], "Windows password of me: ".to_owned(), WINDOWS_PASSWORD),
        (["--windows-profile", &copied], "Windows password of copied: ".to_owned(), WINDOWS_PASSWORD),
    ]
    .into_iter()
    .enumerate()
    {
        let out = disk.str(&format!("out {n}"));
        let cp = ["cp", how[0], how[1], &disk.image, ":/Users/me/Documents/secret.docx", &out];
        let Some((output, code, _)) = on_terminal(json!(all(&question, &["wrong", "as wrong", "wrong"])), &cp) else {
            return;
        };
        assert_eq!((code, output.matches(&question).count()), (2, 3), "{output}");
        let steps = json!(all(&question, &["wrong", "as wrong", password]));
        let (output, code, echo) = on_terminal(steps, &cp).expect("as before");
        assert!(code == 0 && echo && !output.contains(password), "{code} {output}");
        for said in ["does not open it. 2 tries left.", "does not open it. 1 try left."] {
            assert_eq!(output.matches(said).count(), 1, "{output}");
        }
        assert!(fs::read(&out).expect("copied") == disk.plain);
    }
}

#[test]
fn a_card_opens_files() {
    let Some(disk) = Disk::new() else { return };
    if ["softhsm2-util", "pkcs11-tool"].iter().any(|name| tools::program(name).is_none()) {
        return;
    }
    let module = "/usr/lib/softhsm/libsofthsm2.so";
    if !Path::new(module).exists() {
        return tools::skip("SoftHSM's module is not where it is looked for").unwrap_or_default();
    }
    let conf = disk.str("softhsm2.conf");
    fs::create_dir(disk.folder.path("tokens")).expect("a folder");
    fs::write(&conf, format!("directories.tokendir = {}\n", disk.str("tokens"))).expect("a file");
    fs::write(disk.folder.path("pin"), "4711\n").expect("a file");
    // SoftHSM takes PKCS#8.
    let (pem, key) = (disk.me.pfx().with_file_name("key.pem"), disk.str("pkcs8"));
    tools::run(Command::new("openssl").args(["pkcs8", "-topk8", "-nocrypt", "-out", &key, "-in"]).arg(pem));
    let mut init = Command::new("softhsm2-util");
    init.args(["--init-token", "--free", "--label", "my card", "--so-pin", "12345678", "--pin", "4711"]);
    tools::run(init.env("SOFTHSM2_CONF", &conf));
    let mut import = Command::new("softhsm2-util");
    import.args(["--import", &key, "--token", "my card", "--label", "mine", "--id", "a1", "--pin", "4711"]);
    tools::run(import.env("SOFTHSM2_CONF", &conf));
    // Without its certificate: the key is tried.
    let cat = |pin: &str| {
        let mut command = claviger();
        command.args(["cat", &disk.image, "--file", "/Users/me/Documents/secret.docx", "--pkcs11-module", module]);
        command.args(["--pkcs11-token", "my card", "--certificate-password-file", pin]);
        done(command.env("SOFTHSM2_CONF", &conf).output().expect("the program starts"))
    };
    let opened = cat(&disk.str("pin")).succeeds();
    assert!(opened.out == disk.plain);
    cat(&disk.str("wrong")).fails(2, &["wrong PIN", "my card"]);
}

#[test]
fn a_new_certificate_never_takes_the_place_of_another() {
    if tools::program("openssl").is_none() {
        return;
    }
    let folder = Folder::new();
    let (pfx, cer) = (folder.str("me.pfx"), folder.str("me.cer"));
    let make = |more: &[&str]| {
        run([&["keyfile", "--efs", &pfx, "--name", "Me", "--password-file", &folder.password, "--json"], more].concat())
    };
    let made = make(&[]).succeeds().json();
    assert_eq!((made["certificate"].as_str(), made["bits"].as_u64()), (Some(&cer[..]), Some(2048)));
    assert_eq!(made["subject"].as_str(), Some("CN=Me, L=EFS, OU=EFS File Encryption Certificate"));
    let mode = |path: &str| fs::metadata(path).expect("a file").permissions().mode() & 0o777;
    assert_eq!((mode(&pfx), mode(&cer)), (0o600, 0o644));
    let mut openssl = Command::new("openssl");
    openssl.args(["pkcs12", "-nodes", "-in", &pfx, "-passin", &format!("file:{}", folder.password)]);
    assert!(String::from_utf8_lossy(&tools::run(&mut openssl).stdout).contains("PRIVATE KEY"));
    let mut fingerprint = Command::new("openssl");
    fingerprint.args(["x509", "-inform", "DER", "-noout", "-fingerprint", "-sha1", "-in", &cer]);
    let fingerprint = String::from_utf8_lossy(&tools::run(&mut fingerprint).stdout).replace(':', "").to_lowercase();
    assert!(fingerprint.contains(made["thumbprint"].as_str().expect("a thumbprint")), "{fingerprint}");

    let before = fs::read(&pfx).expect("a file");
    make(&[]).fails(1, &["already exists"]);
    fs::remove_file(&pfx).expect("removed");
    make(&[]).fails(1, &["already exists", "me.cer"]);
    assert!(!folder.path("me.pfx").exists());
    fs::write(&pfx, &before).expect("a file");
    let again = make(&["--force", "--bits", "3072", "--recovery"]).succeeds().json();
    assert!(again["subject"].as_str().is_some_and(|subject| subject.contains("Recovery")), "{again}");
    assert!(fs::read(&pfx).expect("a file") != before);
    assert_eq!(mode(&pfx), 0o600);

    let new = folder.str("new.pfx");
    run_with(b"\n", ["keyfile", "--efs", &new, "--name", "Me", "--password-file", "-"]).fails(1, &["is empty"]);
    run(["keyfile", "--efs", &new, "--name", "Me"]).fails(1, &["no terminal"]);
    run(["keyfile", "--efs", &new, "--bits", "1024", "--name", "Me", "--password-file", &folder.password])
        .fails(1, &["1024 bits"]);
    run(["keyfile", "--efs", &cer, "--name", "Me", "--password-file", &folder.password]).fails(1, &["ending in .pfx"]);
    assert!(!folder.path("new.pfx").exists() && !folder.path("new.cer").exists());
}
