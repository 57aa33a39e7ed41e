//! Our own formats as facilities, made from the engine's table of formats, and the same servers without encryption.

use std::collections::BTreeMap;

use claviger_engine::file_formats::{CLEAR, FILE_FORMATS, FileFormat};
use claviger_engine::formats::Creator;
use claviger_engine::formats::takes::Parameter;
use claviger_engine::{FORMATS, Format};

use super::{CommandStep, Facility, FacilityRequirements, Gives, StoreKind};

/// The unencrypted file as a FUSE image.
pub const PLAIN: &str = "plain";

/// The unencrypted file over NBD.
pub const PLAIN_NBD: &str = "plain-nbd";

/// The unencrypted folder, mounted.
pub const PLAIN_FILES: &str = "plain-files";

/// The prefix of the names of facilities that are served over NBD.
pub const NBD: &str = "nbd/";

/// The prefix of the names of facilities that encrypt file by file: other programs have some of the same formats.
const FILES: &str = "files/";

/// What protects the data of LUKS2 from changes, one of each kind: a cipher with a code beside it, and ciphers that do
/// both.
const INTEGRITY: &[&str] = &["hmac-sha256", "aes-gcm-random", "chacha20-poly1305", "aegis128-random"];

/// What a format takes besides its name and its cipher.
struct Manner {
    format: &'static str,
    /// Options that make key derivation cheap; see [`Facility::cheap`].
    create_cheap: &'static [&'static str],
    /// Options that open a volume made with `create_cheap`.
    cheap: &'static [&'static str],
    create: &'static [&'static str],
    open: &'static [&'static str],
    /// Options to encrypt in place, if the format can, and the contents that this requires.
    encrypt: &'static [&'static str],
    plaintext: &'static [&'static str],
}

/// What opens a volume by a passphrase.
const PASSPHRASE: &[&str] = &["--password-file", "{password-file}"];

/// The options of formats that are not listed below.
const MANNER: Manner = Manner {
    format: "",
    create_cheap: &[],
    cheap: &[],
    create: PASSPHRASE,
    open: PASSPHRASE,
    encrypt: &[],
    plaintext: &[],
};

const MANNERS: &[Manner] = &[
    Manner { format: "VeraCrypt", create_cheap: &["--pim", "1"], cheap: &["--pim", "1"], ..MANNER },
    Manner { format: "LUKS1", create_cheap: &["--iterations", "1000"], ..MANNER },
    Manner {
        format: "LUKS2",
        create_cheap: &["--kdf", "pbkdf2", "--iterations", "1000"],
        encrypt: &["--new-kdf", "pbkdf2", "--new-iterations", "1000", "--reduce-device-size", "32M"],
        ..MANNER
    },
    // A recovery password would be of no use, and its key costs a second derivation.
    Manner {
        format: "BitLocker",
        create: &["--password-file", "{password-file}", "--no-recovery-password"],
        encrypt: &["--no-recovery-password"],
        plaintext: &["mkfs.vfat", "-F", "32", "-I", "{store}", "{kib}"],
        ..MANNER
    },
    Manner {
        format: "loop-AES",
        create: &["--fresh-keyfile", "{dir}/keys", "--unencrypted-keyfile"],
        open: &["--no-password", "--keyfile", "{dir}/keys"],
        ..MANNER
    },
];

/// A volume with a cipher that its format does not offer for new volumes, as a study had it.
struct Another {
    format: &'static str,
    /// The suffix of the format's name.
    name: &'static str,
    cipher: &'static str,
    /// Whether loop-AES derives its only key from a passphrase, of the size that its `AES256` has.
    one_key: bool,
}

const OTHERS: &[Another] = &[
    Another { format: PLAIN, name: "serpent-cbc-essiv", cipher: "serpent-cbc-essiv:sha256", one_key: false },
    Another { format: PLAIN, name: "twofish-cbc-essiv", cipher: "twofish-cbc-essiv:sha256", one_key: false },
    Another { format: "loop-AES", name: "one-key", cipher: "aes", one_key: true },
    Another { format: "loop-AES", name: "one-key-serpent", cipher: "serpent", one_key: true },
    Another { format: "loop-AES", name: "one-key-twofish", cipher: "twofish", one_key: true },
];

/// Another way to encrypt a folder than the default.
struct Variant {
    format: &'static str,
    /// The suffix of the format's name, which is also its title.
    name: &'static str,
    open: &'static [&'static str],
}

const VARIANTS: &[Variant] = &[Variant { format: "eCryptfs", name: "clear-names", open: &["--no-name-encryption"] }];

/// A line to a server that has the encrypted data.
#[derive(PartialEq, Eq)]
struct Line {
    /// The prefix of the names of facilities over this line.
    prefix: &'static str,
    /// For people.
    what: &'static str,
    /// The delay of each read and write; nbdkit counts whole milliseconds.
    delay: &'static str,
    /// Bits a second in each direction.
    rate: &'static str,
}

/// A machine of the same data centre, and one of another town.
const LINES: &[Line] = &[
    Line { prefix: "near/", what: "1 ms, 10 Gbit/s", delay: "1ms", rate: "10G" },
    Line { prefix: "far/", what: "5 ms, 1 Gbit/s", delay: "5ms", rate: "1G" },
];

/// How an open volume is reached, or what it lies on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Transport {
    Fuse,
    Nbd,
    /// By FUSE, with the data over a line.
    Line(&'static Line),
}

/// The servers without encryption, then every format that can be created with every cipher, its default first; each as
/// a FUSE image, then all over NBD, then for each line each format once. Then the unencrypted folder, and every format that
/// encrypts file by file.
pub fn all() -> Vec<Facility> {
    let of = |transport: Transport| [plain(transport)].into_iter().chain(encrypted(transport));
    let on_lines = LINES.iter().flat_map(|line| of(Transport::Line(line)).filter(|f| !f.name.contains(':')));
    let volumes = of(Transport::Fuse).chain(of(Transport::Nbd)).chain(on_lines);
    volumes.chain([plain_files()]).chain(encrypted_files()).collect()
}

/// The default facilities: without encryption, and each format with its default cipher.
pub fn defaults() -> Vec<String> {
    let volumes = [PLAIN.to_owned()].into_iter().chain(creatable().map(|(format, _)| name_of(format)));
    volumes.chain([PLAIN_FILES.to_owned()]).chain(folders().map(|format| folder_name(format, None))).collect()
}

/// Whether it is one of the servers without encryption.
pub fn is_baseline(name: &str) -> bool {
    [PLAIN, PLAIN_NBD, PLAIN_FILES].contains(&name)
}

fn encrypted(transport: Transport) -> impl Iterator<Item = Facility> {
    creatable().flat_map(move |(format, creator)| {
        let ciphers = creator.choices().ciphers;
        let suites = ciphers.into_iter().enumerate().map(move |(i, cipher)| {
            let name = if i == 0 { name_of(format) } else { format!("{}:{cipher}", name_of(format)) };
            suite(format, name, cipher, &["--cipher", cipher], None, transport)
        });
        let integrity = if format.takes().creating.contains(&Parameter::Integrity) { INTEGRITY } else { &[] };
        let others = OTHERS.iter().filter(move |another| another.format == format.name()).map(move |another| {
            let Another { name, cipher, one_key, .. } = *another;
            let name = format!("{}:{name}", name_of(format));
            let (what, wish) = (format!("{cipher}, one key of 256 bits"), ["--cipher", cipher, "--key-size", "256"]);
            match one_key {
                true => suite(format, name, &what, &wish, Some(&MANNER), transport),
                false => suite(format, name, cipher, &wish[..2], None, transport),
            }
        });
        let suites = suites.chain(others);
        suites.chain(integrity.iter().map(move |code| {
            let name = format!("{}:{code}", name_of(format));
            suite(format, name, &format!("integrity by {code}"), &["--integrity", code], None, transport)
        }))
    })
}

/// A facility's name for a format: the format's own, unless the baseline has that name.
fn name_of(format: &dyn Format) -> String {
    let name = format.name();
    if name == PLAIN { format!("{name}-format") } else { name.to_owned() }
}

/// The formats of which this program can create volumes, each with its creator.
fn creatable() -> impl Iterator<Item = (&'static dyn Format, &'static dyn Creator)> {
    FORMATS.iter().filter_map(|format| Some((*format, format.creator()?)))
}

fn suite(
    format: &dyn Format,
    name: String,
    what: &str,
    wish: &[&str],
    manner: Option<&Manner>,
    transport: Transport,
) -> Facility {
    let usual = || MANNERS.iter().find(|manner| manner.format == format.name()).unwrap_or(&MANNER);
    let manner = manner.unwrap_or_else(usual);
    let named = ["--format", format.name()];
    // The store is there already: a file of the right size, or a device.
    let create = |more: &[&str]| {
        step(
            &[&["{claviger}", "create", "--force", "--yes"], &named[..], wish, manner.create, more, &["{store}"]]
                .concat(),
        )
    };
    // Authenticated sectors have to be written before they can be read.
    let quick: &[&str] = if wish.contains(&"--integrity") { &[] } else { &["--quick"] };
    // Without a header nothing says which cipher it is.
    let cipher = if format.headerless() { wish } else { &[] };
    let open = [&named[..], cipher, manner.open, &["{cheap}"]].concat();
    // Once for each format: the cipher is that of new volumes. Not over a line: encrypting in place would bypass the
    // line and work on the file itself.
    let once = name == name_of(format) && !matches!(transport, Transport::Line(_));
    let in_place = if once { manner.encrypt } else { &[] };
    let encrypt = |more| {
        [&["{claviger}", "reencrypt", "--encrypt", "--yes"], &named[..], PASSPHRASE, more, &["{store}"]].concat()
    };
    let forget_keys = manner.create.contains(&"{dir}/keys").then(|| step(&["rm", "-f", "{dir}/keys"]));
    Facility {
        name: prefixed(name, transport),
        title: format!("this engine, {} format, {what} ({})", format.name(), transport_words(transport)),
        about: format!("The file is encrypted by this program as {} does it. {}", format.name(), layer(transport)),
        create: forget_keys.clone().into_iter().chain([create(&[manner.create_cheap, quick].concat())]).collect(),
        create_default: forget_keys.into_iter().chain([create(&[])]).collect(),
        encrypt: (!in_place.is_empty()).then(|| step(&encrypt(in_place))).into_iter().collect(),
        plaintext: manner.plaintext.first().map(|_| step(manner.plaintext)).into_iter().collect(),
        cheap: manner.cheap.iter().map(ToString::to_string).collect(),
        open: serve(&open, transport),
        baseline: Some(plain(transport).name),
        ..plain(transport)
    }
}

/// The same server without encryption.
fn plain(transport: Transport) -> Facility {
    let fuse = transport != Transport::Nbd;
    Facility {
        name: match transport {
            Transport::Nbd => PLAIN_NBD.to_owned(),
            Transport::Fuse | Transport::Line(_) => prefixed(PLAIN.to_owned(), transport),
        },
        title: format!("unencrypted file, this program's server ({})", transport_words(transport)),
        baseline: None,
        about: format!("The same server as for the formats of this program, without encryption. {}", layer(transport)),
        store: StoreKind::File,
        gives: if fuse { Gives::Bytes } else { Gives::Nbd },
        opened: if fuse { "{open}/volume" } else { "{open}" }.to_owned(),
        needs: FacilityRequirements {
            paths: if fuse { vec!["/dev/fuse".into()] } else { vec![] },
            ..if let Transport::Line(_) = transport { nbdkit() } else { FacilityRequirements::default() }
        },
        version: ["{claviger}", "--version"].map(ToOwned::to_owned).to_vec(),
        create: Vec::new(),
        create_default: Vec::new(),
        encrypt: Vec::new(),
        plaintext: Vec::new(),
        cheap: Vec::new(),
        trace: ["--trace", "{trace-file}"].map(ToOwned::to_owned).to_vec(),
        open: serve(&["--raw"], transport),
        close: Vec::new(),
    }
}

fn encrypted_files() -> impl Iterator<Item = Facility> {
    folders().flat_map(|format| {
        let variants = VARIANTS.iter().filter(move |variant| variant.format == format.name());
        let variants = variants.map(move |v| folder(format, Some((v.name, &v.name.replace('-', " "))), &[], v.open));
        let ciphers = format.key_file().map_or_else(Vec::new, |_| format.ciphers()).into_iter().skip(1);
        let ciphers = ciphers.map(move |cipher| folder(format, Some((cipher, cipher)), &["--cipher", cipher], &[]));
        [folder(format, None, &[], &[])].into_iter().chain(variants).chain(ciphers)
    })
}

/// The formats of folders that this program makes, and that a passphrase is enough for.
fn folders() -> impl Iterator<Item = &'static dyn FileFormat> {
    FILE_FORMATS.iter().copied().filter(|format| format.asks_passphrase(&[]) && !format.ciphers().is_empty())
}

fn folder_name(format: &dyn FileFormat, variant: Option<&str>) -> String {
    let variant = variant.map(|variant| format!(":{variant}")).unwrap_or_default();
    format!("{FILES}{}{variant}", format.name())
}

/// A folder of this format. `variant` is the suffix of its name, and of its title. `create` and `open` are further options.
fn folder(format: &dyn FileFormat, variant: Option<(&str, &str)>, create: &[&str], open: &[&str]) -> Facility {
    let named = ["--format", format.name()];
    let words = variant.map(|(_, words)| format!(", {words}")).unwrap_or_default();
    // An empty folder becomes one of a format without a key file when it is mounted.
    let create = format
        .key_file()
        .map(|_| step(&[&["{claviger}", "create"], &named[..], create, PASSPHRASE, &["{store}"]].concat()));
    Facility {
        name: folder_name(format, variant.map(|(name, _)| name)),
        title: format!("this engine, {} format{words} (FUSE folder)", format.name()),
        baseline: Some(PLAIN_FILES.to_owned()),
        about: format!("Each file is encrypted by this program as {} does it. {FOLDER_LAYER}", format.name()),
        create: create.into_iter().collect(),
        open: vec![mount_folder(&[&named[..], PASSPHRASE, open].concat())],
        ..plain_files()
    }
}

/// The same server without encryption.
fn plain_files() -> Facility {
    Facility {
        name: PLAIN_FILES.to_owned(),
        title: "unencrypted folder, this program's server (FUSE folder)".to_owned(),
        about: format!("The same server as for formats that encrypt file by file, without encryption. {FOLDER_LAYER}"),
        store: StoreKind::Folder,
        gives: Gives::Folder,
        opened: "{open}".to_owned(),
        trace: Vec::new(),
        open: vec![mount_folder(&["--format", CLEAR.name()])],
        ..plain(Transport::Fuse)
    }
}

const FOLDER_LAYER: &str = "A folder served by FUSE, whose files are stored in another folder. Writes are passed on \
    at once; data that were read may stay in the page cache.";

fn mount_folder(how: &[&str]) -> CommandStep {
    let words = [&["{claviger}", "mount", "--foreground"], how, &["{store}", "{open}"]].concat();
    CommandStep { until_there: Some("{open}".into()), ..step(&words) }
}

/// In the foreground, so that it ends with the lab, however the lab ends.
fn serve(how: &[&str], transport: Transport) -> Vec<CommandStep> {
    let mount: &[&str] = &["{claviger}", "mount", "--foreground", "--filesystem", "none"];
    let (verb, place, until_there): (_, &[&str], _) = match transport {
        Transport::Fuse => (mount, &["{store}", "{open}"], "{open}/volume"),
        Transport::Nbd => (&["{claviger}", "serve", "--socket", "{open}"][..], &["{store}"], "{open}"),
        Transport::Line(_) => (mount, &["nbd+unix:///?socket={dir}/line", "{open}"], "{open}/volume"),
    };
    let served =
        CommandStep { until_there: Some(until_there.into()), ..step(&[verb, how, &["{trace}"], place].concat()) };
    match transport {
        Transport::Line(line) => line.begin().into_iter().chain([served]).collect(),
        Transport::Fuse | Transport::Nbd => vec![served],
    }
}

impl Line {
    /// nbdkit serves the store, and listens at `{dir}/line` as soon as it has written its process number. Its burst is
    /// limited to a hundredth of a second's bytes; by default it is two seconds' worth, more than a short transfer has.
    fn begin(&self) -> [CommandStep; 2] {
        let (read, write) = (format!("delay-read={}", self.delay), format!("delay-write={}", self.delay));
        let rate = format!("rate={}", self.rate);
        let server = ["nbdkit", "--foreground", "--unix", "{dir}/line", "--pidfile", "{dir}/line.pid"];
        let words = [&server, FILTERS, &["file", "{store}", &read, &write, &rate, "burstiness=0.01"]].concat();
        [
            step(&["rm", "-f", "{dir}/line", "{dir}/line.pid"]),
            CommandStep { until_there: Some("{dir}/line.pid".into()), ..step(&words) },
        ]
    }
}

/// The filters with which nbdkit simulates a line.
const FILTERS: &[&str] = &["--filter=delay", "--filter=rate"];

fn nbdkit() -> FacilityRequirements {
    let probe = [&["nbdkit"], FILTERS, &["--dump-plugin", "file"]].concat();
    FacilityRequirements {
        commands: vec!["nbdkit".to_owned()],
        probe: probe.into_iter().map(str::to_owned).collect(),
        ..FacilityRequirements::default()
    }
}

fn step(words: &[&str]) -> CommandStep {
    // Keeps the lab's mounts out of the user's `claviger list`.
    let env = BTreeMap::from([("CLAVIGER_RUNTIME_DIR".to_owned(), "{dir}/run".to_owned())]);
    CommandStep { run: words.iter().map(ToString::to_string).collect(), env, ..CommandStep::default() }
}

fn prefixed(name: String, transport: Transport) -> String {
    match transport {
        Transport::Fuse => name,
        Transport::Nbd => format!("{NBD}{name}"),
        Transport::Line(line) => format!("{}{name}", line.prefix),
    }
}

fn transport_words(transport: Transport) -> String {
    match transport {
        Transport::Fuse => "FUSE image".to_owned(),
        Transport::Nbd => "NBD".to_owned(),
        Transport::Line(line) => format!("FUSE image; its data over a line of {}", line.what),
    }
}

fn layer(transport: Transport) -> String {
    match transport {
        Transport::Fuse => format!("{IMAGE_LAYER} The server uses the page cache for its store. {SPINS}"),
        Transport::Nbd => {
            "It is served over a Unix socket; the client sends one request at a time and sleeps until the answer \
                comes. The server uses the page cache for its store. Where processors are idle, it polls for the next \
                request for up to 100 µs before it sleeps, which counts as its processor time."
                .to_owned()
        }
        Transport::Line(line) => format!(
            "{IMAGE_LAYER} Its store is an NBD server (nbdkit) over a Unix socket: filters delay each read and each \
                write by {} and limit the rate to {} a second in each direction; a flush is not delayed. The volume \
                is created without these filters. {SPINS} The NBD server's processor time is included.",
            line.delay.replace("ms", " ms"),
            line.rate.replace('G', " Gbit"),
        ),
    }
}

const IMAGE_LAYER: &str =
    "One file in a folder, served by FUSE; a file system on it is the kernel's, through a loop device.";

const SPINS: &str = "Where processors are idle, the server polls for its next request for up to 50 µs before it \
    sleeps, which counts as its processor time.";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_format_and_cipher_is_there_in_both_ways() {
        let all = all();
        let named = |name: &str| all.iter().filter(|f| f.name == name).count();
        assert!(named("cryptoloop") == 0, "nobody creates it");
        for (format, creator) in creatable() {
            for (i, cipher) in creator.choices().ciphers.iter().enumerate() {
                let name = if i == 0 { name_of(format) } else { format!("{}:{cipher}", name_of(format)) };
                assert_eq!((named(&name), named(&format!("nbd/{name}"))), (1, 1), "{name}");
            }
        }
        for manner in MANNERS {
            assert!(FORMATS.iter().any(|f| f.name() == manner.format), "{}", manner.format);
        }
        for format in folders() {
            let facility = all.iter().find(|f| f.name == folder_name(format, None)).expect("it is there");
            assert_eq!((facility.gives, facility.baseline.as_deref()), (Gives::Folder, Some(PLAIN_FILES)));
            assert_eq!(facility.create.is_empty(), format.key_file().is_none(), "{}", facility.name);
        }
        for line in LINES {
            let baseline = format!("{}plain", line.prefix);
            let behind: Vec<_> = all.iter().filter(|f| f.name.starts_with(line.prefix)).collect();
            assert_eq!(behind.len(), 1 + creatable().count(), "each format once, and none");
            for facility in behind.into_iter().filter(|f| f.name != baseline) {
                assert_eq!(facility.baseline.as_ref(), Some(&baseline), "{}", facility.name);
            }
        }
        for another in OTHERS {
            assert!(creatable().any(|(format, _)| format.name() == another.format), "{}", another.name);
        }
        for variant in VARIANTS {
            assert!(folders().any(|f| f.name() == variant.format), "{}", variant.format);
        }
        for facility in &all {
            super::super::words::check(facility).expect("known names");
        }
        assert!(defaults().iter().all(|name| named(name) == 1));
    }
}
