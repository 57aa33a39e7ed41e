//! Lines of /etc/crypttab, as crypttab(5) of systemd and of Debian's cryptsetup describe them, and what they come to for
//! `claviger mount`.

use std::path::{Path, PathBuf};

use claviger_engine::{Error, Result};

use super::disk;

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

/// What an entry comes to.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// The file or device to open, where it is not the one of the line: an encrypted system has its header on the disk, and
    /// the line may name one of its partitions.
    pub disk: Option<PathBuf>,
    /// Options of `claviger mount` and `claviger serve`.
    pub options: Vec<String>,
    /// Whether nothing may be written.
    pub read_only: bool,
    /// What is not done, in sentences.
    pub ignored: Vec<String>,
}

/// Kinds of volumes that options name, and whether they are TrueCrypt's family. A line that names none is LUKS or plain.
const KINDS: &[(&str, bool)] = &[
    ("tcrypt", true),
    ("luks", false),
    ("plain", false),
    ("bitlk", false),
    ("loop-AES", false),
    ("loopaes", false),
    ("swap", false),
    ("tmp", false),
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

    /// What this program makes of it.
    ///
    /// # Errors
    /// `Unsupported` for kinds of volumes that it does not open; `Misuse` for options without their value.
    pub fn plan(&self) -> Result<Plan> {
        let kind = KINDS.iter().find(|(name, _)| self.has(name));
        if !kind.is_some_and(|(_, ours)| *ours) {
            let kind = kind.map_or("LUKS and plain", |(name, _)| name);
            return Err(Error::unsupported(format!("volumes of the kind {kind} are not yet supported"))
                .hint("TrueCrypt and VeraCrypt volumes are, with the option tcrypt."));
        }
        let mut plan = Plan::default();
        let veracrypt = self.has("tcrypt-veracrypt") || self.has("veracrypt");
        if !veracrypt {
            plan.options.push("--format=TrueCrypt".into());
        }
        for option in &self.options {
            self.apply(option, &mut plan)?;
        }
        Ok(plan)
    }

    fn apply(&self, option: &str, plan: &mut Plan) -> Result<()> {
        let (name, value) = option.split_once('=').map_or((option, None), |(name, value)| (name, Some(value)));
        let value = || value.ok_or_else(|| Error::misuse(format!("the option {name} needs a value")));
        match name {
            "tcrypt" | "tcrypt-veracrypt" | "veracrypt" | "noauto" | "auto" | "nofail" => {}
            "tcrypt-hidden" | "tcrypthidden" => plan.options.push("--slot=hidden".into()),
            // Of a whole disk that holds a system this is found out.
            "tcrypt-system" => {
                if let Some((disk, number)) = disk::of_partition(&self.device) {
                    plan.disk = Some(disk);
                    plan.options.push(format!("--partition={number}"));
                }
            }
            "tcrypt-keyfile" => plan.options.push(format!("--keyfile={}", value()?)),
            "veracrypt-pim" => plan.options.push(format!("--pim={}", value()?)),
            "readonly" | "read-only" => plan.read_only = true,
            "_netdev" | "initramfs" | "loud" | "quiet" => {}
            _ if name.starts_with("x-") => {}
            _ => plan.ignored.push(format!("{}: the option {name} of the table is ignored", self.name)),
        }
        Ok(())
    }
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

    fn plan(options: &str) -> Result<Plan> {
        parse(&format!("v /no/device - {options}")).expect("an entry")[0].plan()
    }

    #[test]
    fn options_of_truecrypt_become_ours() {
        let all = plan(
            "tcrypt,tcrypt-hidden,tcrypt-keyfile=/a,tcrypt-keyfile=/b,veracrypt-pim=7,tcrypt-veracrypt,readonly,noauto",
        )
        .expect("a plan");
        assert_eq!(all.options, ["--slot=hidden", "--keyfile=/a", "--keyfile=/b", "--pim=7"]);
        assert!(all.read_only && all.ignored.is_empty());
        let system = plan("tcrypt,tcrypt-system").expect("a plan");
        assert_eq!((system.options, system.disk), (vec!["--format=TrueCrypt".to_owned()], None), "no partition");
        let ignored = plan("tcrypt,discard,tries=3").expect("a plan").ignored;
        assert!(ignored[0].contains("discard") && ignored[1].contains("tries") && ignored.len() == 2, "{ignored:?}");
        assert!(plan("tcrypt,tcrypt-keyfile").is_err(), "no value");
    }

    #[test]
    fn other_kinds_say_that_they_are_not_supported() {
        for options in ["luks", "plain,cipher=aes", "bitlk", "loop-AES", "", "swap"] {
            let error = plan(options).expect_err("another kind").to_string();
            assert!(error.contains("not yet supported"), "{options}: {error}");
        }
    }
}
