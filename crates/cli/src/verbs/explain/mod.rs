//! `claviger explain`: explains why something does not open.

mod folder;
mod mounting;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use claviger_engine as engine;
use claviger_engine::arrays::ArrayMember;
use claviger_engine::diagnosis::{
    self, Change, Content, Diagnosis, Difference, DiskAccess, Look, LostPartition, Mark, Match, Opinion, Search,
    SearchStep, TrialEffort, UnlockTarget,
};
use claviger_engine::formats::HeaderEditor;
use claviger_engine::formats::partition::Candidate;
use claviger_engine::formats::{Facts, Releaser, Verdict};
use claviger_engine::store::Access;
use claviger_engine::{Credential, Error, ErrorKind, FORMATS, Result, Store, Unlock, Warning, partitions};
use serde::Serialize;

use crate::opening::disk_in_file::DiskInFile;
use crate::opening::{OpenArgs, assembled, files, images, remote};
use crate::process::command_line::option;
use crate::process::guard;
use crate::terminal::exit::{self, Silent};
use crate::terminal::file_name::FileName;
use crate::terminal::output::{self, Report, printable};
use crate::terminal::progress::Progress;
use crate::terminal::{advice, cancel, size};

/// The option for a header backup that the user has to find.
const FROM_BACKUP: &[&str] = &["--from=BACKUP"];

/// Explain why a volume does not open
///
/// Examines the bytes: random data, a file system, another format, a partition table, or nothing. Then tries the
/// password and variants by common mistakes: another keyboard layout, Caps Lock, another Unicode form or encoding, a
/// missing keyfile. It describes the variant that opens, but shows no password. Each variant takes as long as opening
/// does; --format and --hash speed it up. Nothing is written.
///
/// Formats such as TrueCrypt and VeraCrypt have no signature: a wrong password and a file of random bytes look the
/// same. LUKS has a signature.
///
/// For an image of a virtual disk (qcow2, VMDK, VHDX …), it examines the disk in it, through qemu-nbd.
///
/// For an encrypted folder, it shows the keys of its files, damaged and missing files, and whether the password opens it.
#[derive(clap::Args, Clone)]
#[command(after_help = "Examples:
  claviger explain old.tc
  claviger explain --without-password /dev/sdb
  claviger explain disk.img :/home/.ecryptfs/me/.Private
  claviger explain --format TrueCrypt --hash SHA-512 old.tc

The exit status is 0 if it was found how the volume opens, otherwise that of the problem.")]
pub struct Args {
    /// Only examine the bytes; ask for no password
    #[arg(long, conflicts_with_all = ["password", "keyfiles"])]
    without_password: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    open: OpenArgs,

    /// The encrypted folder inside
    #[arg(value_name = "PATH")]
    inside: Option<OsString>,
}

#[derive(Serialize)]
struct Explained {
    #[serde(flatten)]
    path: FileName,
    #[serde(flatten)]
    diagnosis: Diagnosis,
    /// The credentials and format that open the volume.
    #[serde(skip_serializing_if = "Option::is_none")]
    opens: Option<Opens>,
    /// The number of trials, each of one variant of the credentials with one format.
    trials: u64,
    /// The findings, as whole sentences, the most important ones last.
    findings: Vec<String>,
    /// What the user can do.
    advice: Vec<Advice>,
    exit_code: u8,
    /// The partition that suggested commands name.
    #[serde(skip)]
    partition: Option<u32>,
    /// How the credentials of suggested commands differ from the given ones.
    #[serde(skip)]
    how: Difference,
    /// The command line.
    #[serde(skip)]
    line: Vec<OsString>,
}

/// How a volume opens.
#[derive(Serialize)]
struct Opens {
    format: &'static str,
    /// The partition that holds the volume.
    #[serde(skip_serializing_if = "Option::is_none")]
    partition: Option<u32>,
    /// How the credentials differ from the given ones, as one word.
    with: &'static str,
    /// The same for people, to follow "it opens with …". Reveals nothing about the password.
    with_what: String,
    /// Whether it opens with the upper and lower case of each letter swapped.
    caps_lock: bool,
    /// The facts about the volume; `None` if it cannot be used although a header opened.
    #[serde(skip_serializing_if = "Option::is_none")]
    facts: Option<Facts>,
}

#[derive(Serialize)]
struct Advice {
    what: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    command: Option<String>,
}

/// Runs the verb. `line` is the command line, as this verb sees it.
pub fn run(args: &Args, line: &[OsString]) -> anyhow::Result<()> {
    guard::no_dumps();
    let inside = args.inside.as_deref().map(files::inside);
    if inside.is_some() || args.open.path.is_dir() {
        let open = OpenArgs { explains: true, ..args.open.clone() };
        return folder::run(&open, line, inside, args.without_password, args.json);
    }
    cancel::install()?;
    let path = &args.open.path;
    let explained = match args.open.disk_in_file()? {
        Some(disk) => Explained::disk(args, line, &disk)?,
        None => {
            let store = args.open.raw(Access::ReadOnly)?;
            let diagnosis = diagnosis::look(&store).map_err(|e| e.at(path))?;
            Explained::volume(args, line, &store, diagnosis)?
        }
    };
    output::print(&explained, args.json)?;
    if explained.exit_code == 0 { Ok(()) } else { Err(Silent(explained.exit_code).into()) }
}

/// Adds an alternative to the error if there is no terminal to ask on.
fn with_less(mut error: Error) -> Error {
    if let (ErrorKind::Misuse(_), Some(hint)) = (&error.kind, &mut error.hint) {
        hint.push_str(" To examine it without a password, add --without-password.");
    }
    error
}

type OpenedVolume = (Facts, Vec<Warning>);

/// Announces the cost of each target before anybody types a password. Returns the error if the user declines all of them.
fn all_take_too_long(args: &Args, targets: &[UnlockTarget]) -> Option<Error> {
    let refused = targets.iter().map(|target| args.open.announce(&*target.header).err());
    refused.collect::<Option<Vec<_>>>()?.pop()
}

fn try_all(args: &Args, targets: &[UnlockTarget], credentials: &[Credential]) -> Result<Search<OpenedVolume>> {
    let cancel = cancel::flag();
    let bar: RefCell<Option<Progress>> = RefCell::new(None);
    let refused = RefCell::new(BTreeSet::new());
    let unlock =
        |target: usize, credentials: &[Credential], hints: bool, opened: &AtomicBool| -> Result<OpenedVolume> {
            cancel::check()?;
            let narrowed = args.open.unlock_with(credentials);
            let with = if hints { narrowed } else { without_hints(narrowed) };
            // The given credentials show how far they are; of the variants, the bar counts those that were tried.
            let own = bar.borrow().is_none().then(|| Progress::trials("Trying"));
            own.iter().for_each(|own| own.trying(targets[target].format));
            let show = |done, all| own.iter().for_each(|own| own.at(done, all));
            let with =
                Unlock { cancel: Some(cancel), opened: Some(opened), progress: Some(&show), prove: true, ..with };
            // Drops the layout, which holds keys.
            let unlocked = targets[target].header.unlock(&with).inspect_err(|e| {
                // A user who declines one trial does not want dozens.
                if matches!(e.kind, ErrorKind::Misuse(_)) {
                    refused.borrow_mut().insert(target);
                }
            })?;
            match unlocked.recognised {
                true => Ok((unlocked.facts, unlocked.warnings)),
                // Any password opens a volume without a header, to noise.
                false => Err(ErrorKind::WrongCredential("nothing was recognised".into()).into()),
            }
        };
    let tell = |step: SearchStep| {
        let mut bar = bar.borrow_mut();
        let format = targets[step.target].format;
        if step.done < 2 {
            *bar = None;
        }
        if step.done == 0 {
            return true;
        }
        if step.done == 1 && (refused.borrow().contains(&step.target) || !announce(format, step, &args.open)) {
            return false;
        }
        let bar = bar.get_or_insert_with(|| {
            let bar = Progress::steps("Trying");
            bar.trying(format);
            bar
        });
        bar.with_left(step.done, step.all, step.left);
        true
    };
    let effort = |target: &UnlockTarget| TrialEffort {
        given: target.header.effort(&args.open.unlock_with(credentials)),
        without_hints: target.header.effort(&without_hints(args.open.unlock_with(credentials))),
    };
    let efforts: Vec<_> = targets.iter().map(effort).collect();
    let search = diagnosis::search(credentials, args.open.hinted(), &efforts, unlock, tell)?;
    Ok(if search.found.is_some() { search } else { without_any(targets, search) })
}

/// The same credentials, in every way that a volume of any hash, cipher and header has.
fn without_hints(narrowed: Unlock<'_>) -> Unlock<'_> {
    let Unlock { credentials, acceleration, memory, may_take, .. } = narrowed;
    Unlock { acceleration, memory, may_take, ..Unlock::with(credentials) }
}

/// The target that opens without a password, if any: then there is no need to ask for one.
fn without_any(targets: &[UnlockTarget], mut search: Search<OpenedVolume>) -> Search<OpenedVolume> {
    let open = |target: &UnlockTarget| {
        let asks = target.header.asks_passphrase(&[]);
        let unlocked = (!asks).then(|| target.header.unlock(&Unlock::with(&[])).ok()).flatten()?;
        Some((unlocked.facts, unlocked.warnings))
    };
    let found = targets.iter().enumerate().find_map(|(target, header)| Some((target, open(header)?)));
    search.found = found.map(|(target, volume)| Match { how: Difference::Nothing, target, unlocked: Ok(volume) });
    search
}

/// Announces long trials with their duration. Returns whether to start them.
fn announce(format: &str, step: SearchStep, open: &OpenArgs) -> bool {
    const LONG: Duration = Duration::from_secs(3);
    if step.left < LONG {
        return true;
    }
    let variants = step.all - step.done;
    let agreed = open.may_try(&format!("{variants} variants as {format}"), step.left);
    output::note(&match &agreed {
        Ok(()) => format!(
            "the given credential does not open it as {format}; trying {variants} variants for at most about {} (Ctrl-C \
             stops)",
            size::duration(step.left)
        ),
        Err(refused) => refused.to_string(),
    });
    agreed.is_ok()
}

impl Explained {
    fn new(args: &Args, line: &[OsString], diagnosis: Diagnosis) -> Self {
        let path = FileName::path(&args.open.path);
        let mut explained = Self {
            path,
            diagnosis,
            opens: None,
            trials: 0,
            findings: Vec::new(),
            advice: Vec::new(),
            exit_code: 0,
            partition: None,
            how: Difference::AsGiven,
            line: line.to_vec(),
        };
        explained.findings = looks(&explained.diagnosis);
        explained
    }

    /// Explains the volume, or disk with volumes, in `store`.
    fn volume(
        args: &Args,
        line: &[OsString],
        store: &Arc<dyn Store>,
        mut diagnosis: Diagnosis,
    ) -> anyhow::Result<Self> {
        let at = |e: Error| e.at(&args.open.path);
        diagnosis.find_lost_partitions(store).map_err(at)?;
        let targets = diagnosis.targets(store, args.open.format()).map_err(at)?;
        let mut explained = Self::new(args, line, diagnosis);
        let lost = args.open.format().is_none() && !explained.diagnosis.lost_partitions.is_empty();
        if lost {
            explained.exit_code = explained.partition_is_lost();
        } else if targets.is_empty() {
            explained.exit_code = match explained.diagnosis.damage(store) {
                Some(error) => {
                    let marked = explained.diagnosis.marked();
                    explained.damaged(error, &marked)
                }
                None => explained.without_candidates(),
            };
        } else if args.without_password || args.open.tokens().only() {
            explained.is_damaged_in_part(&targets);
            explained.needs_password(&targets);
            explained.about_tpm(args, &targets)?;
        } else if let Some(error) = all_take_too_long(args, &targets) {
            explained.nothing_opens(&targets, Some(error));
        } else {
            let credentials = args.open.read_credentials().map_err(with_less)?;
            let search = try_all(args, &targets, &credentials).map_err(at)?;
            explained.searched(args, store, &targets, search).map_err(at)?;
            explained.about_tpm(args, &targets)?;
        }
        Ok(explained)
    }

    /// Explains the `disk` in a file. Commands name its format, since some of them write.
    fn disk(args: &Args, line: &[OsString], disk: &DiskInFile) -> anyhow::Result<Self> {
        let path = disk.to_be_written(&args.open.path);
        let (line, what) = (mounting::of_volume(line, &path), disk.what());
        let of_disk = Args { open: OpenArgs { path, ..args.open.clone() }, ..args.clone() };
        match args.open.raw(Access::ReadOnly) {
            Ok(store) => {
                let inside = diagnosis::look(&store).map_err(|e| e.at(&args.open.path))?;
                let mut explained = Self::volume(&of_disk, &line, &store, inside)?;
                explained.findings.insert(0, format!("The file is {what}. This is about the disk in it."));
                Ok(explained)
            }
            Err(error) => {
                let file = remote::open(&args.open.path, Access::ReadOnly)?;
                let mut explained = Self::new(args, &line, diagnosis::look(&file).map_err(|e| e.at(&args.open.path))?);
                explained.exit_code = exit::number_of(&error.kind);
                if let Some(hint) = advice::to_try(&error) {
                    explained.advise(hint);
                }
                explained.findings.push(format!("The disk in it does not open: {}.", error.kind));
                Ok(explained)
            }
        }
    }

    fn advise(&mut self, what: impl Into<String>) {
        self.advice.push(Advice { what: what.into(), command: None });
    }

    /// Adds advice with the command of `verb`. Besides the options of the command line, it gets those in `more`.
    fn suggest(&mut self, what: impl Into<String>, verb: &str, more: &[&str]) {
        let partition = self.partition.map(|number| mounting::joined("--partition", number.to_string()));
        let more: Vec<_> = more.iter().map(OsString::from).chain(partition).collect();
        let command = mounting::command(verb, &self.line, self.how, &more);
        self.advice.push(Advice { what: what.into(), command });
    }

    /// Explains bytes for which no password needs to be tried. Returns the exit code.
    fn without_candidates(&mut self) -> u8 {
        let path = self.path.to_string();
        if !self.diagnosis.raid_members.is_empty() {
            let what = "To examine the RAID array, name all its members in the place of OTHER:".to_owned();
            let name = assembled::array_name(None, [Path::new(&path), Path::new("OTHER")]);
            self.advice.push(Advice {
                what,
                command: Some(output::command([OsStr::new("claviger"), OsStr::new("explain"), &name])),
            });
            return exit::number_of(&ErrorKind::NotThisFormat(String::new()));
        }
        let trouble = match &self.diagnosis.mark {
            Some(mark @ Mark { opened_by: Some(_), .. }) => {
                let steps = images::steps(mark, &path, "identify");
                self.advice.extend(steps.into_iter().map(|(what, command)| Advice { what, command }));
                match mark.way {
                    Some(DiskAccess::Unpacked(_)) => ErrorKind::NotThisFormat(String::new()),
                    _ => ErrorKind::Unsupported { what: String::new() },
                }
            }
            _ if self.diagnosis.could_be_headerless() => {
                self.may_have_no_header();
                ErrorKind::NotThisFormat(String::new())
            }
            _ => {
                if self.diagnosis.content.is_some_and(|c| c.begins == Look::Zeros && c.until.is_none()) {
                    self.advise("If it should hold data, the copy or the disk has failed. Look for another copy.");
                } else if self.diagnosis.mark.is_none() && self.diagnosis.size >= 1 << 16 {
                    let what = "If it was a volume, its headers are lost. A header backup may help.";
                    self.suggest(what, "header restore", FROM_BACKUP);
                }
                ErrorKind::NotThisFormat(String::new())
            }
        };
        exit::number_of(&trouble)
    }

    /// Explains volumes that no partition table points to. Returns the exit code.
    fn partition_is_lost(&mut self) -> u8 {
        for LostPartition { format, at } in self.diagnosis.lost_partitions.clone() {
            self.findings.push(format!(
                "At byte {at} (sector {}) a {format} volume begins, but no partition table lists it: the table was lost.",
                at / 512
            ));
            let place = assembled::part_name(at, None, Path::new(&*self.path));
            let command = Some(output::command([OsStr::new("claviger"), OsStr::new("info"), &place]));
            self.advice.push(Advice { what: "To examine it:".to_owned(), command });
        }
        let command = Some(output::command(["claviger", "find", &*self.path]));
        self.advice.push(Advice { what: "To search the whole disk:".to_owned(), command });
        exit::number_of(&ErrorKind::NotThisFormat(String::new()))
    }

    /// Explains a volume that is too damaged for a trial. Returns the exit code.
    fn damaged(&mut self, error: Error, formats: &[&str]) -> u8 {
        let code = exit::number_of(&error.kind);
        // The command for a header backup comes below.
        let other = error.advice.as_deref() != Some(&engine::Advice::RestoreHeader);
        if let Some(hint) = advice::to_try(&error).filter(|_| other) {
            self.advise(hint);
        }
        let error = Error { hint: None, advice: None, ..error };
        self.findings.push(format!("Its header cannot be used: {error}."));
        self.restore_from_backup("If you have a header backup:", formats);
        code
    }

    /// Advises restoring a header backup, if one of the formats has backups.
    fn restore_from_backup(&mut self, what: &str, formats: &[&str]) {
        if formats.iter().any(|name| has_backups(name)) {
            self.suggest(what, "header restore", FROM_BACKUP);
        }
    }

    /// Reports damage that does not prevent trials and is not reported yet, and how to repair it.
    fn is_damaged_in_part(&mut self, targets: &[UnlockTarget]) {
        let partition = self.partition;
        for target in targets {
            let mut damage = target.header.damage();
            damage.retain(|warning| !self.findings.iter().any(|finding| finding.contains(&warning.what)));
            let advised = |advice| damage.iter().any(|warning| warning.advice.as_ref() == Some(advice));
            self.partition = target.partition.or(partition);
            if advised(&engine::Advice::RepairHeader) {
                self.suggest("To repair it:", "header repair", &[&format!("--format={}", target.format)]);
            }
            if advised(&engine::Advice::RestoreHeader) {
                self.restore_from_backup("If you have a header backup:", &[target.format]);
            }
            self.findings.extend(damage.into_iter().map(|warning| warning.what));
        }
        self.partition = partition;
    }

    /// Explains what random bytes may be, and how to try that.
    fn may_have_no_header(&mut self) {
        self.findings.push(format!(
            "Volumes without a header ({}) look like this too; they are tried only if you give the format.",
            without_header()
        ));
        let what = "If it may be one, give the format and, if known, the cipher, hash, key size and data offset:";
        let options = ["--format=plain", "--cipher=CIPHER", "--hash=HASH", "--key-size=BITS"].map(OsString::from);
        let command = mounting::command("info", &self.line, Difference::WithoutHints, &options);
        self.advice.push(Advice { what: what.to_owned(), command });
    }

    fn needs_password(&mut self, targets: &[UnlockTarget]) {
        let names = names(targets);
        if self.diagnosis.sure() {
            self.header_of_its_own();
            self.suggest("To test a passphrase:", "info", &[]);
            self.exit_code = exit::number_of(&ErrorKind::WrongCredential(String::new()));
            return;
        }
        if self.diagnosis.beginning_lost() && targets.iter().any(|t| t.partition.is_none()) {
            self.findings.push(format!(
                "It does not begin like a volume, but near its end there may be a backup header ({names}). Only the password can \
                 tell, because such headers have no signature."
            ));
            let mut formats: Vec<_> = targets.iter().filter(|t| t.partition.is_none()).map(|t| t.format).collect();
            formats.dedup();
            for format in formats {
                let options = ["--backup-header".to_owned(), format!("--format={format}")];
                let options = options.each_ref().map(String::as_str);
                self.suggest(format!("To test a password for {format}:"), "info", &options);
            }
            self.exit_code = exit::number_of(&ErrorKind::WrongCredential(String::new()));
            return;
        }
        self.findings.push(format!(
            "It could be a volume: {names}. Only the password can tell, because such volumes have no signature."
        ));
        self.suggest("To test a password:", "info", &[]);
        if self.diagnosis.could_be_headerless() && !all_without_header(targets) {
            self.may_have_no_header();
        }
        self.exit_code = exit::number_of(&ErrorKind::WrongCredential(String::new()));
    }

    /// Reports whether a TPM would release what tokens say it sealed, and if not, which PCR changed. A header may come from anybody, so
    /// only a TPM that the options name is asked.
    fn about_tpm(&mut self, args: &Args, targets: &[UnlockTarget]) -> Result<()> {
        let by_tpm = |by: &Releaser| match by {
            Releaser::Clevis(jwe) => jwe.tpm_pcrs().is_some(),
            by => matches!(by, Releaser::Tpm(_) | Releaser::MasterKey(_)),
        };
        let mut sealed: Vec<_> = targets.iter().flat_map(|target| target.header.sealed()).collect();
        sealed.retain(|sealed| by_tpm(&sealed.by) && !sealed.keyslots.is_empty());
        if sealed.is_empty() {
            return Ok(());
        }
        if !args.open.tokens().only() && !args.open.tokens().names_tpm() {
            if self.opens.is_none() {
                let what =
                    "To find out whether this machine's TPM opens it, and otherwise which PCR changed:".to_owned();
                let options = ["--without-password", "--tpm2-device=auto"].map(OsString::from);
                let command = mounting::command("explain", &self.line, Difference::Nothing, &options);
                self.advice.push(Advice { what, command });
            }
            return Ok(());
        }
        let mut tpm = match args.open.tokens().tpm() {
            Ok(tpm) => tpm,
            Err(e) if matches!(e.kind, ErrorKind::Cancelled) => return Err(e),
            Err(e) => {
                let at = e.path.as_ref().map(|path| format!("{}: ", path.display())).unwrap_or_default();
                self.findings.push(format!("The TPM cannot be asked: {at}{}.", e.kind));
                return Ok(());
            }
        };
        for sealed in sealed {
            let keyslots: Vec<_> = sealed.keyslots.iter().map(u32::to_string).collect();
            let keyslots = format!("Keyslot {}", keyslots.join(", "));
            match sealed.check(&mut tpm) {
                Some(Err(error)) if matches!(error.kind, ErrorKind::Cancelled) => return Err(error),
                Some(Err(error)) if !matches!(error.kind, ErrorKind::WrongCredential(_)) => {
                    self.findings.push(format!("{keyslots}: the TPM cannot tell: {}.", error.kind));
                }
                // Of the signed PCRs, nothing was compared.
                Some(Ok(())) if matches!(&sealed.by, Releaser::Tpm(envelope) if envelope.policy.signed.is_some()) => {
                    self.findings
                        .push(format!("{keyslots}: a signature of PCRs also decides whether this TPM opens it."));
                }
                Some(Err(error)) => {
                    self.findings.push(format!("{keyslots} does not open by this TPM: {}.", error.kind));
                    // Of several keyslots, once.
                    let known = |hint: &String| self.advice.iter().any(|advice| advice.what == *hint);
                    if let Some(hint) = advice::to_try(&error).filter(|hint| !known(hint)) {
                        self.advise(hint);
                    }
                }
                Some(Ok(())) => {
                    self.findings.push(format!("{keyslots}: the PCRs of this TPM are as when it was sealed."));
                }
                None => {}
            }
        }
        Ok(())
    }

    /// Reports what a format with a signature says about the volume, and which command shows more.
    fn header_of_its_own(&mut self) {
        let yes = |o: &Opinion| match &o.verdict {
            Verdict::Yes(why) => Some(format!("As a volume of {}: {}.", o.format, why.join("; "))),
            _ => None,
        };
        self.findings.extend(self.diagnosis.formats.iter().filter_map(yes));
        self.suggest("To show its header:", "header show", &[]);
    }

    /// Reports that no trial of a headerless format gave recognisable contents.
    fn not_recognised(&mut self) {
        self.findings.push(
            "Such volumes have no header, so a wrong password, key file, cipher, hash, key size or offset, an empty \
             volume and a file of random bytes look the same."
                .to_owned(),
        );
        self.advise(
            "Besides other passwords, try other values of --cipher, --hash, --key-size, --data-offset and --skip.",
        );
    }

    fn searched(
        &mut self,
        args: &Args,
        store: &Arc<dyn Store>,
        targets: &[UnlockTarget],
        search: Search<OpenedVolume>,
    ) -> Result<()> {
        self.trials = search.tried;
        match search.found {
            Some(found) => {
                let target = &targets[found.target];
                self.opened(args, store, target, found)?;
                self.is_damaged_in_part(std::slice::from_ref(target));
            }
            None => {
                self.nothing_opens(targets, search.error);
                self.is_damaged_in_part(targets);
            }
        }
        Ok(())
    }

    fn opened(
        &mut self,
        args: &Args,
        store: &Arc<dyn Store>,
        target: &UnlockTarget,
        found: Match<OpenedVolume>,
    ) -> Result<()> {
        let Match { how, target: _, unlocked } = found;
        let format = target.format;
        self.partition = target.partition.or(args.open.how.partition());
        self.how = how;
        if how == Difference::Password(Change::Qnap) {
            let options = self.line.iter().position(|word| word == "--").unwrap_or(self.line.len());
            self.line.insert(options, "--qnap".into());
        }
        let mut facts = None;
        match unlocked {
            Ok((known, warnings)) => {
                let it = target.partition.map_or("It".to_owned(), |n| format!("Its partition {n}"));
                self.findings.push(format!(
                    "{it} opens as a {format} volume with {how}: {} in {} mode, {}, {}.",
                    known.cipher,
                    known.mode,
                    known.hash_name(),
                    size::short(known.size)
                ));
                let moved = warnings.iter().any(|w| matches!(w.advice, Some(engine::Advice::CompleteCopy { .. })));
                self.about_header(&known, args, (store, target.partition), moved)?;
                self.about_warnings(warnings);
                facts = Some(known);
            }
            Err(error) => {
                self.findings.push(format!("It is a {format} volume, and opens with {how}; but it is {}.", error.kind));
                self.exit_code = exit::number_of(&error.kind);
                if let Some(hint) = advice::to_try(&error) {
                    self.advise(hint);
                }
            }
        }
        self.about_password(facts.as_ref(), args, format);
        // A backup header has its own command.
        if facts.as_ref().is_some_and(|facts| !facts.header.is_backup() || args.open.names_header()) {
            self.suggest_for(format, "To mount it:", "mount", &[]);
        }
        let partition = self.partition;
        let (with, with_what) = (how.kind(), how.to_string());
        let caps_lock = how == Difference::Password(Change::CapsLock);
        self.opens = Some(Opens { format, partition, with, with_what, caps_lock, facts });
        Ok(())
    }

    /// Adds advice with a command for the volume that opened. If its format is not found at once, the command names it.
    fn suggest_for(&mut self, format: &str, what: impl Into<String>, verb: &str, more: &[&str]) {
        let is_named = self.line.iter().any(|word| mounting::NAME_FORMAT.iter().any(|name| option(word) == *name));
        let format = format!("--format={format}");
        let slow = !self.diagnosis.sure() && !is_named;
        self.suggest(what, verb, &more.iter().copied().chain(slow.then_some(&*format)).collect::<Vec<_>>());
    }

    /// Reports warnings, with the commands that solve them.
    fn about_warnings(&mut self, warnings: Vec<Warning>) {
        for warning in warnings {
            let (with_advice, plain, advice) = (warning.in_words(advice::say), warning.what, warning.advice);
            let copy = advice.as_ref().and_then(|advice| advice::of_copy(advice, &*self.path));
            match (copy, &advice) {
                // The command copies a whole disk, so it does not fit a volume in a partition.
                (Some(command), _) if self.partition.is_none() => {
                    let what = "To make a complete volume of it, in a new file:".to_owned();
                    self.advice.push(Advice { what, command: Some(command) });
                    self.findings.push(plain);
                }
                (None, Some(_)) => self.findings.push(with_advice),
                _ => self.findings.push(plain),
            }
        }
    }

    /// Reports on the header that opened.
    fn about_header(
        &mut self,
        facts: &Facts,
        args: &Args,
        (store, partition): (&Arc<dyn Store>, Option<u32>),
        moved: bool,
    ) -> Result<()> {
        if facts.cipher == "cipher_null" {
            self.findings.push("Its keyslots and data are not encrypted: any password opens it.".to_owned());
        }
        if facts.hidden {
            self.findings.push(
                "This is a hidden volume's password. The outer volume has another one; writing there without \
                 protection destroys this volume."
                    .to_owned(),
            );
        }
        if !facts.header.is_backup() || args.open.names_header() {
            return Ok(());
        }
        let overwritten = match facts.hidden || moved {
            true => None,
            false => diagnosis::overwritten_by(&*part_of(store, partition)?)?,
        };
        self.findings.extend(overwritten.as_ref().map(|what| {
            format!(
                "The header in front was overwritten by {what}, and some data may be, too. Check the file system \
                 before you write to it."
            )
        }));
        let how = &["--read-only", "--backup-header"];
        self.suggest_for(facts.format, "To mount it without changing anything:", "mount", how);
        if moved {
            return Ok(());
        }
        let why = match overwritten {
            Some(_) => "The header in front was overwritten; the backup opens.",
            None => "The header in front is damaged or has another password; the backup opens.",
        };
        let also = if overwritten.is_some() { ", which overwrites its current contents" } else { "" };
        let what =
            format!("{why} Copy the whole volume first; then restore the header from the embedded backup{also}:");
        self.suggest_for(facts.format, what, "header restore", &["--embedded"]);
        Ok(())
    }

    /// Says what about the credentials to change.
    fn about_password(&mut self, facts: Option<&Facts>, args: &Args, format: &str) {
        let mut more = Vec::new();
        let without;
        let what = match self.how {
            Difference::AsGiven => {
                if facts.is_some_and(|facts| facts.header.is_backup()) && !args.open.names_header() {
                    more.push("--backup-header");
                }
                "To show its properties:"
            }
            Difference::WithoutHints => "Omit the hash, cipher, PIM or header option:",
            Difference::Password(Change::Qnap) => "Add --qnap:",
            Difference::Password(_) => {
                more.push("--password-file=FILE");
                "Type it in that form, or put that form into a file that only you can read, and give the file:"
            }
            Difference::Nothing => "It opens without a password:",
            Difference::NoKeyfiles => "Omit the keyfiles:",
            Difference::NoPassword => "Use no password:",
            Difference::WithoutKeyfile(n) => {
                let name = mounting::keyfile_paths(&self.line).get(n).map(|path| path.display().to_string());
                without = format!("Omit the keyfile {}:", printable(&name.unwrap_or_default()));
                &without
            }
        };
        self.suggest_for(format, what, "info", &more);
        // A decrypted volume has nothing to protect.
        if matches!(self.how, Difference::Nothing) && facts.is_some_and(|facts| facts.derivation.is_some()) {
            self.suggest("To protect its key again with the existing protectors:", "keyslot resume", &[]);
        }
        if !matches!(self.how, Difference::AsGiven) && args.open.password_on_stdin() {
            self.advise("A script may send other bytes than you type: compare them.");
        }
    }

    fn nothing_opens(&mut self, targets: &[UnlockTarget], error: Option<Error>) {
        let error = error.unwrap_or_else(|| ErrorKind::WrongCredential(String::new()).into());
        self.exit_code = exit::number_of(&error.kind);
        match &error.kind {
            ErrorKind::WrongCredential(_) => {
                let sure = self.diagnosis.sure();
                if sure {
                    self.tried_on_keyslots(&error, targets);
                }
                self.findings.push(format!(
                    "Nothing opens it as {}: neither the given credentials nor their variants ({} trials).",
                    names(targets),
                    self.trials
                ));
                if sure {
                    self.header_of_its_own();
                    return;
                }
                if all_without_header(targets) {
                    self.not_recognised();
                    return;
                }
                self.findings.push(
                    "Such volumes have no signature, so a wrong password, wrong keyfiles, damaged headers and a \
                     file of random bytes look the same."
                        .to_owned(),
                );
                self.advise("Try other passwords, keyfiles (exactly the right set), PIMs and copies of the volume.");
                let formats: Vec<_> = targets.iter().map(|target| target.format).collect();
                self.restore_from_backup("If you have a header backup:", &formats);
                if self.diagnosis.could_be_headerless() {
                    self.may_have_no_header();
                }
            }
            _ => {
                if let Some(hint) = advice::to_try(&error) {
                    self.advise(hint);
                }
                let error = Error { hint: None, advice: None, ..error };
                self.findings.push(format!("The given credentials could not be tried and may be right: {error}."));
            }
        }
    }

    /// Reports which keyslots were tried, and which are damaged.
    fn tried_on_keyslots(&mut self, error: &Error, targets: &[UnlockTarget]) {
        let what = error.kind.to_string();
        if !what.is_empty() {
            self.findings.push(format!("Its header can be read; {what}."));
        }
        let from_backup = error.advice.as_deref() == Some(&engine::Advice::RestoreHeader);
        match if from_backup { error.hint.clone() } else { advice::to_try(error) } {
            Some(hint) => self.findings.push(hint),
            None => self
                .findings
                .push("The passphrase is wrong, or belongs to a keyslot that was removed or damaged.".to_owned()),
        }
        if from_backup {
            let formats: Vec<_> = targets.iter().map(|target| target.format).collect();
            self.restore_from_backup("If you have a header backup:", &formats);
        }
    }
}

/// Whether the format's headers can be backed up and restored.
fn has_backups(name: &str) -> bool {
    let format = engine::formats::by_name(name).ok();
    format.and_then(|format| format.editor()).is_some_and(HeaderEditor::has_backups)
}

/// The stored bytes of the volume, or of its partition.
fn part_of(store: &Arc<dyn Store>, partition: Option<u32>) -> Result<Arc<dyn Store>> {
    match partition {
        Some(number) => Ok(Arc::new(partitions::slice(Arc::clone(store), number)?)),
        None => Ok(Arc::clone(store)),
    }
}

/// The names of all formats without a header.
fn without_header() -> String {
    let names: Vec<_> = FORMATS.iter().filter(|f| f.headerless()).map(|f| f.name()).collect();
    names.join(", ")
}

/// Whether only formats without a header were tried.
fn all_without_header(targets: &[UnlockTarget]) -> bool {
    targets.iter().all(|t| FORMATS.iter().any(|f| f.name() == t.format && f.headerless()))
}

fn names(targets: &[UnlockTarget]) -> String {
    let mut names: Vec<_> = targets.iter().map(|t| t.format).collect();
    names.sort_unstable();
    names.dedup();
    names.join(" or ")
}

/// What the bytes look like.
fn looks(diagnosis: &Diagnosis) -> Vec<String> {
    let Diagnosis { size, content, mark, filesystem, partitions, formats, .. } = diagnosis;
    let mut findings = Vec::new();
    let Some(content) = content else { return vec!["It is empty (0 bytes).".to_owned()] };
    if diagnosis.beyond_sectors > 0 && (content.begins == Look::Random || filesystem.is_some()) {
        findings.push(format!(
            "Its {size} bytes are not whole 512-byte sectors. If it is a volume or disk, it was cut short or \
             extended."
        ));
    }
    match (filesystem, mark) {
        (Some(filesystem), _) => {
            let label = filesystem.label.as_ref().map(|l| format!(", called {}", printable(l))).unwrap_or_default();
            findings.push(format!(
                "It holds {}{label}, which is not encrypted and can be mounted as is.",
                filesystem.kind.described()
            ));
        }
        (None, Some(mark)) if mark.looks_random => findings.push(format!("It is {}.", mark.what)),
        (None, Some(mark)) => findings.push(format!("It holds {}.", mark.what)),
        (None, None) => {}
    }
    if !mark.as_ref().is_some_and(|m| m.looks_random) {
        findings.push(content_sentence(content, *size));
    }
    if let Some(trouble) = &diagnosis.partition_trouble {
        findings.push(format!("Its partition table cannot be used: {trouble}."));
    }
    findings.extend(partitions.iter().map(partition_sentence));
    findings.extend(diagnosis.raid_members.iter().map(raid_sentence));
    if let Some(trouble) = &diagnosis.raid_trouble {
        findings.push(format!("Its RAID superblock cannot be used: {trouble}."));
    }
    // In an intact file system, other signatures are remains of earlier data.
    let overwritten = diagnosis
        .remains
        .iter()
        .filter(|_| filesystem.is_none())
        .map(|r| format!("Its beginning was overwritten, but {}.", r.what));
    findings.extend(overwritten);
    // One sentence for all formats with the same reason.
    let named_only = |o: &Opinion| FORMATS.iter().any(|f| f.name() == o.format && f.headerless());
    let no = |o: &Opinion| match &o.verdict {
        Verdict::No(why) if !named_only(o) => Some(why.join("; ")),
        _ => None,
    };
    let mut reasons: Vec<String> = formats.iter().filter_map(no).collect();
    reasons.dedup();
    let sure = diagnosis.sure();
    if partitions.is_empty() && !sure && !mark.as_ref().is_some_and(|m| m.looks_random) {
        for why in reasons {
            let names: Vec<_> = formats.iter().filter(|o| no(o).as_ref() == Some(&why)).map(|o| o.format).collect();
            findings.push(format!("It does not begin like a {} volume: {why}.", names.join(" or ")));
        }
    }
    findings
}

fn partition_sentence(candidate: &Candidate) -> String {
    let Candidate { partition, formats } = candidate;
    let usual = partition.usual.map(|usual| format!(", {usual}")).unwrap_or_default();
    let name = partition.name.as_ref().map(|name| format!(", called {}", printable(name))).unwrap_or_default();
    let could = match &formats[..] {
        [] => "is not a volume of a known format".to_owned(),
        _ => format!("could be a volume: {}", formats.join(" or ")),
    };
    format!("Partition {} ({}{usual}{name}) {could}.", partition.number, size::short(partition.len))
}

fn raid_sentence(member: &ArrayMember) -> String {
    let what = printable(&member.describe());
    match member.partition {
        Some(number) => format!("Partition {number} is {what}."),
        None => format!("It is {what}."),
    }
}

fn content_sentence(content: &Content, size: u64) -> String {
    let look = |look| match look {
        Look::Zeros => "zeros",
        Look::Random => "random-looking bytes",
        Look::Ordered => "bytes that do not look random",
    };
    let (begins, until) = (content.begins, content.until);
    match (begins, until, content.then) {
        (Look::Random, None, _) => {
            "It looks random from beginning to end, like an encrypted volume or a wiped disk.".to_owned()
        }
        (Look::Zeros, None, _) => "It contains only zeros, according to samples.".to_owned(),
        (Look::Ordered, None, _) => "Nothing in it looks encrypted, according to samples.".to_owned(),
        (Look::Random, Some(at), Some(Look::Zeros)) => format!(
            "It looks random up to byte {at} of {size}, then zeros: this is typical of a quick format or an \
             interrupted copy."
        ),
        (_, Some(at), then) => format!(
            "It begins with {}; from byte {at} on, it holds {}.",
            look(begins),
            then.map_or("other bytes", look)
        ),
    }
}

impl Report for Explained {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "{}: {}", printable(&self.path), size::exact(self.diagnosis.size))?;
        sentences(out, &self.findings, &self.advice)
    }
}

/// Prints the findings, then each piece of advice with its command.
fn sentences(out: &mut dyn Write, findings: &[String], advice: &[Advice]) -> io::Result<()> {
    for finding in findings {
        writeln!(out, "  {finding}")?;
    }
    for Advice { what, command } in advice {
        writeln!(out, "\n{what}")?;
        if let Some(command) = command {
            writeln!(out, "  {command}")?;
        }
    }
    Ok(())
}
