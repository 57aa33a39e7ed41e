//! Reads passwords and keyfiles. Never from the command line, which every process can read.

use std::fs::File;
use std::io::{self, IsTerminal};
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use claviger_engine::credential::qnap_passphrase;
use claviger_engine::internal::{random, read_secret};
use claviger_engine::{Advice, Credential, Error, ErrorKind, Result, Secret};
use claviger_serve::inherited;
use rustix::fs::{FileType, fstat, stat};

use crate::opening::patience::{self, QUICKER};
use crate::opening::strength::StrengthMeter;
use crate::terminal::end_heading::EndHeading;
use crate::terminal::output;
use crate::terminal::prompt::{self, Asker};
use crate::terminal::size;

/// The longest password read from a file, in bytes.
const PASSWORD_MAX: usize = 64 << 10;

/// How often a person at a terminal is asked for a password, or for a pair of new ones, before the error.
const TRIES: u32 = 3;

/// The longest volume key read from a file, in bytes: dm-crypt's `lmk` mode with 64 keys needs this many.
const VOLUME_KEY_MAX: usize = 4096;

/// What opens the volume.
#[derive(clap::Args, Clone, Default)]
#[command(next_help_heading = "Password and keyfiles", end_heading())]
pub struct CredentialArgs {
    /// Read the password from FILE instead of asking; `-` is standard input. One trailing newline is ignored
    #[arg(long, value_name = "FILE", group = "password")]
    password_file: Option<PathBuf>,

    /// Read the password from this open file descriptor. One trailing newline is ignored
    #[arg(long, value_name = "N", group = "password")]
    password_fd: Option<i32>,

    /// Use no password, only keyfiles
    #[arg(long, group = "password", requires = "keyfiles")]
    no_password: bool,

    /// Hash the password as a QNAP NAS does before it unlocks LUKS. New passwords of `change` and `keyslot` are not hashed
    #[arg(long, conflicts_with_all = ["no_password", "volume_key_file"])]
    qnap: bool,

    /// A keyfile, or a folder of keyfiles (hidden files are ignored). May be repeated
    #[arg(long = "keyfile", value_name = "FILE", id = "keyfiles")]
    keyfiles: Vec<PathBuf>,

    /// Offset of the key in the keyfile or device: bytes, or 100M
    #[arg(long, value_name = "SIZE", value_parser = size::parse, requires = "keyfiles")]
    keyfile_offset: Option<u64>,

    /// Size of the key in the keyfile
    #[arg(long, value_name = "SIZE", value_parser = size::parse, requires = "keyfiles")]
    keyfile_size: Option<u64>,

    /// Read the volume key itself from FILE. It opens a LUKS, BitLocker or FileVault 2 volume without a password;
    /// `create` uses it for the new volume
    #[arg(long, value_name = "FILE")]
    volume_key_file: Option<PathBuf>,

    /// Bits of a random volume key that is never stored.
    #[arg(skip)]
    random_key: Option<u32>,

    /// What a terminal asks for, if it is not a password.
    #[arg(skip)]
    question: Option<&'static str>,
}

/// The credentials that will open the volume from now on.
#[derive(clap::Args)]
#[command(next_help_heading = "New password and keyfiles", end_heading())]
pub struct NewCredentialArgs {
    /// Read the new password from FILE instead of asking; `-` is standard input. One trailing newline is ignored
    #[arg(long, value_name = "FILE", group = "new_password")]
    new_password_file: Option<PathBuf>,

    /// Read the new password from this open file descriptor. One trailing newline is ignored
    #[arg(long, value_name = "N", group = "new_password")]
    new_password_fd: Option<i32>,

    /// Use no password from now on, only keyfiles
    #[arg(long, group = "new_password")]
    no_new_password: bool,

    /// Keep the current password
    #[arg(long, group = "new_password")]
    keep_password: bool,

    /// A new keyfile, or a folder of keyfiles (hidden files are ignored). May be repeated
    #[arg(long = "new-keyfile", value_name = "FILE", id = "new_keyfiles", group = "new_keyfile")]
    new_keyfiles: Vec<PathBuf>,

    /// Use no keyfiles from now on
    #[arg(long, group = "new_keyfile")]
    no_new_keyfiles: bool,

    /// Keep the current keyfiles
    #[arg(long, group = "new_keyfile")]
    keep_keyfiles: bool,
}

/// The credentials of the new volume of a conversion.
#[derive(clap::Args)]
#[command(next_help_heading = "Password and keyfiles of the new volume", end_heading())]
pub struct DestinationCredentialArgs {
    /// Read the new volume's password from FILE instead of asking; `-` is standard input. One trailing newline is
    /// ignored
    #[arg(long, value_name = "FILE", group = "new_password")]
    new_password_file: Option<PathBuf>,

    /// Read the new volume's password from this open file descriptor. One trailing newline is ignored
    #[arg(long, value_name = "N", group = "new_password")]
    new_password_fd: Option<i32>,

    /// Give the new volume no password, only keyfiles
    #[arg(long, group = "new_password", requires = "new_keyfiles")]
    no_new_password: bool,

    /// A keyfile of the new volume, or a folder of keyfiles (hidden files are ignored). May be repeated
    #[arg(long = "new-keyfile", value_name = "FILE", id = "new_keyfiles")]
    new_keyfiles: Vec<PathBuf>,
}

/// What opens the hidden volume in it.
#[derive(clap::Args)]
#[command(next_help_heading = "Password and keyfiles of the hidden volume", end_heading())]
pub struct HiddenCredentialArgs {
    /// Read the hidden volume's password from FILE instead of asking
    #[arg(long, value_name = "FILE", group = "hidden_password", requires = "hidden")]
    hidden_password_file: Option<PathBuf>,

    /// Read the hidden volume's password from this open file descriptor
    #[arg(long, value_name = "N", group = "hidden_password", requires = "hidden")]
    hidden_password_fd: Option<i32>,

    /// The hidden volume has no password, only keyfiles
    #[arg(long, group = "hidden_password", requires = "hidden_keyfiles")]
    no_hidden_password: bool,

    /// A keyfile of the hidden volume. May be repeated
    #[arg(long = "hidden-keyfile", value_name = "FILE", id = "hidden_keyfiles", requires = "hidden")]
    hidden_keyfiles: Vec<PathBuf>,
}

impl CredentialArgs {
    /// A volume key with this many bits from the kernel's random numbers.
    pub fn random_key(bits: u32) -> Self {
        Self { random_key: Some(bits), ..Self::default() }
    }

    /// The same, which asks for a recovery key.
    pub fn asking_for_recovery_key(self) -> Self {
        Self { question: Some("Recovery key: "), ..self }
    }

    /// Whether the password is read from standard input.
    pub fn on_stdin(&self) -> bool {
        self.source().on_stdin()
    }

    /// Reads the credentials and asks where needed.
    pub fn read(&self) -> Result<ReadCredentials> {
        self.read_for(|_| true)
    }

    /// Reads the credentials. Asks for a password only if `asks` returns true for the keyfiles.
    pub fn read_for(&self, asks: impl FnOnce(&[Credential]) -> bool) -> Result<ReadCredentials> {
        self.read_checked(asks, false)
    }

    /// Reads the credentials of a headerless volume. Any password opens such a volume; a wrong one gives noise. Empty input is
    /// therefore an error, and an empty line is an empty password. cryptsetup does the same (lib/utils.c,
    /// `crypt_keyfile_device_read`).
    pub fn read_for_headerless(&self, asks: impl FnOnce(&[Credential]) -> bool) -> Result<ReadCredentials> {
        self.read_checked(asks, true).map(ReadCredentials::once)
    }

    fn read_checked(&self, asks: impl FnOnce(&[Credential]) -> bool, must_come: bool) -> Result<ReadCredentials> {
        if let Some(bits) = self.random_key {
            if bits as usize / 8 > VOLUME_KEY_MAX {
                return Err(Error::misuse(format!("a key of {bits} bits is too long: at most {}", VOLUME_KEY_MAX * 8)));
            }
            let mut key = Secret::zeroed((bits / 8) as usize);
            random::fill(&mut key)?;
            return Ok(vec![Credential::VolumeKey(key)].into());
        }
        let Some(path) = &self.volume_key_file else {
            let (source, keyfiles) = self.source_for(asks)?;
            let read = Source { must_come, ..source }.read_beside(keyfiles)?;
            return Ok(if self.qnap { read.hashed_as_qnap() } else { read });
        };
        if self.gives_password() || !self.keyfiles.is_empty() {
            return Err(Error::misuse("a volume key needs no other credential")
                .hint("Omit either --volume-key-file, or passwords and keyfiles."));
        }
        Ok(vec![Credential::VolumeKey(read_volume_key(path)?)].into())
    }

    /// The volume key for the new volume, if one is given.
    ///
    /// # Errors
    /// `Misuse` for a file that is empty or too long, `Io`.
    pub fn new_volume_key(&self) -> Result<Option<Secret>> {
        self.volume_key_file.as_deref().map(read_volume_key).transpose()
    }

    /// Whether a volume key is given.
    pub fn gives_volume_key(&self) -> bool {
        self.volume_key_file.is_some()
    }

    /// Reads the credentials of a new volume. Asks twice for a password, and only if `asks` returns true for the keyfiles.
    /// Ignores a volume key.
    pub fn read_new(
        &self,
        asks: impl FnOnce(&[Credential]) -> bool,
        meter: &StrengthMeter<'_>,
    ) -> Result<Vec<Credential>> {
        let (source, keyfiles) = self.source_for(asks)?;
        let read = source.judged(meter).read_new_beside(keyfiles)?;
        Ok(if self.qnap { ReadCredentials::from(read).hashed_as_qnap().into_vec() } else { read })
    }

    /// The source of the password, and the keyfiles. `asks` decides whether a password goes with the keyfiles.
    fn source_for(&self, asks: impl FnOnce(&[Credential]) -> bool) -> Result<(Source<'_>, Vec<Credential>)> {
        let keyfiles = self.read_keyfiles()?;
        let none = self.no_password || !self.gives_password() && !asks(&keyfiles);
        Ok((Source { none, ..self.source() }, keyfiles))
    }

    /// Whether any credential is given.
    pub fn given(&self) -> bool {
        self.gives_password() || !self.keyfiles.is_empty() || self.gives_volume_key()
    }

    /// The keyfiles, if the options give nothing else.
    pub fn only_keyfiles(&self) -> Result<Option<Vec<Credential>>> {
        let password = self.password_file.is_some() || self.password_fd.is_some();
        let alone = !self.keyfiles.is_empty() && !password && !self.gives_volume_key();
        alone.then(|| self.read_keyfiles()).transpose()
    }

    /// Whether an option names the source of the password, or says that there is none.
    fn gives_password(&self) -> bool {
        self.password_file.is_some() || self.password_fd.is_some() || self.no_password
    }

    fn read_keyfiles(&self) -> Result<Vec<Credential>> {
        match (self.keyfile_offset, self.keyfile_size, &self.keyfiles[..]) {
            (None, None, paths) => keyfiles(paths),
            (offset, size, [path]) => {
                let part = Credential::keyfile_part(path, offset.unwrap_or(0), size)?;
                hide(path)?;
                Ok(vec![part])
            }
            _ => Err(Error::misuse("--keyfile-offset and --keyfile-size are for a single keyfile")),
        }
    }

    fn source(&self) -> Source<'_> {
        Source {
            prefix: "",
            question: self.question.unwrap_or("Password: "),
            question_new: "Password of the new volume: ",
            file: self.password_file.as_deref(),
            fd: self.password_fd,
            none: self.no_password,
            keyfiles: &self.keyfiles,
            must_come: false,
            required: false,
            meter: None,
        }
    }
}

impl NewCredentialArgs {
    /// Whether the new password is read from standard input.
    pub fn on_stdin(&self) -> bool {
        self.source().on_stdin()
    }

    /// Reads the new credentials; asks twice for a password. `current` are the present credentials, some of which may stay.
    ///
    /// # Errors
    /// `Misuse` if no option says whether the present keyfiles stay: they must not be lost or kept by oversight.
    pub fn read(&self, current: &[Credential], meter: &StrengthMeter<'_>) -> Result<Vec<Credential>> {
        let kind_of = |kind: &Credential| std::mem::discriminant(kind);
        let keyfile = kind_of(&Credential::Keyfile(Secret::zeroed(0)));
        let has_keyfiles = current.iter().any(|c| kind_of(c) == keyfile);
        let chosen = self.keep_keyfiles || self.no_new_keyfiles || !self.new_keyfiles.is_empty();
        if has_keyfiles && !chosen {
            return Err(Error::misuse("the volume has keyfiles: choose whether to keep them")
                .hint("Use --keep-keyfiles, --new-keyfile FILE or --no-new-keyfiles."));
        }
        let source = Source { none: self.no_new_password || self.keep_password, ..self.source() }.judged(meter);
        let mut all = source.read_new()?;
        for credential in current {
            match credential {
                Credential::Passphrase(text) if self.keep_password => {
                    all.push(Credential::Passphrase(Secret::copy_from(text)));
                }
                Credential::Keyfile(contents) if self.keep_keyfiles => {
                    all.push(Credential::Keyfile(Secret::copy_from(contents)));
                }
                _ => {}
            }
        }
        Ok(all)
    }

    fn source(&self) -> Source<'_> {
        Source {
            prefix: "new-",
            question: "New password: ",
            question_new: "New password: ",
            file: self.new_password_file.as_deref(),
            fd: self.new_password_fd,
            none: self.no_new_password,
            keyfiles: &self.new_keyfiles,
            must_come: false,
            required: false,
            meter: None,
        }
    }
}

impl DestinationCredentialArgs {
    /// The source of the new password and keyfiles.
    pub fn source(&self) -> Source<'_> {
        Source {
            prefix: "new-",
            question: "Password of the new volume: ",
            question_new: "Password of the new volume: ",
            file: self.new_password_file.as_deref(),
            fd: self.new_password_fd,
            none: self.no_new_password,
            keyfiles: &self.new_keyfiles,
            must_come: false,
            required: false,
            meter: None,
        }
    }
}

impl HiddenCredentialArgs {
    /// The source of the hidden volume's password and keyfiles.
    pub fn source(&self) -> Source<'_> {
        Source {
            prefix: "hidden-",
            question: "Password of the hidden volume: ",
            question_new: "Password of the new hidden volume: ",
            file: self.hidden_password_file.as_deref(),
            fd: self.hidden_password_fd,
            none: self.no_hidden_password,
            keyfiles: &self.hidden_keyfiles,
            must_come: false,
            required: false,
            meter: None,
        }
    }
}

/// Reads all keyfiles in these files and folders. This happens before the password prompt, so a typo shows sooner.
fn keyfiles(paths: &[PathBuf]) -> Result<Vec<Credential>> {
    let each = paths.iter().map(|path| Credential::keyfiles(path)).collect::<Result<Vec<_>>>()?;
    paths.iter().try_for_each(|path| hide(path))?;
    Ok(each.into_iter().flatten().collect())
}

/// Prevents child processes from reading the file, or the files of a folder, again through an inherited descriptor such as
/// /dev/fd/5.
pub fn hide(path: &Path) -> Result<()> {
    let hide = || -> io::Result<()> {
        inherited::hide(&stat(path)?)?;
        if path.is_dir() {
            for file in std::fs::read_dir(path)? {
                // A dangling link: nothing was read there.
                stat(file?.path()).map_or(Ok(()), |stat| inherited::hide(&stat))?;
            }
        }
        Ok(())
    };
    hide().map_err(|e| Error::from(e).at(path))
}

/// Credentials that have been read, and where to ask for the password again.
#[derive(Default)]
pub struct ReadCredentials {
    credentials: Vec<Credential>,
    /// The terminal on which a person typed the password, with the question.
    typed: Option<(File, String)>,
    /// Whether options would make the next try quick.
    slow: bool,
    /// Whether passwords are hashed as a QNAP NAS does.
    qnap: bool,
}

impl From<Vec<Credential>> for ReadCredentials {
    fn from(credentials: Vec<Credential>) -> Self {
        Self { credentials, typed: None, slow: false, qnap: false }
    }
}

impl Deref for ReadCredentials {
    type Target = [Credential];
    fn deref(&self) -> &[Credential] {
        &self.credentials
    }
}

impl ReadCredentials {
    /// The same for a single try, if a wrong password cannot be recognised.
    pub fn once(self) -> Self {
        Self { typed: None, ..self }
    }

    /// The same. If tries are `slow`, the first wrong password, or the error, is followed by the options that make them quick.
    pub fn with_slow_tries(self, slow: bool) -> Self {
        Self { slow, ..self }
    }

    /// The same for a QNAP NAS, also when a password is asked for again.
    fn hashed_as_qnap(mut self) -> Self {
        for credential in &mut self.credentials {
            if let Credential::Passphrase(text) = credential {
                *text = qnap_passphrase(text);
            }
        }
        Self { qnap: true, ..self }
    }

    /// The same without the terminal.
    pub fn into_vec(self) -> Vec<Credential> {
        self.credentials
    }

    /// The same with more credentials.
    pub fn and(mut self, more: Vec<Credential>) -> Self {
        self.credentials.extend(more);
        self
    }

    /// The terminal on which a wrong password will be asked for again. A process that enters a sandbox must keep it open.
    pub fn terminal(&self) -> Option<BorrowedFd<'_>> {
        self.typed.as_ref().map(|(terminal, _)| terminal.as_fd())
    }

    /// Calls `open` with the credentials. If a person typed the password and it is wrong, asks for it again.
    ///
    /// # Errors
    /// Those of `open`; `Cancelled`.
    pub fn open<T>(&mut self, mut open: impl FnMut(&[Credential]) -> Result<T>) -> Result<T> {
        let Self { credentials, typed, slow, qnap } = self;
        let Some((terminal, question)) = typed else {
            return open(credentials).map_err(|error| match error.kind {
                ErrorKind::WrongCredential(_) if *slow => patience::with_quicker(error),
                _ => error,
            });
        };
        tries(Some(terminal), |again| {
            if again {
                if std::mem::take(slow) {
                    prompt::tell(terminal, QUICKER);
                }
                let fresh = prompt::password(terminal, question)?;
                if let Some(Credential::Passphrase(text)) =
                    credentials.iter_mut().find(|credential| matches!(credential, Credential::Passphrase(_)))
                {
                    *text = if *qnap { qnap_passphrase(&fresh) } else { fresh };
                }
            }
            open(credentials)
        })
    }
}

/// Calls `open` until a password is right or the tries are used up; without a `terminal` only once. The argument of `open` says
/// whether this is a repeat.
///
/// # Errors
/// Those of `open`.
pub fn tries<T>(terminal: Option<&File>, mut open: impl FnMut(bool) -> Result<T>) -> Result<T> {
    let Some(terminal) = terminal else { return open(false) };
    for left in (1..TRIES).rev() {
        match open(left + 1 < TRIES) {
            Err(e) if another_may_open(&e) => {
                prompt::tell(terminal, &format!("This password does not open it. {}", tries_left(left)))
            }
            done => return done,
        }
    }
    open(true)
}

/// Whether another password could help. Not if the error names partitions to choose from.
fn another_may_open(error: &Error) -> bool {
    let partitions = matches!(error.advice.as_deref(), Some(Advice::ChoosePartition(numbers)) if !numbers.is_empty());
    matches!(error.kind, ErrorKind::WrongCredential(_)) && !partitions
}

fn tries_left(left: u32) -> String {
    match left {
        1 => "1 try left.".to_owned(),
        left => format!("{left} tries left."),
    }
}

/// The text as the beginning of a sentence.
fn capital(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().into_iter().flat_map(char::to_uppercase).chain(chars).collect()
}

/// The source of a password and keyfiles, for all option groups.
pub struct Source<'a> {
    /// The prefix of `password-file` in the options' names.
    prefix: &'static str,
    /// The prompts on a terminal: for an existing password, and for a new one.
    question: &'a str,
    question_new: &'a str,
    file: Option<&'a Path>,
    fd: Option<i32>,
    /// There is no password.
    none: bool,
    /// Keyfiles, and folders of keyfiles.
    keyfiles: &'a [PathBuf],
    /// An input that is not a regular file must yield at least a newline.
    must_come: bool,
    /// No keyfile can replace the password.
    required: bool,
    /// Says how strong a new password is.
    meter: Option<&'a StrengthMeter<'a>>,
}

impl<'a> Source<'a> {
    /// The same, which also says how strong a new password is.
    pub fn judged(self, meter: &'a StrengthMeter<'a>) -> Self {
        Self { meter: Some(meter), ..self }
    }

    /// A password without keyfiles: `prefix` stands before `password-file` in the options' names.
    pub fn password(prefix: &'static str, question: &'a str, file: Option<&'a Path>, fd: Option<i32>) -> Self {
        let question_new = question;
        let (none, keyfiles, must_come, required, meter) = (false, &[][..], false, true, None);
        Self { prefix, question, question_new, file, fd, none, keyfiles, must_come, required, meter }
    }
}

impl Source<'_> {
    /// Reads the password alone, asking where needed.
    pub fn secret(&self) -> Result<Secret> {
        Self::only(self.read()?.into_vec())
    }

    /// Reads a new password alone, which must not be empty; asks twice.
    pub fn new_secret(&self) -> Result<Secret> {
        Self::only(self.read_new()?)
    }

    fn only(credentials: Vec<Credential>) -> Result<Secret> {
        let password = credentials.into_iter().find_map(|credential| match credential {
            Credential::Passphrase(text) => Some(text),
            _ => None,
        });
        password.ok_or_else(|| Error::misuse("no password was read"))
    }

    /// Whether the password is read from standard input.
    pub fn on_stdin(&self) -> bool {
        self.file.is_some_and(|path| path.as_os_str() == "-")
    }

    /// Reads the credentials of an existing volume and asks where needed.
    pub fn read(&self) -> Result<ReadCredentials> {
        self.read_beside(keyfiles(self.keyfiles)?)
    }

    /// Reads new credentials; asks twice for a password.
    pub fn read_new(&self) -> Result<Vec<Credential>> {
        self.read_new_beside(keyfiles(self.keyfiles)?)
    }

    /// The `keyfiles`, already read, and the password that goes with them.
    fn read_beside(&self, keyfiles: Vec<Credential>) -> Result<ReadCredentials> {
        let (credentials, asker) = self.read_by(keyfiles, |asker| asker.password(self.question))?;
        let typed = asker.and_then(Asker::into_terminal).map(|terminal| (terminal, self.question.to_owned()));
        Ok(ReadCredentials { credentials, typed, slow: false, qnap: false })
    }

    /// The `keyfiles`, already read, and a new password. None may be empty: a script whose password got lost would create a
    /// volume that anybody can open.
    fn read_new_beside(&self, keyfiles: Vec<Credential>) -> Result<Vec<Credential>> {
        if let Some(empty) = keyfiles.iter().find(|keyfile| keyfile.is_empty()) {
            let error = Error::misuse(format!("the new {} is empty", empty.kind()));
            return Err(error.hint("To create one: claviger keyfile FILE"));
        }
        self.meter.map_or(Ok(()), StrengthMeter::choose_cost)?;
        // Without the keyfiles, guessing is in vain.
        let meter = self.meter.filter(|_| keyfiles.is_empty());
        let (credentials, asked) = self.read_by(keyfiles, |asker| self.ask_new(asker, meter))?;
        if let (None, Some(Credential::Passphrase(password))) = (asked, credentials.last()) {
            self.check_new(password)?;
            if let Some(line) = meter.filter(|_| io::stderr().is_terminal()).and_then(|meter| meter.line(password)) {
                output::say(&line);
            }
        }
        Ok(credentials)
    }

    /// Asks for a new password twice. At a terminal, a pair that differs or breaks a rule of the format is asked for again.
    fn ask_new(&self, asker: &Asker, meter: Option<&StrengthMeter<'_>>) -> Result<Secret> {
        let mut left = TRIES;
        loop {
            left -= 1;
            match (self.ask_pair(asker, meter)?, asker) {
                (Err(refused), Asker::Terminal(terminal)) if left > 0 => {
                    let why = capital(&refused.kind.to_string());
                    prompt::tell(terminal, &format!("{why}. {}", tries_left(left)));
                }
                (answer, _) => return answer,
            }
        }
    }

    /// Asks once for each of the two, and says in between how strong the password is. Inside is why it cannot be the new one.
    fn ask_pair(&self, asker: &Asker, meter: Option<&StrengthMeter<'_>>) -> Result<Result<Secret>> {
        let first = asker.password(self.question_new)?;
        if let Err(refused) = self.check_new(&first) {
            return Ok(Err(refused));
        }
        if let (Asker::Terminal(terminal), Some(line)) = (asker, meter.and_then(|meter| meter.line(&first))) {
            prompt::tell(terminal, &line);
        }
        let again = asker.password("Repeat: ")?;
        Ok(if first.same_as(&again) { Ok(first) } else { Err(Error::misuse("the two passwords differ")) })
    }

    /// Refuses an empty password, and one that the format does not take.
    fn check_new(&self, password: &Secret) -> Result<()> {
        let Self { prefix, .. } = self;
        if !password.is_empty() {
            return self.meter.map_or(Ok(()), |meter| meter.check(password));
        }
        let hint = match self.required {
            true => "Otherwise the file alone would open it.".to_owned(),
            false => format!("For a volume without a password, use --no-{prefix}password with --{prefix}keyfile FILE."),
        };
        Err(Error::misuse("the new passphrase is empty").hint(hint))
    }

    /// The `keyfiles` and the password, which `ask` asks for if no option gives it, and who was asked.
    fn read_by(
        &self,
        keyfiles: Vec<Credential>,
        ask: impl Fn(&Asker) -> Result<Secret>,
    ) -> Result<(Vec<Credential>, Option<Asker>)> {
        let (mut credentials, mut asked) = (keyfiles, None);
        let password = match (self.file, self.fd) {
            (Some(path), _) if self.on_stdin() => Some(read_password(io::stdin().as_fd(), path, self.must_come)?),
            (Some(path), _) => {
                let file = File::open(path).map_err(|e| Error::from(e).at(path))?;
                Some(read_password(file.as_fd(), path, self.must_come)?)
            }
            (None, Some(number)) => {
                let name = PathBuf::from(format!("--{}password-fd {number}", self.prefix));
                let file = inherited::open(number).map_err(|e| Error::from(e).at(&name))?;
                Some(read_password(file.as_fd(), &name, self.must_come)?)
            }
            (None, None) if self.none => None,
            (None, None) => match prompt::asker() {
                Some(asker) => Some(ask(asked.insert(asker))?),
                None => {
                    let Self { prefix, .. } = self;
                    let hint = match self.required {
                        true => format!("Give it with --{prefix}password-file FILE or --{prefix}password-fd N."),
                        false => format!(
                            "Give it with --{prefix}password-file FILE, --{prefix}password-fd N, or --no-{prefix}password \
                             with --{prefix}keyfile FILE."
                        ),
                    };
                    return Err(Error::misuse("there is no terminal on which to ask for the password").hint(hint));
                }
            },
        };
        credentials.extend(password.map(Credential::Passphrase));
        Ok((credentials, asked))
    }
}

/// Reads a whole file that holds a secret of at most `max` bytes; `-` is standard input.
///
/// # Errors
/// `Misuse` for a file that is empty or longer, `Io`.
pub fn read_file(path: &Path, max: usize) -> Result<Secret> {
    let read = || -> Result<Secret> {
        match path.as_os_str() == "-" {
            true => read_secret(io::stdin().as_fd(), max + 1),
            false => read_secret(File::open(path)?.as_fd(), max + 1),
        }
    };
    match read().map_err(|e| e.at(path))? {
        secret if secret.is_empty() => Err(Error::misuse("it is empty").at(path)),
        secret if secret.len() > max => Err(Error::misuse(format!("longer than {max} bytes")).at(path)),
        secret => Ok(secret),
    }
}

/// Reads a volume key: the whole file.
fn read_volume_key(path: &Path) -> Result<Secret> {
    let file = File::open(path).map_err(|e| Error::from(e).at(path))?;
    let key = read_secret(file.as_fd(), VOLUME_KEY_MAX + 1).map_err(|e| e.at(path))?;
    match key.len() {
        1..=VOLUME_KEY_MAX => Ok(key),
        0 => Err(Error::misuse("it is empty, not a volume key").at(path)),
        _ => Err(Error::misuse(format!("longer than {VOLUME_KEY_MAX} bytes, not a volume key")).at(path)),
    }
}

/// Reads a password from an open file and removes one newline at the end. With `must_come`, anything but a regular file must
/// yield at least the newline.
fn read_password(file: BorrowedFd<'_>, name: &Path, must_come: bool) -> Result<Secret> {
    let mut secret = read_secret(file, PASSWORD_MAX + 1).map_err(|e| e.at(name))?;
    if secret.len() > PASSWORD_MAX {
        return Err(Error::misuse(format!("longer than {PASSWORD_MAX} bytes, not a password")).at(name));
    }
    if secret.is_empty() && must_come && !is_regular(file)? {
        return Err(Error::misuse("the input ended before a password was read")
            .at(name)
            .hint("For an empty password, give an empty line."));
    }
    if secret.last() == Some(&b'\n') {
        secret = Secret::copy_from(&secret[..secret.len() - 1]);
    }
    Ok(secret)
}

fn is_regular(file: BorrowedFd<'_>) -> io::Result<bool> {
    Ok(FileType::from_raw_mode(fstat(file)?.st_mode).is_file())
}

/// Like [`read_up_to`]; child processes cannot read the secret again.
fn read_secret(file: BorrowedFd<'_>, max: usize) -> Result<Secret> {
    let stat = fstat(file).map_err(io::Error::from)?;
    let secret = read_up_to(file, max)?;
    inherited::hide(&stat)?;
    Ok(secret)
}

/// Reads up to the end of the file or `max` bytes. Waits for a terminal in a way that a signal can end.
pub fn read_up_to(file: BorrowedFd<'_>, max: usize) -> Result<Secret> {
    let read = |room: &mut [u8]| {
        prompt::wait(file)?;
        Ok(rustix::io::read(file, room)?)
    };
    Ok(read_secret::read_up_to(max, read)?)
}

/// Fails if two passwords would come from standard input.
///
/// # Errors
/// `Misuse`.
pub fn one_on_stdin(one: bool, other: bool) -> Result<()> {
    match one && other {
        true => Err(Error::misuse("only one password can come from standard input")),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Seek, Write};

    fn file(bytes: &[u8]) -> File {
        let mut file = tempfile::tempfile().expect("a temporary file");
        file.write_all(bytes).expect("written");
        file.rewind().expect("rewound");
        file
    }

    #[test]
    fn a_slow_try_without_a_terminal_names_what_is_quicker() {
        let wrong = || Err::<(), _>(Error::new(ErrorKind::WrongCredential("wrong".into())).hint("Check it."));
        let hint = |slow| ReadCredentials::default().with_slow_tries(slow).open(|_| wrong()).expect_err("wrong").hint;
        assert_eq!(hint(true).as_deref(), Some(&*format!("Check it. {QUICKER}")));
        assert_eq!(hint(false).as_deref(), Some("Check it."));
        let mut slow = ReadCredentials::default().with_slow_tries(true);
        assert!(slow.open(|_| Err::<(), _>(Error::misuse("no"))).expect_err("refused").hint.is_none());
    }

    #[test]
    fn one_newline_is_not_part_of_a_password() {
        for (bytes, password) in
            [(&b"abc"[..], &b"abc"[..]), (b"abc\n", b"abc"), (b"abc\n\n", b"abc\n"), (b"\n", b""), (b"", b"")]
        {
            let read = read_password(file(bytes).as_fd(), Path::new("x"), true).expect("a password");
            assert!(read.same_as(password), "{bytes:?}");
        }
    }

    #[test]
    fn reads_as_much_as_is_wanted() {
        for len in [0, 1, 4095, 4096, 4097, 100_000] {
            let bytes: Vec<u8> = (0..len).map(|i| i as u8).collect();
            for max in [1, 5000, 1 << 20] {
                let read = read_up_to(file(&bytes).as_fd(), max).expect("bytes");
                assert!(read.same_as(&bytes[..len.min(max)]), "{len} {max}");
            }
        }
        assert!(read_password(file(&vec![b'x'; PASSWORD_MAX + 1]).as_fd(), Path::new("x"), false).is_err());
    }
}
