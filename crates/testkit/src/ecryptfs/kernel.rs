//! The kernel's eCryptfs, in user-mode Linux (fs/ecryptfs).

use std::ffi::OsString;
use std::fmt::Write;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use crate::operations::{Listing, Operation, Seen};
use crate::vectors::hex;
use crate::{tools, uml};

/// The location of the encrypted files.
#[derive(Clone, Copy, Debug)]
pub enum Lower<'a> {
    /// A folder of this machine, without extended attributes.
    Folder(&'a Path),
    /// A folder in an ext4 image, given by the image's index. The folder is created if missing.
    Image(usize, &'a str),
}

/// Mount options of a folder.
#[derive(Clone, Copy, Debug)]
pub struct Mount<'a> {
    /// The encrypted folder.
    pub lower: Lower<'a>,
    /// The passphrase for contents.
    pub passphrase: &'a str,
    /// The passphrase for names; none for plaintext names.
    pub of_names: Option<&'a str>,
    /// The kernel's name for the cipher, and the key size in bytes.
    pub cipher: (&'a str, usize),
    /// Additional kernel options: `ecryptfs_xattr_metadata`.
    pub options: &'a str,
}

/// Operations on a mounted folder.
#[derive(Clone, Copy, Debug)]
pub struct Case<'a> {
    /// The mount.
    pub mount: Mount<'a>,
    /// The operations.
    pub operations: &'a [Operation],
}

/// The result of a case.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// The failed steps, mounting included, each with the system's error number.
    pub failed: Vec<String>,
    /// The contents afterwards.
    pub listing: Listing,
}

/// Runs all cases, one after the other, in one start of the kernel. Images must be ext4, and are unmounted afterwards.
/// A reported skip if something is not installed.
///
/// # Panics
/// If the kernel does not start, or the steps do not end.
pub fn run(cases: &[Case<'_>], images: &[&Path]) -> Option<Vec<Outcome>> {
    for program in ["python3", "ecryptfs-add-passphrase"] {
        tools::program(program)?;
    }
    let dir = tempfile::tempdir().expect("a temporary folder");
    let at = |name: &str| dir.path().join(name);
    let (mut lines, mut data) = (String::new(), Vec::new());
    for case in cases {
        write_case(case, &mut lines, &mut data);
    }
    for (name, bytes) in
        [("inside.py", include_bytes!("inside.py").as_slice()), ("steps", lines.as_bytes()), ("data", &data)]
    {
        std::fs::write(at(name), bytes).expect("there is room");
    }
    let here = dir.path().display();
    let script = format!(
        "modprobe -a ecryptfs cbc ecb md5 aes_generic blowfish_generic des_generic twofish_generic cast5_generic \
         cast6_generic ext4 || exit\n\
         python3 {here}/inside.py {here}/steps {here}/data"
    );
    let done = uml::run(&script, images, 180)?;
    assert_eq!(done.status, 0, "{}", done.output);
    let outcomes = outcomes(&done.output);
    assert_eq!(outcomes.len(), cases.len(), "{}", done.output);
    Some(outcomes)
}

fn write_case(case: &Case<'_>, lines: &mut String, data: &mut Vec<u8>) {
    let Mount { lower, passphrase, of_names, cipher: (cipher, key_bytes), options } = case.mount;
    let lower = match lower {
        Lower::Folder(path) => hex(path.as_os_str().as_bytes()),
        Lower::Image(number, folder) => {
            let device = char::from(b'a' + number as u8);
            hex(format!("ubd{device}:{folder}").as_bytes())
        }
    };
    let of_names = of_names.map_or("-".into(), |passphrase| hex(passphrase.as_bytes()));
    let options = format!("ecryptfs_cipher={cipher},ecryptfs_key_bytes={key_bytes},{options}");
    let passphrase = hex(passphrase.as_bytes());
    writeln!(lines, "case\t{lower}\t{passphrase}\t{of_names}\t{options}").expect("there is room");
    for operation in case.operations {
        let mut keep = |bytes: &[u8]| {
            let at = data.len();
            data.extend(bytes);
            format!("{at}\t{}", bytes.len())
        };
        let text = |path: &OsString| hex(path.as_bytes());
        let line = match operation {
            Operation::Folder(path) => format!("folder\t{}", text(path)),
            Operation::File(path) => format!("file\t{}", text(path)),
            Operation::Link(path, target) => format!("link\t{}\t{}", text(path), text(target)),
            Operation::Write(path, at, data) => format!("write\t{}\t\t{at}\t{}", text(path), keep(data)),
            Operation::Append(path, data) => format!("append\t{}\t\t{}", text(path), keep(data)),
            Operation::Resize(path, len) => format!("resize\t{}\t\t{len}", text(path)),
            Operation::Rename(from, to) => format!("rename\t{}\t{}", text(from), text(to)),
            Operation::AddName(of, path) => format!("name\t{}\t{}", text(of), text(path)),
            Operation::Remove(path) => format!("remove\t{}", text(path)),
        };
        writeln!(lines, "{line}").expect("there is room");
    }
    lines.push_str("end\n");
}

fn outcomes(output: &str) -> Vec<Outcome> {
    let (said, ended) = output.rsplit_once("done").unwrap_or((output, "no end"));
    assert_eq!(ended.trim(), "", "{output}");
    let mut all: Vec<Outcome> = Vec::new();
    for line in said.lines() {
        let fields: Vec<&str> = line.split('\t').collect();
        let number = |i: usize| fields[i].parse().unwrap_or_else(|_| panic!("{line}: no number"));
        let seen = match (fields[0], fields.get(1).copied()) {
            ("case", None) => {
                all.push(Outcome::default());
                continue;
            }
            ("!", Some(_)) => {
                all.last_mut().expect("a case").failed.push(format!("{}: {}", fields[1], fields[2]));
                continue;
            }
            (_, Some("d")) => Seen::Folder,
            (_, Some("l")) => Seen::Link(text(fields[2])),
            (_, Some("x")) => Seen::Unreadable(Some(number(2))),
            (_, Some("f")) => {
                let digest = unhex(fields[4]).try_into().expect("a digest");
                Seen::File(fields[2].parse().expect("a size"), number(3) as u32, digest)
            }
            _ => panic!("{output}"),
        };
        all.last_mut().expect("a case").listing.insert(text(fields[0]), seen);
    }
    all
}

fn text(digits: &str) -> OsString {
    OsString::from_vec(unhex(digits))
}

fn unhex(digits: &str) -> Vec<u8> {
    let byte = |i: usize| u8::from_str_radix(&digits[i..i + 2], 16).expect("hexadecimal digits");
    (0..digits.len()).step_by(2).map(byte).collect()
}
