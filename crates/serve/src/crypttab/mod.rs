//! Lines of /etc/crypttab, as described in crypttab(5) of systemd and of Debian's cryptsetup, and the options of
//! `claviger mount` that they stand for.

mod disk;

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use claviger_engine::{Error, Result};

/// A line: name, device, password file and options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CrypttabEntry {
    /// Name of the opened volume.
    pub name: String,
    /// The device or file, tags such as `UUID=` resolved.
    pub device: PathBuf,
    /// The file with the password or key; none if the user is asked.
    pub key: Option<PathBuf>,
    /// Options in the order of the line.
    options: Vec<String>,
}

/// How `claviger` opens an entry.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Invocation {
    /// The file or device to open instead of the line's device: the header of an encrypted system is on the disk, while
    /// the line may name one of its partitions.
    pub disk: Option<PathBuf>,
    /// Options of `claviger mount` and `claviger serve`.
    pub options: Vec<String>,
    /// How the key is obtained.
    pub key: CrypttabKey,
    /// Whether the volume is read-only.
    pub read_only: bool,
    /// Whether a swap area is then made on it.
    pub swap: bool,
    /// Warnings about options that are ignored, in sentences.
    pub ignored: Vec<String>,
}

/// What the key of a line means, which depends on the kind of volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CrypttabKey {
    /// A password that the user is asked for.
    #[default]
    Asked,
    /// The first line of the file is the password.
    FirstLine,
    /// The password is empty, and keyfiles open it.
    Empty,
    /// The file is the password, without one newline at its end.
    Password {
        /// Offset in the file, in bytes.
        offset: u64,
        /// Maximum length, in bytes.
        size: Option<u64>,
    },
    /// These bytes of the file are the password, which is hashed.
    Hashed {
        /// Offset in the file, in bytes.
        offset: u64,
        /// Length, in bytes.
        size: u64,
    },
    /// The file is a keyfile, byte for byte.
    Keyfile,
    /// A new random key each time. Only `claviger attach --kernel` supports it.
    Random,
}

/// Kinds of volumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    TrueCrypt,
    Luks,
    Plain,
    LoopAes,
    BitLocker,
    FileVault,
    /// No option names a kind, and the device has no known signature.
    Unknown,
}

/// The option that makes a swap area on a plain volume each time (crypttab(5)).
const SWAP: &str = "swap";

/// The option that makes a file system on a plain volume each time.
const TMP: &str = "tmp";

/// Options that name a kind. The last one wins (systemd's `cryptsetup.c`, `parse_one_option`).
const KINDS: &[(&str, Kind)] = &[
    ("luks", Kind::Luks),
    ("key-slot", Kind::Luks),
    ("keyslot", Kind::Luks),
    ("plain", Kind::Plain),
    (SWAP, Kind::Plain),
    (TMP, Kind::Plain),
    ("tcrypt", Kind::TrueCrypt),
    ("tcrypt-veracrypt", Kind::TrueCrypt),
    ("veracrypt", Kind::TrueCrypt),
    ("tcrypt-hidden", Kind::TrueCrypt),
    ("tcrypthidden", Kind::TrueCrypt),
    ("tcrypt-system", Kind::TrueCrypt),
    ("tcrypt-keyfile", Kind::TrueCrypt),
    ("bitlk", Kind::BitLocker),
    ("fvault2", Kind::FileVault),
    ("loop-AES", Kind::LoopAes),
    ("loopaes", Kind::LoopAes),
];

/// Folders in which systemd looks for NAME.key where a line names no key (crypttab(5)).
pub const KEY_FOLDERS: [&str; 2] = ["/etc/cryptsetup-keys.d", "/run/cryptsetup-keys.d"];

/// Default key size of a plain volume, in bits (systemd's `cryptsetup.c`).
const PLAIN_KEY_BITS: u64 = 256;

/// Parses a table.
///
/// # Errors
/// `Misuse`, with the line number, where the device is missing or the name cannot be a file name.
pub fn parse(text: &str) -> Result<Vec<CrypttabEntry>> {
    let lines = text.lines().enumerate().map(|(i, line)| (i + 1, line.trim()));
    lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#')).map(|(n, line)| entry(n, line)).collect()
}

fn entry(number: usize, line: &str) -> Result<CrypttabEntry> {
    let wrong = |what: &str| Error::misuse(format!("line {number}: {what}"));
    let mut fields = line.split_whitespace();
    let name = fields.next().unwrap_or_default().to_owned();
    if name.contains('/') || name == "." || name == ".." {
        return Err(wrong("a name must not contain a slash, and must not be . or .."));
    }
    let device = fields.next().ok_or_else(|| wrong("the device is missing after the name"))?;
    let key = fields.next().filter(|key| !matches!(*key, "none" | "-"));
    let options = fields.next().unwrap_or_default();
    let options =
        options.split(',').filter(|o| !o.is_empty() && *o != "-" && *o != "none").map(str::to_owned).collect();
    Ok(CrypttabEntry { name, device: device_path(device), key: key.map(PathBuf::from), options })
}

/// Resolves a tag to the link that udev keeps for the device.
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

/// Encodes a label as udev does in the name of a link: other characters become `\x` and two hexadecimal digits
/// (libudev, `udev_util_encode_string`).
fn udev_name(label: &str) -> String {
    let encode = |c: char| match c {
        c if c.is_ascii_alphanumeric() || "#+-.:=@_".contains(c) || !c.is_ascii() => c.to_string(),
        c => format!("\\x{:02x}", c as u32),
    };
    label.chars().map(encode).collect()
}

impl CrypttabEntry {
    /// Whether the line has this option.
    pub fn has(&self, option: &str) -> bool {
        self.options.iter().any(|o| o == option)
    }

    /// If the line names no key, takes NAME.key from the first of these folders that has it.
    pub fn find_key(&mut self, folders: &[impl AsRef<Path>]) {
        let file = format!("{}.key", self.name);
        let found = || folders.iter().map(|folder| folder.as_ref().join(&file)).find(|path| path.exists());
        self.key = self.key.take().or_else(found);
    }

    /// How `claviger` opens the entry.
    ///
    /// # Errors
    /// `Unsupported` for what `claviger` cannot do; `Misuse` for options without a value and for lines without a meaning.
    pub fn invocation(&self) -> Result<Invocation> {
        let kind = self.kind();
        self.refuse_other_keys()?;
        let mut invocation = Invocation { key: self.key(kind)?, swap: self.has(SWAP), ..Invocation::default() };
        self.check_random(kind, &invocation)?;
        invocation.options.extend(self.format(kind).map(|name| format!("--format={name}")));
        for option in &self.options {
            self.apply(option, kind, &mut invocation)?;
        }
        Ok(invocation)
    }

    /// Our name for the format; none if the format is detected.
    fn format(&self, kind: Kind) -> Option<&'static str> {
        match kind {
            Kind::TrueCrypt if self.has("tcrypt-veracrypt") || self.has("veracrypt") => None,
            Kind::TrueCrypt => Some("TrueCrypt"),
            Kind::Luks => self.luks_version(),
            Kind::Plain => Some("plain"),
            Kind::LoopAes => Some("loop-AES"),
            Kind::BitLocker => Some("BitLocker"),
            Kind::FileVault => Some("FileVault2"),
            Kind::Unknown => None,
        }
    }

    /// The LUKS version on the device. A LUKS line is tried only as LUKS, or the keyfile would be tried with other
    /// formats. An unreadable device is reported when it is opened.
    fn luks_version(&self) -> Option<&'static str> {
        let start = Start::of(self.value("header").map_or(&*self.device, Path::new))?;
        Some(if start.luks_version() == Some(1) { "LUKS1" } else { "LUKS2" })
    }

    /// Refuses keys from other programs or from places that this program does not read.
    fn refuse_other_keys(&self) -> Result<()> {
        if self.named("keyscript") {
            return Err(Error::unsupported("keys from a program (keyscript=)")
                .hint("Pipe the key instead: `KEYSCRIPT | claviger mount --password-file - VOLUME DIR`."));
        }
        let sealing =
            ["pkcs11-uri", "fido2-device", "fido2-cid", "tpm2-device"].into_iter().find(|name| self.named(name));
        if let (Some(name), Some(key)) = (sealing, &self.key) {
            return Err(Error::unsupported(format!("sealed key files ({name}=)"))
                .at(key)
                .hint("Remove the key file from the line to use the header's token or be asked for the password."));
        }
        let others = self.key.iter().map(|key| key.as_path()).chain(self.value("header").map(Path::new));
        match others.into_iter().find(|path| is_on_a_device(path)) {
            Some(path) => Err(Error::unsupported("a key file or header on another device (PATH:DEVICE)")
                .at(path)
                .hint("Mount that device and give the path of the mounted file.")),
            None => Ok(()),
        }
    }

    /// What the key means to a volume of this kind (crypttab(5), and crypt_activate_by_keyfile_device_offset of libcryptsetup).
    fn key(&self, kind: Kind) -> Result<CrypttabKey> {
        const RANDOM: [&str; 4] = ["/dev/urandom", "/dev/random", "/dev/hwrng", "/dev/hw_random"];
        let Some(key) = &self.key else { return Ok(CrypttabKey::Asked) };
        if RANDOM.iter().any(|random| key == Path::new(random)) {
            return Ok(CrypttabKey::Random);
        }
        let offset = self.number("keyfile-offset")?.unwrap_or(0);
        Ok(match kind {
            Kind::TrueCrypt if key == Path::new("/dev/null") => CrypttabKey::Empty,
            Kind::TrueCrypt => CrypttabKey::FirstLine,
            Kind::BitLocker if Start::of(key).is_some_and(|start| start.is_startup_key()) => CrypttabKey::Keyfile,
            Kind::BitLocker | Kind::FileVault => CrypttabKey::Password { offset, size: self.number("keyfile-size")? },
            Kind::Plain if self.value("hash").is_some_and(|hash| hash != "plain") => {
                // Reads as many bytes as the key has, whatever keyfile-size says.
                CrypttabKey::Hashed { offset, size: self.number("size")?.unwrap_or(PLAIN_KEY_BITS) / 8 }
            }
            Kind::Luks | Kind::Plain | Kind::LoopAes => CrypttabKey::Keyfile,
            Kind::Unknown if Start::of(&self.device).is_none() => CrypttabKey::Keyfile,
            Kind::Unknown => {
                return Err(Error::misuse(
                    "the line gives no kind of volume, and the device has no LUKS signature",
                )
                .at(&self.device)
                .hint(
                    "Add its kind to the options: luks, plain, tcrypt, tcrypt-veracrypt, bitlk, fvault2 or loop-AES.",
                ));
            }
        })
    }

    fn check_random(&self, kind: Kind, invocation: &Invocation) -> Result<()> {
        let random = invocation.key == CrypttabKey::Random;
        if self.named(TMP) {
            return Err(Error::unsupported("a new file system each time (tmp)")
                .hint("Remove tmp, run `claviger attach --kernel NAME`, and run mkfs on the printed device."));
        }
        if invocation.swap && !random {
            return Err(Error::unsupported("a swap area without a random key")
                .hint("Use /dev/urandom as the key, or remove the option swap."));
        }
        if random && kind != Kind::Plain {
            return Err(Error::misuse("a random key cannot open an existing volume")
                .hint("Use the option plain or swap with it."));
        }
        Ok(())
    }

    /// The kind that an option names; otherwise the one that the device's signature or options of plain volumes suggest.
    fn kind(&self) -> Kind {
        let kind_of = |option: &String| KINDS.iter().find(|(kind, _)| *kind == name_of(option));
        let named = self.options.iter().rev().find_map(kind_of).map(|(_, kind)| *kind);
        let plain = || ["cipher", "size", "hash"].iter().any(|name| self.named(name));
        let found = || match Start::of(&self.device) {
            _ if self.named("header") => Kind::Luks,
            Some(start) if start.luks_version().is_some() => Kind::Luks,
            Some(start) if start.is_bitlocker() => Kind::BitLocker,
            _ if plain() => Kind::Plain,
            _ => Kind::Unknown,
        };
        named.unwrap_or_else(found)
    }

    /// Whether the line has this option, with or without a value.
    fn named(&self, name: &str) -> bool {
        self.options.iter().any(|option| name_of(option) == name)
    }

    /// The value of the last option of this name.
    fn value(&self, name: &str) -> Option<&str> {
        self.options.iter().rev().find(|option| name_of(option) == name)?.split_once('=').map(|(_, value)| value)
    }

    fn number(&self, name: &str) -> Result<Option<u64>> {
        let parse = |value: &str| value.parse().map_err(|_| Error::misuse(format!("{name}={value}: not a number")));
        self.value(name).map(parse).transpose()
    }

    fn apply(&self, option: &str, kind: Kind, invocation: &mut Invocation) -> Result<()> {
        let (name, value) = option.split_once('=').map_or((option, None), |(name, value)| (name, Some(value)));
        let value = || value.ok_or_else(|| Error::misuse(format!("the option {name} needs a value")));
        let of_truecrypt = matches!(kind, Kind::TrueCrypt | Kind::Unknown);
        match (name, kind) {
            // Options that concern the boot process.
            (
                "noauto" | "auto" | "nofail" | "fail" | "_netdev" | "initramfs" | "early" | "noearly" | "loud"
                | "quiet",
                _,
            ) => {}
            _ if name.starts_with("x-") => {}
            ("readonly" | "read-only", _) => invocation.read_only = true,
            // Options of this program.
            ("allow-slow" | "write-unencrypted", _) => invocation.options.push(format!("--{name}")),
            ("tcrypt-hidden" | "tcrypthidden", Kind::TrueCrypt) => invocation.options.push("--slot=hidden".into()),
            // Detected on a whole disk with an encrypted system.
            ("tcrypt-system", Kind::TrueCrypt) => {
                if let Some((disk, number)) = disk::of_partition(&self.device) {
                    invocation.disk = Some(disk);
                    invocation.options.push(format!("--partition={number}"));
                }
            }
            // More options of this program.
            ("protect-hidden", _) if of_truecrypt => invocation.options.push(format!("--{name}")),
            ("hidden-password-file" | "hidden-keyfile" | "hidden-hash" | "hidden-pim", _) if of_truecrypt => {
                invocation.options.push(format!("--{name}={}", value()?));
            }
            ("tcrypt-keyfile", Kind::TrueCrypt) => invocation.options.push(format!("--keyfile={}", value()?)),
            ("veracrypt-pim", Kind::TrueCrypt) => invocation.options.push(format!("--pim={}", value()?)),
            ("key-slot" | "keyslot", Kind::Luks) => invocation.options.push(format!("--slot={}", value()?)),
            // Options that only name this kind.
            _ if KINDS.iter().any(|(known, of)| *known == name && *of == kind) => {}
            // The keys are only in the detached header, so no other header may be tried.
            ("header", _) if !matches!(kind, Kind::Plain | Kind::LoopAes) => {
                invocation.options.push(format!("--header={}", value()?));
            }
            ("tpm2-device" | "tpm2-signature" | "fido2-device", Kind::Luks) => {
                invocation.options.push(format!("--{name}={}", value()?))
            }
            // The LUKS header records this.
            ("tpm2-pin", Kind::Luks) => {}
            (
                "cipher" | "size" | "hash" | "sector-size",
                Kind::Luks | Kind::TrueCrypt | Kind::BitLocker | Kind::FileVault,
            ) => {}
            // The password of TrueCrypt is always a line.
            ("keyfile-offset" | "keyfile-size", Kind::TrueCrypt) => {}
            ("keyfile-offset" | "keyfile-size", Kind::Luks | Kind::LoopAes)
                if invocation.key == CrypttabKey::Keyfile =>
            {
                invocation.options.push(format!("--{name}={}", value()?));
            }
            ("keyfile-offset", Kind::Plain) if invocation.key == CrypttabKey::Keyfile => {
                invocation.options.push(format!("--{name}={}", value()?));
            }
            // Already applied when the key was read.
            ("keyfile-offset" | "keyfile-size", _)
                if matches!(invocation.key, CrypttabKey::Password { .. } | CrypttabKey::Hashed { .. }) => {}
            // The key size decides how much is read (crypttab(5), `keyfile-size`).
            ("keyfile-size", Kind::Plain) => {}
            // A random key is not hashed and has no offset; a keyfile is not hashed.
            ("hash" | "keyfile-offset", Kind::Plain) if invocation.key == CrypttabKey::Random => {}
            ("hash", Kind::Plain) if invocation.key == CrypttabKey::Keyfile => {}
            ("cipher" | "hash", Kind::Plain | Kind::LoopAes) => {
                invocation.options.push(format!("--{name}={}", value()?))
            }
            ("size", Kind::Plain | Kind::LoopAes) => invocation.options.push(format!("--key-size={}", value()?)),
            ("offset", Kind::Plain | Kind::LoopAes) => invocation.options.push(format!("--data-offset={}s", value()?)),
            ("skip", Kind::Plain | Kind::LoopAes) => invocation.options.push(format!("--skip={}", value()?)),
            ("sector-size", Kind::Plain) => invocation.options.push(format!("--sector-size={}", value()?)),
            ("itercountk", Kind::LoopAes) => invocation.options.push(format!("--itercountk={}", value()?)),
            _ => invocation.ignored.push(format!("{}: the option {name} of the table is ignored", self.name)),
        }
        Ok(())
    }
}

/// The option's name, without its value.
fn name_of(option: &str) -> &str {
    option.split_once('=').map_or(option, |(name, _)| name)
}

/// Whether the path is on another device: `/path:UUID=…`, `/path:/dev/sdx1` (crypttab(5)). A local file may have such a name, too.
fn is_on_a_device(path: &Path) -> bool {
    let device = path.to_str().and_then(|text| text.rsplit_once(':')).map(|(_, device)| device);
    device.is_some_and(|device| device_path(device) != Path::new(device) || device.starts_with("/dev/"))
        && !path.exists()
}

/// The first bytes of a file or device, and a file's length.
struct Start {
    bytes: [u8; 16],
    len: u64,
}

impl Start {
    /// None if the file cannot be read.
    fn of(path: &Path) -> Option<Self> {
        let mut file = File::open(path).ok()?;
        let len = file.metadata().ok()?.len();
        let mut bytes = [0; 16];
        // A shorter file matches no signature.
        let _ = file.read_exact(&mut bytes);
        Some(Self { bytes, len })
    }

    /// The version in a LUKS header (LUKS1 On-Disk Format Specification 1.2.3, section 4.1; LUKS2, section 2.1).
    fn luks_version(&self) -> Option<u16> {
        let version = u16::from_be_bytes([self.bytes[6], self.bytes[7]]);
        self.bytes.starts_with(b"LUKS\xba\xbe").then_some(version)
    }

    fn is_bitlocker(&self) -> bool {
        self.bytes[3..].starts_with(b"-FVE-FS-")
    }

    /// Whether this is a file of BitLocker metadata (`.BEK`): its size, version 1 and its header's size, each of 32 bits.
    fn is_startup_key(&self) -> bool {
        let number = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|i| self.bytes[at + i]));
        u64::from(number(0)) == self.len && number(4) == 1 && number(8) == 48
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use claviger_engine::ErrorKind;

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

    /// The password in the file is never passed on as a keyfile, as it would be for LUKS.
    #[test]
    fn options_of_truecrypt_name_the_kind() {
        for (options, ours) in [
            ("tcrypt-veracrypt", &[][..]),
            ("veracrypt", &[]),
            ("tcrypt-hidden", &["--format=TrueCrypt", "--slot=hidden"]),
            ("tcrypthidden", &["--format=TrueCrypt", "--slot=hidden"]),
            ("tcrypt-system", &["--format=TrueCrypt"]),
            ("tcrypt-keyfile=/a", &["--format=TrueCrypt", "--keyfile=/a"]),
            ("luks,tcrypt", &["--format=TrueCrypt"]),
        ] {
            let got = with_key(options);
            assert_eq!(
                (got.options, got.key),
                (ours.iter().map(|o| (*o).to_owned()).collect(), CrypttabKey::FirstLine),
                "{options}"
            );
        }
        let empty = parse("v /no/device /dev/null tcrypt-veracrypt").expect("an entry")[0].invocation();
        assert_eq!(empty.expect("how to open it").key, CrypttabKey::Empty);
        assert_eq!(with_key("tcrypt,luks").key, CrypttabKey::Keyfile, "the last one counts");
    }

    #[test]
    fn passwords_of_bitlocker_and_filevault_are_in_the_file() {
        for (options, format) in
            [("bitlk", "BitLocker"), ("fvault2", "FileVault2"), ("bitlk,cipher=x,size=9", "BitLocker")]
        {
            let got = with_key(options);
            assert_eq!(
                (got.options, got.key),
                (vec![format!("--format={format}")], CrypttabKey::Password { offset: 0, size: None })
            );
        }
        assert_eq!(
            with_key("bitlk,keyfile-offset=4,keyfile-size=9").key,
            CrypttabKey::Password { offset: 4, size: Some(9) }
        );
        assert_eq!(invocation("bitlk").expect("how to open it").key, CrypttabKey::Asked);
        assert!(invocation("bitlk,keyfile-size=x").is_ok() && key_with("bitlk,keyfile-size=x").is_err());
    }

    #[test]
    fn a_startup_key_is_no_password() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let mut bytes = vec![0; 156];
        bytes[..12].copy_from_slice(&[156, 0, 0, 0, 1, 0, 0, 0, 48, 0, 0, 0]);
        let key = |bytes: &[u8]| {
            std::fs::write(file.path(), bytes).expect("it is written");
            let table = format!("v /no/device {} bitlk", file.path().display());
            parse(&table).expect("an entry")[0].invocation().expect("how to open it").key
        };
        assert_eq!(key(&bytes), CrypttabKey::Keyfile);
        assert_eq!(key(&bytes[..150]), CrypttabKey::Password { offset: 0, size: None });
        assert_eq!(key(b"a password\n"), CrypttabKey::Password { offset: 0, size: None });
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
        assert!(swap.key == CrypttabKey::Random && swap.swap);
        let plain = with_random_key("plain,sector-size=4096").expect("how to open it");
        assert_eq!(plain.options, ["--format=plain", "--sector-size=4096"]);
        assert!(plain.key == CrypttabKey::Random && !plain.swap);
        assert_eq!(with_random_key("cipher=aes-xts-plain64").expect("plain is meant").key, CrypttabKey::Random);
        for options in ["", "luks", "tcrypt", "loop-AES", "bitlk"] {
            let error = with_random_key(options).expect_err("no such thing").to_string();
            assert!(error.contains("random key"), "{options}: {error}");
        }
        for swap in [invocation("swap"), key_with("swap")] {
            assert!(swap.expect_err("no random key").to_string().contains("without a random key"));
        }
    }

    fn key_with(options: &str) -> Result<Invocation> {
        parse(&format!("v /no/device /key {options}")).expect("an entry")[0].invocation()
    }

    fn with_key(options: &str) -> Invocation {
        key_with(options).expect("how to open it")
    }

    #[test]
    fn options_of_luks_become_ours() {
        for options in ["luks", "", "discard"] {
            let bare = invocation(options).expect("how to open it");
            assert_eq!((bare.options, bare.key), (Vec::new(), CrypttabKey::Asked), "{options}");
        }
        let all = with_key("luks,header=/h,key-slot=3,keyfile-offset=512,keyfile-size=64,cipher=aes,size=256,tries=1");
        assert_eq!(all.options, ["--header=/h", "--slot=3", "--keyfile-offset=512", "--keyfile-size=64"]);
        assert!(all.key == CrypttabKey::Keyfile && all.ignored.len() == 1, "{:?}", all.ignored);
        for implied in ["key-slot=3", "keyslot=3"] {
            assert_eq!(with_key(implied).options, ["--slot=3"]);
        }
        let sealed = invocation("luks,tpm2-device=auto,tpm2-pin=yes,tpm2-signature=/s").expect("how to open it");
        assert_eq!(sealed.options, ["--tpm2-device=auto", "--tpm2-signature=/s"]);
        let computed = invocation("luks,fido2-device=auto").expect("how to open it");
        assert_eq!(computed.options, ["--fido2-device=auto"]);
        assert!(sealed.ignored.is_empty() && computed.ignored.is_empty());
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
        let key = with_key("plain,keyfile-offset=4,keyfile-size=99,hash=plain");
        assert_eq!(
            (key.key, key.options),
            (CrypttabKey::Keyfile, ["--format=plain", "--keyfile-offset=4"].map(String::from).into())
        );
        let hashed = with_key("plain,hash=sha256,size=512,keyfile-offset=4,keyfile-size=99");
        assert_eq!(hashed.options, ["--format=plain", "--hash=sha256", "--key-size=512"]);
        assert_eq!((hashed.key, hashed.ignored.len()), (CrypttabKey::Hashed { offset: 4, size: 64 }, 0));
        assert_eq!(with_key("plain,hash=sha1").key, CrypttabKey::Hashed { offset: 0, size: 32 });
        let loop_aes = with_key("loop-AES,cipher=aes,size=128,offset=@16,hash=sha256,sector-size=512");
        assert_eq!(
            loop_aes.options,
            ["--format=loop-AES", "--cipher=aes", "--key-size=128", "--data-offset=@16s", "--hash=sha256"]
        );
        assert_eq!(loop_aes.ignored.len(), 1);
        assert!(invocation("plain,size").is_err(), "no value");
    }

    #[test]
    fn what_a_device_begins_with_is_its_kind() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let device = file.path().display();
        let of = |table: String| parse(&table).expect("an entry")[0].invocation();
        let first =
            || of(format!("v {device} - cipher=aes,size=256")).expect("how to open it").options.first().cloned();
        assert_eq!(first().as_deref(), Some("--format=plain"));
        std::fs::write(file.path(), b"\xeb\x58\x90-FVE-FS-\0\x02\x08\0\0").expect("it is written");
        assert_eq!(first().as_deref(), Some("--format=BitLocker"));
        let bitlocker = of(format!("v {device} /key discard")).expect("how to open it");
        assert_eq!(bitlocker.key, CrypttabKey::Password { offset: 0, size: None });
        for version in [1, 2] {
            std::fs::write(file.path(), [&b"LUKS\xba\xbe\0"[..], &[version; 20]].concat()).expect("it is written");
            assert_eq!(first(), Some(format!("--format=LUKS{version}")));
        }
        // No kind of volume matches, so the key has no meaning.
        std::fs::write(file.path(), [7; 4096]).expect("it is written");
        let error = of(format!("v {device} /key discard")).expect_err("no kind").to_string();
        assert!(error.contains("no kind of volume") && error.contains("tcrypt-veracrypt"), "{error}");
        assert_eq!(of(format!("v {device} none discard")).expect("it is asked for").key, CrypttabKey::Asked);
        assert_eq!(of(format!("v {device} /key luks")).expect("how to open it").options, ["--format=LUKS2"]);
    }

    #[test]
    fn keys_that_others_make_are_refused_by_name() {
        for (line, named) in [
            ("v /no/device /key luks,keyscript=/bin/x", "keyscript"),
            ("v /no/device x keyscript=decrypt_derived", "keyscript"),
            ("v /no/device /key luks,pkcs11-uri=auto", "pkcs11-uri"),
            ("v /no/device /key fido2-device=auto,fido2-cid=AA,fido2-rp=x", "fido2-device"),
            ("v /no/device /key luks,tpm2-device=auto", "tpm2-device"),
            ("v /no/device /keyfile:UUID=1234-ABCD luks", "/keyfile:UUID=1234-ABCD"),
            ("v /no/device /keyfile:LABEL=usb", "/keyfile:LABEL=usb"),
            ("v /no/device /keyfile:/dev/sdx1 luks", "/keyfile:/dev/sdx1"),
            ("v /no/device none luks,header=/h:UUID=1", "/h:UUID=1"),
            ("v /no/device /dev/urandom tmp", "tmp"),
            ("v /no/device /dev/urandom tmp=ext4,plain", "tmp"),
            ("v /no/device none tmp,swap", "tmp"),
        ] {
            let error = parse(line).expect("an entry")[0].invocation().expect_err(line);
            assert!(
                error.to_string().contains(named) && matches!(error.kind, ErrorKind::Unsupported { .. }),
                "{line}: {error}"
            );
        }
        let folder = tempfile::tempdir().expect("a folder");
        let key = folder.path().join("key:UUID=x");
        std::fs::write(&key, "k").expect("a file");
        let line = format!("v /no/device {} luks", key.display());
        assert_eq!(
            parse(&line).expect("an entry")[0].invocation().expect("a file of this name").key,
            CrypttabKey::Keyfile
        );
    }

    #[test]
    fn a_key_is_looked_for_under_the_name() {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("v.key"), "k").expect("a file");
        let key = |line: &str| {
            let mut entry = parse(line).expect("an entry").remove(0);
            entry.find_key(&[Path::new("/no/folder"), folder.path()]);
            entry.key
        };
        assert_eq!(key("v /no/device none luks"), Some(folder.path().join("v.key")));
        assert_eq!(key("v /no/device /key luks"), Some("/key".into()));
        assert_eq!(key("w /no/device"), None);
    }

    /// Covers every option of crypttab(5) of systemd 257 and Debian's cryptsetup 2.7. Each is carried out, ignored as
    /// irrelevant, or named in a warning or error, and none is mistaken for another.
    #[test]
    fn every_option_of_crypttab_is_known() {
        /// Options that change nothing here: they concern the boot process, or the header records them.
        #[rustfmt::skip]
        const SILENT: &[&str] = &[
            "noauto", "auto", "nofail", "fail", "_netdev", "x-systemd.device-timeout=9", "x-initrd.attach",
            "x-systemd.makefs", "initramfs", "loud", "quiet", "noearly", "luks",
        ];
        const DONE: &[(&str, &str)] = &[
            ("readonly", ""),
            ("read-only", ""),
            ("header=/h", "--header=/h"),
            ("key-slot=1", "--slot=1"),
            ("keyslot=1", "--slot=1"),
            ("keyfile-offset=1", "--keyfile-offset=1"),
            ("keyfile-size=1", "--keyfile-size=1"),
            ("plain", "--format=plain"),
            ("tcrypt", "--format=TrueCrypt"),
            ("tcrypt-hidden", "--slot=hidden"),
            ("tcrypt-keyfile=/k", "--keyfile=/k"),
            ("tcrypt-system", "--format=TrueCrypt"),
            ("bitlk", "--format=BitLocker"),
            ("fvault2", "--format=FileVault2"),
            ("plain,cipher=aes", "--cipher=aes"),
            ("plain,size=128", "--key-size=128"),
            ("plain,hash=sha1", "--hash=sha1"),
            ("plain,offset=8", "--data-offset=8s"),
            ("plain,skip=8", "--skip=8"),
            ("plain,sector-size=4096", "--sector-size=4096"),
            ("veracrypt,veracrypt-pim=5", "--pim=5"),
            ("tcrypt-veracrypt,veracrypt-pim=5", "--pim=5"),
        ];
        #[rustfmt::skip]
        const WARNED: &[&str] = &[
            "discard", "allow-discards", "keyfile-erase", "keyfile-erase=yes", "keyfile-timeout=9",
            "link-volume-key=@u::%user:x", "same-cpu-crypt", "submit-from-crypt-cpus", "no-read-workqueue",
            "no-write-workqueue", "timeout=9", "tries=3", "headless=yes", "verify", "password-echo=no",
            "password-cache=no", "fido2-rp=x", "fido2-pin=yes", "fido2-up=yes", "fido2-uv=yes", "tpm2-pcrs=7",
            "tpm2-pcrlock=/x", "tpm2-measure-pcr=yes", "tpm2-measure-bank=sha256", "tpm2-measure-keyslot-nvpcr=yes",
            "fixate-volume-key=00", "token-timeout=9", "try-empty-password", "try-empty-password=yes",
            "veracrypt-pim=5", "veracrypt-query-pim", "offset=8", "skip=8", "check", "check=blkid",
            "checkargs=ext4", "perf-no_read_workqueue", "an-option-to-come",
        ];
        #[rustfmt::skip]
        const REFUSED: &[&str] = &[
            "keyscript=/x", "pkcs11-uri=auto", "fido2-device=auto", "fido2-cid=AA", "tpm2-device=auto", "swap",
            "tmp",
        ];
        for option in SILENT {
            let got = with_key(option);
            assert!(got.options.is_empty() && got.ignored.is_empty(), "{option}: {got:?}");
        }
        for (options, ours) in DONE {
            let options = if options.starts_with("keyfile") { &format!("luks,{options}") } else { *options };
            let got = with_key(options);
            assert!(got.ignored.is_empty(), "{options}: {got:?}");
            assert!(
                if ours.is_empty() { got.read_only } else { got.options.iter().any(|o| o == ours) },
                "{options}: {got:?}"
            );
        }
        for option in WARNED {
            let got = with_key(&format!("luks,{option}"));
            let [warning] = &got.ignored[..] else { panic!("{option}: {got:?}") };
            assert!(warning.contains(name_of(option)) && got.options.is_empty(), "{option}: {got:?}");
        }
        for option in REFUSED {
            let error = key_with(option).expect_err(option).to_string();
            assert!(error.contains(name_of(option)), "{option}: {error}");
        }
    }
}
