//! The ways in which mount(8) calls this program: as `mount.fuse.claviger` or `mount.claviger`, which are links to it
//! (mount(8), "External helpers"), and as `claviger VOLUME DIR -o OPTIONS` (mount.fuse(8)).

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::process::ExitCode;

/// Options of mount(8) that `claviger mount` has, too; a value follows `=`.
const OURS: &[(&str, &str)] = &[
    ("keyfile", "--keyfile"),
    ("qnap", "--qnap"),
    ("password-file", "--password-file"),
    ("no-password", "--no-password"),
    ("format", "--format"),
    ("hash", "--hash"),
    ("cipher", "--cipher"),
    ("pim", "--pim"),
    ("veracrypt", "--veracrypt"),
    ("truecrypt", "--truecrypt"),
    ("slot", "--slot"),
    ("partition", "--partition"),
    ("logical-volume", "--logical-volume"),
    ("backup-header", "--backup-header"),
    ("truncated", "--truncated"),
    ("allow-slow", "--allow-slow"),
    ("write-unencrypted", "--write-unencrypted"),
    ("ro", "--read-only"),
    ("writeback", "--writeback"),
    ("filesystem", "--filesystem"),
    ("idle", "--idle"),
    ("memory", "--memory"),
    ("protect-hidden", "--protect-hidden"),
    ("hidden-password-file", "--hidden-password-file"),
    ("hidden-keyfile", "--hidden-keyfile"),
    ("hidden-hash", "--hidden-hash"),
    ("hidden-pim", "--hidden-pim"),
    ("header", "--header"),
    ("isolate-keys", "--isolate-keys"),
    ("keys-in-registers", "--keys-in-registers"),
    ("token-only", "--token-only"),
    ("tpm2-device", "--tpm2-device"),
    ("tpm2-pin-file", "--tpm2-pin-file"),
    ("tpm2-signature", "--tpm2-signature"),
    ("fido2-device", "--fido2-device"),
    ("fido2-pin-file", "--fido2-pin-file"),
    ("tang", "--tang"),
    ("key-size", "--key-size"),
    ("folder", "--folder"),
    ("folder-password-file", "--folder-password-file"),
    ("wrapped-passphrase", "--wrapped-passphrase"),
    ("name-password-file", "--name-password-file"),
    ("no-name-encryption", "--no-name-encryption"),
    ("passthrough", "--passthrough"),
    ("encrypted-view", "--encrypted-view"),
    ("reverse", "--reverse"),
    ("xattr-metadata", "--xattr-metadata"),
];

/// Options that only mount(8) handles, or that are always in effect.
const THEIRS: &[&str] = &[
    "rw", "defaults", "auto", "noauto", "user", "users", "owner", "group", "nouser", "nofail", "_netdev", "nosuid",
    "nodev",
];

/// Translates the command line of mount(8) and its like into `claviger`'s own; returns other command lines unchanged.
///
/// # Errors
/// The exit code, if there is nothing to do.
pub fn words(words: Vec<OsString>, command: clap::Command) -> Result<Vec<OsString>, ExitCode> {
    let called = words.first().map(Path::new).and_then(Path::file_name).unwrap_or_default();
    if called.as_bytes().starts_with(b"mount.") {
        return translated(&words, true);
    }
    let is_verb = |word: &OsStr| {
        let known = |name: &str| word == name;
        known("help") || command.get_subcommands().any(|verb| known(verb.get_name()))
    };
    match &words[..] {
        // No verb has -o as its third argument. A volume with the name of a verb is given with its path.
        [_, volume, _, option, _, ..] if option == "-o" && !is_verb(volume) && !volume.as_bytes().starts_with(b"-") => {
            translated(&words, false)
        }
        _ => Ok(words),
    }
}

/// With `trusted`, the options are exactly what the user wrote; mount.fuse adds dev and suid on its own.
fn translated(words: &[OsString], trusted: bool) -> Result<Vec<OsString>, ExitCode> {
    let mut rest = words.iter().skip(1);
    let mut places = Vec::new();
    let mut options = Vec::new();
    while let Some(word) = rest.next() {
        match word.as_bytes() {
            b"-o" => options.extend(rest.next().into_iter().flat_map(|o| o.as_bytes().split(|b| *b == b','))),
            b"-t" | b"-N" => drop(rest.next()),
            // A dry run (mount(8), -f).
            b"-f" => return Err(ExitCode::SUCCESS),
            [b'-', flags @ ..] if !flags.is_empty() && flags.iter().all(|f| b"fnsvrw".contains(f)) => {
                if flags.contains(&b'f') {
                    return Err(ExitCode::SUCCESS);
                }
                if flags.contains(&b'r') {
                    options.push(b"ro");
                }
            }
            _ => places.push(word.clone()),
        }
    }
    let mut line: Vec<OsString> = vec!["claviger".into(), "mount".into()];
    for option in options.into_iter().filter(|option| !option.is_empty()) {
        line.extend(translate(option, trusted));
    }
    line.push("--".into());
    line.extend(places);
    Ok(line)
}

fn translate(option: &[u8], trusted: bool) -> Vec<OsString> {
    let text = |bytes: &[u8]| OsString::from_vec(bytes.to_vec());
    let (name, value) = match option.iter().position(|b| *b == b'=') {
        Some(at) => (&option[..at], Some(&option[at + 1..])),
        None => (option, None),
    };
    let is = |known: &str| known.as_bytes() == name;
    if THEIRS.iter().any(|known| is(known)) || name.starts_with(b"x-") || is("comment") || is("subtype") {
        return Vec::new();
    }
    if !trusted && (is("dev") || is("suid")) {
        return Vec::new();
    }
    match OURS.iter().find(|(known, _)| is(known)) {
        Some((_, ours)) => match value {
            Some(value) => vec![text(&[ours.as_bytes(), b"=", value].concat())],
            None => vec![(*ours).into()],
        },
        None => vec!["-o".into(), text(option)],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(text: &str) -> String {
        let words = text.split(' ').map(OsString::from).collect();
        let line = words_of(words).expect("something to do");
        line.iter().map(|w| w.display().to_string()).collect::<Vec<_>>().join(" ")
    }

    fn words_of(line: Vec<OsString>) -> Result<Vec<OsString>, ExitCode> {
        words(line, crate::command())
    }

    #[test]
    fn mount_calls_its_helper() {
        assert_eq!(
            line(
                "/sbin/mount.fuse.claviger /v.tc /mnt -o rw,noauto,keyfile=/a,keyfile=/b,noatime,x-y.z=1 -t fuse.claviger"
            ),
            "claviger mount --keyfile=/a --keyfile=/b -o noatime -- /v.tc /mnt"
        );
        assert_eq!(
            line("/sbin/mount.claviger /v.tc /mnt -sn -o ro,idle=10m"),
            "claviger mount --read-only --idle=10m -- /v.tc /mnt"
        );
        assert_eq!(line("mount.claviger /v.tc /mnt -r"), "claviger mount --read-only -- /v.tc /mnt");
        assert!(words_of(["mount.claviger", "/v", "/m", "-f"].map(OsString::from).into()).is_err(), "a rehearsal");
    }

    #[test]
    fn every_option_of_ours_is_one_of_mount() {
        let command = crate::command();
        let mount = command.find_subcommand("mount").expect("a verb");
        for (_, option) in OURS {
            assert!(mount.get_arguments().any(|a| a.get_long() == option.strip_prefix("--")), "{option}");
        }
    }

    #[test]
    fn mount_fuse_calls_the_program_itself() {
        assert_eq!(
            line("claviger /v.tc /mnt -o rw,dev,suid,password-file=/p"),
            "claviger mount --password-file=/p -- /v.tc /mnt"
        );
        for same in ["claviger mount /v.tc /mnt -o noatime", "claviger info v.tc", "claviger list"] {
            assert_eq!(line(same), same);
        }
    }
}
