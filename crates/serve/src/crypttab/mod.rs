//! Lines of /etc/crypttab, as crypttab(5) of systemd and of Debian's cryptsetup describe them, and what they come to for
//! `claviger mount`.

mod disk;

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use claviger_engine::{Error, Result};

/// A line: a name, a device, a file with the password, options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// What the opened volume is to be called.
    pub name: String,
    /// The device or file, tags such as `UUID=` resolved.
    pub device: PathBuf,
    /// The file with the password or key, unless it is to be asked for.
    pub key: Option<PathBuf>,
    /// Options in their order.
    options: Vec<String>,
}

/// How `claviger` opens an entry.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Invocation {
    /// The file or device to open, where it is not the one of the line: an encrypted system has its header on the disk, and
    /// the line may name one of its partitions.
    pub disk: Option<PathBuf>,
    /// Options of `claviger mount` and `claviger serve`.
    pub options: Vec<String>,
    /// Whether the entry's key is a key file, byte for byte, and not a file whose first line is the password.
    pub key_is_file: bool,
    /// Whether nothing may be written.
    pub read_only: bool,
    /// Whether it gets a random key each time, so that only the kernel can have it: `claviger attach --kernel`.
    pub random_key: bool,
    /// Whether it is then made a swap area.
    pub swap: bool,
    /// What is not done, in sentences.
    pub ignored: Vec<String>,
}

/// Kinds of volumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    TrueCrypt,
    Luks,
    Plain,
    LoopAes,
    /// Not one that this program opens.
    Other,
}

/// The option that a swap area is made of a plain volume each time (crypttab(5)).
const SWAP: &str = "swap";

/// Kinds that options name, of which the first in this order counts: a line may say `plain` and `swap`.
const KINDS: &[(&str, Kind)] = &[
    ("bitlk", Kind::Other),
    ("tmp", Kind::Other),
    (SWAP, Kind::Plain),
    ("tcrypt", Kind::TrueCrypt),
    ("luks", Kind::Luks),
    ("plain", Kind::Plain),
    ("loop-AES", Kind::LoopAes),
    ("loopaes", Kind::LoopAes),
];

/// The entries of a table.
///
/// # Errors
/// `Misuse`, with the line, where there is no device or no name that can be a file's.
pub fn parse(text: &str) -> Result<Vec<Entry>> {
    let lines = text.lines().enumerate().map(|(i, line)| (i + 1, line.trim()));
    lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#')).map(|(n, line)| entry(n, line)).collect()
}

fn entry(number: usize, line: &str) -> Result<Entry> {
    let wrong = |what: &str| Error::misuse(format!("line {number}: {what}"));
    let mut fields = line.split_whitespace();
    let name = fields.next().unwrap_or_default().to_owned();
    if name.contains('/') || name == "." || name == ".." {
        return Err(wrong("a name with a slash in it, or one that is a folder's"));
    }
    let device = fields.next().ok_or_else(|| wrong("a name without a device"))?;
    let key = fields.next().filter(|key| !matches!(*key, "none" | "-"));
    let options = fields.next().unwrap_or_default();
    let options =
        options.split(',').filter(|o| !o.is_empty() && *o != "-" && *o != "none").map(str::to_owned).collect();
    Ok(Entry { name, device: device_path(device), key: key.map(PathBuf::from), options })
}

/// The device that a tag names, where udev keeps links to it.
fn device_path(text: &str) -> PathBuf {
    const TAGS: &[(&str, &str)] = &[
        ("UUID", "by-uuid"),
        ("PARTUUID", "by-partuuid"),
        ("LABEL", "by-label"),
        ("PARTLABEL", "by-partlabel"),
        ("ID", "by-id"),
    ];
    let known = text.split_once('=').and_then(|(tag, value)| {
        let (_, folder) = TAGS.iter().find(|(name, _)| *name == tag)?;
        Some(Path::new("/dev/disk").join(folder).join(udev_name(value.trim_matches('"'))))
    });
    known.unwrap_or_else(|| text.into())
}

/// As udev writes a label into the name of a link: other than these characters as `\x` and two digits (libudev,
/// `udev_util_encode_string`).
fn udev_name(label: &str) -> String {
    let encode = |c: char| match c {
        c if c.is_ascii_alphanumeric() || "#+-.:=@_".contains(c) || !c.is_ascii() => c.to_string(),
        c => format!("\\x{:02x}", c as u32),
    };
    label.chars().map(encode).collect()
}

impl Entry {
    /// Whether the option is there.
    pub fn has(&self, option: &str) -> bool {
        self.options.iter().any(|o| o == option)
    }

    /// How `claviger` opens it.
    ///
    /// # Errors
    /// `Unsupported` for kinds of volumes that it does not open; `Misuse` for options without their value.
    pub fn invocation(&self) -> Result<Invocation> {
        let (name, kind) = self.kind();
        let mut invocation = Invocation::default();
        match kind {
            Kind::TrueCrypt if self.has("tcrypt-veracrypt") || self.has("veracrypt") => {}
            Kind::TrueCrypt => invocation.options.push("--format=TrueCrypt".into()),
            Kind::Luks => {}
            Kind::Plain => invocation.options.push("--format=plain".into()),
            Kind::LoopAes => invocation.options.push("--format=loop-AES".into()),
            Kind::Other => {
                return Err(Error::unsupported(format!("volumes of the kind {name} are not yet supported"))
                    .hint("Lines for LUKS, plain, loop-AES, TrueCrypt and VeraCrypt volumes are."));
            }
        }
        invocation.random_key = self.has_random_key();
        invocation.swap = name == SWAP;
        match (kind, invocation.random_key) {
            (_, false) if invocation.swap => {
                return Err(Error::unsupported("a swap area whose key is not a random one")
                    .hint("Write /dev/urandom in the place of the key, or leave out the option swap."));
            }
            (Kind::TrueCrypt | Kind::Luks | Kind::LoopAes, true) => {
                return Err(Error::misuse(format!("a random key opens no volume of the kind {name}"))
                    .hint("The options plain and swap are for it."));
            }
            _ => {}
        }
        invocation.key_is_file = kind != Kind::TrueCrypt && self.key.is_some() && !invocation.random_key;
        for option in &self.options {
            self.apply(option, kind, &mut invocation)?;
        }
        Ok(invocation)
    }

    /// Whether its key comes from a device that gives others each time. This program takes one from the kernel itself.
    fn has_random_key(&self) -> bool {
        const RANDOM: [&str; 3] = ["/dev/urandom", "/dev/random", "/dev/hwrng"];
        self.key.as_deref().is_some_and(|key| RANDOM.iter().any(|random| key == Path::new(random)))
    }

    /// The kind that an option names. Without one it is LUKS, unless what a plain volume needs is said and the device does
    /// not begin as LUKS does (systemd-cryptsetup tries in that order).
    fn kind(&self) -> (&str, Kind) {
        let named = KINDS.iter().find(|(name, _)| {
            self.options.iter().any(|o| o == name || o.strip_prefix(name).is_some_and(|rest| rest.starts_with('=')))
        });
        let plain =
            || ["cipher=", "size=", "hash="].iter().any(|name| self.options.iter().any(|o| o.starts_with(name)));
        match named {
            Some(named) => *named,
            None if plain() && !begins_as_luks(&self.device) => ("plain", Kind::Plain),
            None => ("luks", Kind::Luks),
        }
    }

    fn apply(&self, option: &str, kind: Kind, invocation: &mut Invocation) -> Result<()> {
        let (name, value) = option.split_once('=').map_or((option, None), |(name, value)| (name, Some(value)));
        let value = || value.ok_or_else(|| Error::misuse(format!("the option {name} needs a value")));
        let ignored = || format!("{}: the option {name} of the table is ignored", self.name);
        match (name, kind) {
            ("noauto" | "auto" | "nofail" | "_netdev" | "initramfs" | "loud" | "quiet", _) => {}
            ("readonly" | "read-only", _) => invocation.read_only = true,
            // This program's own.
            ("allow-slow" | "write-unencrypted", _) => invocation.options.push(format!("--{name}")),
            _ if name.starts_with("x-") || KINDS.iter().any(|(kind, _)| *kind == name) => {}
            ("tcrypt-veracrypt" | "veracrypt", Kind::TrueCrypt) => {}
            ("tcrypt-hidden" | "tcrypthidden", Kind::TrueCrypt) => invocation.options.push("--slot=hidden".into()),
            // Of a whole disk that holds a system this is found out.
            ("tcrypt-system", Kind::TrueCrypt) => {
                if let Some((disk, number)) = disk::of_partition(&self.device) {
                    invocation.disk = Some(disk);
                    invocation.options.push(format!("--partition={number}"));
                }
            }
            // This program's own, too.
            ("protect-hidden", Kind::TrueCrypt) => invocation.options.push(format!("--{name}")),
            ("hidden-password-file" | "hidden-keyfile" | "hidden-hash" | "hidden-pim", Kind::TrueCrypt) => {
                invocation.options.push(format!("--{name}={}", value()?));
            }
            ("tcrypt-keyfile", Kind::TrueCrypt) => invocation.options.push(format!("--keyfile={}", value()?)),
            ("veracrypt-pim", Kind::TrueCrypt) => invocation.options.push(format!("--pim={}", value()?)),
            ("header", Kind::Luks) => invocation.options.push(format!("--header={}", value()?)),
            ("key-slot" | "keyslot", Kind::Luks) => invocation.options.push(format!("--slot={}", value()?)),
            ("tpm2-device" | "tpm2-signature", Kind::Luks) => invocation.options.push(format!("--{name}={}", value()?)),
            // Its header says so.
            ("tpm2-pin", Kind::Luks) => {}
            ("cipher" | "size" | "hash" | "offset" | "skip" | "sector-size", Kind::Luks) => {}
            ("keyfile-offset" | "keyfile-size", Kind::Luks | Kind::LoopAes) if invocation.key_is_file => {
                invocation.options.push(format!("--{name}={}", value()?));
            }
            ("keyfile-offset", Kind::Plain) if invocation.key_is_file => {
                invocation.options.push(format!("--{name}={}", value()?));
            }
            // As much of it is read as the key is long (crypttab(5), `keyfile-size`).
            ("keyfile-size", Kind::Plain) => {}
            // A random key is what it is.
            ("hash" | "keyfile-offset", Kind::Plain) if invocation.random_key => {}
            ("hash", Kind::Plain) if invocation.key_is_file => {
                if value()? != "plain" {
                    invocation.ignored.push(format!(
                        "{}: the key file is the key, as to cryptsetup; a hash, which systemd would take of it, is not used",
                        self.name
                    ));
                }
            }
            ("cipher" | "hash", Kind::Plain | Kind::LoopAes) => {
                invocation.options.push(format!("--{name}={}", value()?))
            }
            ("size", Kind::Plain | Kind::LoopAes) => invocation.options.push(format!("--key-size={}", value()?)),
            ("offset", Kind::Plain | Kind::LoopAes) => invocation.options.push(format!("--data-offset={}s", value()?)),
            ("skip", Kind::Plain | Kind::LoopAes) => invocation.options.push(format!("--skip={}", value()?)),
            ("sector-size", Kind::Plain) => invocation.options.push(format!("--sector-size={}", value()?)),
            ("itercountk", Kind::LoopAes) => invocation.options.push(format!("--itercountk={}", value()?)),
            _ => invocation.ignored.push(ignored()),
        }
        Ok(())
    }
}

/// Whether a file or device begins with the mark of LUKS (LUKS1 On-Disk Format Specification 1.2.3, section 4.1).
fn begins_as_luks(path: &Path) -> bool {
    let mut start = [0; 6];
    File::open(path).and_then(|mut file| file.read_exact(&mut start)).is_ok() && start == *b"LUKS\xba\xbe"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_may_be_missing_and_lines_may_be_comments() {
        let text = "# a comment\n\n  one /dev/sda1\ntwo\tUUID=\"AB-12\"\tnone\ttcrypt\nthree PARTLABEL=a/b /key tcrypt,readonly more\n";
        let entries = parse(text).expect("entries");
        let [one, two, three] = &entries[..] else { panic!("{entries:?}") };
        assert_eq!((&*one.name, &*one.device, &one.key, one.options.len()), ("one", Path::new("/dev/sda1"), &None, 0));
        assert_eq!((&*two.device, &two.key), (Path::new("/dev/disk/by-uuid/AB-12"), &None));
        assert_eq!(&*three.device, Path::new(r"/dev/disk/by-partlabel/a\x2fb"));
        assert_eq!(
            (three.key.as_deref(), &three.options[..]),
            (Some(Path::new("/key")), &["tcrypt".to_owned(), "readonly".to_owned()][..])
        );
        for (text, line) in [("\nonly-a-name", "line 2"), ("../x /dev/sda tcrypt", "line 1"), (".. /dev/sda", "line 1")]
        {
            assert!(parse(text).expect_err("wrong").to_string().contains(line), "{text}");
        }
    }

    fn invocation(options: &str) -> Result<Invocation> {
        parse(&format!("v /no/device - {options}")).expect("an entry")[0].invocation()
    }

    #[test]
    fn options_of_truecrypt_become_ours() {
        let all = invocation(
            "tcrypt,tcrypt-hidden,tcrypt-keyfile=/a,tcrypt-keyfile=/b,veracrypt-pim=7,tcrypt-veracrypt,readonly,noauto",
        )
        .expect("how to open it");
        assert_eq!(all.options, ["--slot=hidden", "--keyfile=/a", "--keyfile=/b", "--pim=7"]);
        assert!(all.read_only && all.ignored.is_empty());
        let protected =
            invocation("tcrypt,protect-hidden,hidden-password-file=/b,hidden-pim=3").expect("how to open it");
        assert_eq!(
            protected.options,
            ["--format=TrueCrypt", "--protect-hidden", "--hidden-password-file=/b", "--hidden-pim=3"]
        );
        assert!(invocation("tcrypt,hidden-keyfile").is_err(), "no value");
        let system = invocation("tcrypt,tcrypt-system").expect("how to open it");
        assert_eq!((system.options, system.disk), (vec!["--format=TrueCrypt".to_owned()], None), "no partition");
        let ignored = invocation("tcrypt,discard,tries=3").expect("how to open it").ignored;
        assert!(ignored[0].contains("discard") && ignored[1].contains("tries") && ignored.len() == 2, "{ignored:?}");
        assert!(invocation("tcrypt,tcrypt-keyfile").is_err(), "no value");
    }

    #[test]
    fn other_kinds_say_that_they_are_not_supported() {
        for options in ["bitlk", "tmp", "tmp=ext4,plain", "tmp,swap"] {
            let error = invocation(options).expect_err("another kind").to_string();
            assert!(error.contains("not yet supported"), "{options}: {error}");
        }
    }

    fn with_random_key(options: &str) -> Result<Invocation> {
        parse(&format!("v /no/device /dev/urandom {options}")).expect("an entry")[0].invocation()
    }

    #[test]
    fn a_random_key_is_for_swap_and_plain_volumes() {
        let swap =
            with_random_key("swap,cipher=aes-xts-plain64,size=512,hash=sha512,offset=2048,nofail,keyfile-size=64");
        let swap = swap.expect("how to open it");
        let ours = ["--format=plain", "--cipher=aes-xts-plain64", "--key-size=512", "--data-offset=2048s"];
        assert_eq!((&swap.options[..], swap.ignored.len()), (&ours.map(str::to_owned)[..], 0));
        assert!(swap.random_key && swap.swap && !swap.key_is_file);
        let plain = with_random_key("plain,sector-size=4096").expect("how to open it");
        assert_eq!(plain.options, ["--format=plain", "--sector-size=4096"]);
        assert!(plain.random_key && !plain.swap);
        assert!(with_random_key("cipher=aes-xts-plain64").expect("plain is meant").random_key);
        for options in ["", "luks", "tcrypt", "loop-AES"] {
            let error = with_random_key(options).expect_err("no such thing").to_string();
            assert!(error.contains("random key"), "{options}: {error}");
        }
        for swap in [invocation("swap"), parse("v /no/device /key swap").expect("an entry")[0].invocation()] {
            assert!(swap.expect_err("no random key").to_string().contains("not a random one"));
        }
    }

    fn with_key(options: &str) -> Invocation {
        parse(&format!("v /no/device /key {options}")).expect("an entry")[0].invocation().expect("how to open it")
    }

    #[test]
    fn options_of_luks_become_ours() {
        for options in ["luks", "", "discard"] {
            let bare = invocation(options).expect("how to open it");
            assert_eq!((bare.options, bare.key_is_file), (Vec::new(), false), "{options}");
        }
        let all = with_key("luks,header=/h,key-slot=3,keyfile-offset=512,keyfile-size=64,cipher=aes,size=256,tries=1");
        assert_eq!(all.options, ["--header=/h", "--slot=3", "--keyfile-offset=512", "--keyfile-size=64"]);
        assert!(all.key_is_file && all.ignored.len() == 1, "{:?}", all.ignored);
        let sealed = invocation("luks,tpm2-device=auto,tpm2-pin=yes,tpm2-signature=/s").expect("how to open it");
        assert_eq!(
            (sealed.options, sealed.ignored.len()),
            (["--tpm2-device=auto", "--tpm2-signature=/s"].map(String::from).to_vec(), 0)
        );
    }

    #[test]
    fn options_of_volumes_without_a_header_become_ours() {
        let all = invocation("plain,cipher=aes-xts-plain64,size=512,hash=sha256,offset=8,skip=16,sector-size=4096")
            .expect("how to open it");
        let ours = [
            "--cipher=aes-xts-plain64",
            "--key-size=512",
            "--hash=sha256",
            "--data-offset=8s",
            "--skip=16",
            "--sector-size=4096",
        ];
        assert_eq!((&all.options[0][..], &all.options[1..]), ("--format=plain", &ours.map(str::to_owned)[..]));
        assert_eq!(
            invocation("cipher=aes,size=256").expect("how to open it").options[0],
            "--format=plain",
            "no device says LUKS"
        );
        let key = with_key("plain,hash=sha256,keyfile-offset=4,keyfile-size=99");
        assert_eq!(key.options, ["--format=plain", "--keyfile-offset=4"]);
        assert!(key.key_is_file && key.ignored[0].contains("systemd"), "{:?}", key.ignored);
        let loop_aes = with_key("loop-AES,cipher=aes,size=128,offset=@16,hash=sha256,sector-size=512");
        assert_eq!(
            loop_aes.options,
            ["--format=loop-AES", "--cipher=aes", "--key-size=128", "--data-offset=@16s", "--hash=sha256"]
        );
        assert_eq!(loop_aes.ignored.len(), 1);
        assert!(invocation("plain,size").is_err(), "no value");
    }

    #[test]
    fn luks_is_told_by_its_mark() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let table = format!("v {} - cipher=aes,size=256", file.path().display());
        let first =
            || parse(&table).expect("an entry")[0].invocation().expect("how to open it").options.first().cloned();
        assert_eq!(first().as_deref(), Some("--format=plain"));
        std::fs::write(file.path(), b"LUKS\xba\xbe\0\x02").expect("it is written");
        assert_eq!(first(), None);
    }
}
