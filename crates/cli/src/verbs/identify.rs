//! `claviger identify`: identifies files without a credential.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use claviger_engine::arrays::ArrayMember;
use claviger_engine::diagnosis::{self, Diagnosis, Look, Opinion};
use claviger_engine::file_formats::efs::EFS;
use claviger_engine::formats::partition::Candidate;
use claviger_engine::logical_volumes::{self, Group};
use claviger_engine::store::Access;
use claviger_engine::{FORMATS, FileFormat, Store, Verdict, file_formats, formats};
use serde::Serialize;

use crate::opening::folder::is_reversible;
use crate::opening::{assembled, images, remote};
use crate::terminal::advice;
use crate::terminal::exit::{self, Failure, Silent};
use crate::terminal::file_name::FileName;
use crate::terminal::left_out::gravest;
use crate::terminal::output::{self, Report};
use crate::terminal::size;

/// Identify files and devices, without a password
///
/// Formats without a signature look like random bytes and are reported as "possibly" a volume. On a disk, each
/// partition is examined too, and in a disk image (qcow2, VMDK, VHDX …) the disk. Nothing is written.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  claviger identify old.tc
  claviger identify disk.vhdx
  claviger identify --json /dev/sd*
  claviger identify md:disk1.img,disk2.img,disk3.img   # what is in a RAID array")]
pub struct Args {
    /// Files, block devices, or encrypted folders
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The answer for one of the named files.
#[derive(Serialize)]
#[serde(untagged)]
enum Examined {
    Identified(Box<Identified>),
    Failed {
        #[serde(flatten)]
        path: FileName,
        error: Failure,
    },
}

#[derive(Serialize)]
struct Identified {
    #[serde(flatten)]
    path: FileName,
    /// The size in bytes; `None` for a folder.
    #[serde(skip_serializing_if = "Option::is_none")]
    size: Option<u64>,
    /// The best of the verdicts.
    verdict: &'static str,
    /// The first format with that verdict.
    format: Option<&'static str>,
    /// All formats with that verdict.
    candidates: Vec<&'static str>,
    /// The opinion of each format.
    formats: Vec<Reasoned>,
    /// Whether the file begins with random-looking bytes, as volumes without a header do.
    begins_random: bool,
    /// Formats whose header may have a copy there, although the file does not begin like a volume.
    by_header_copy: Vec<&'static str>,
    /// The partitions of a disk, and the possible formats of each.
    #[serde(skip_serializing_if = "Option::is_none")]
    partitions: Option<Vec<Candidate>>,
    /// The error in the partition table.
    #[serde(skip_serializing_if = "Option::is_none")]
    partition_table: Option<String>,
    /// What it, or its partitions, are in arrays of Linux RAID.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    raid_members: Vec<RaidMember>,
    /// The error in the RAID superblock.
    #[serde(skip_serializing_if = "Option::is_none")]
    raid_superblock: Option<String>,
    /// The logical volumes, if it, or its partitions, are physical volumes of LVM2.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    logical_volumes: Vec<OpenableVolume>,
    /// The volume groups that it has a part of.
    #[serde(skip)]
    groups: Vec<Group>,
    /// What the file is, if it is not the disk itself: `a virtual disk of Hyper-V (VHDX)`.
    #[serde(skip_serializing_if = "Option::is_none")]
    image: Option<String>,
    /// The disk in such a file.
    #[serde(skip_serializing_if = "Option::is_none")]
    disk: Option<Box<Examined>>,
    /// Whether it is a plain folder that its format can show encrypted.
    #[serde(skip)]
    reversible: bool,
    /// What to do next, in sentences with commands.
    #[serde(skip)]
    steps: Vec<String>,
}

/// A member of an array.
#[derive(Serialize)]
struct RaidMember {
    #[serde(flatten)]
    member: ArrayMember,
    /// The name that opens the array, with all members that were given.
    open_as: String,
}

/// A logical volume that can be opened.
#[derive(Serialize)]
struct OpenableVolume {
    /// Its name with that of the group.
    name: String,
    /// The name that opens it, with all disks of the group that were given.
    open_as: String,
}

/// A format's verdict and its reasons.
#[derive(Serialize)]
struct Reasoned {
    format: &'static str,
    verdict: &'static str,
    why: Vec<String>,
}

impl Reasoned {
    fn of(opinion: Opinion) -> Self {
        let (_, verdict) = rank(&opinion.verdict);
        let (Verdict::No(why) | Verdict::Possible(why) | Verdict::Yes(why)) = opinion.verdict;
        Self { format: opinion.format, verdict, why }
    }
}

impl Examined {
    /// The answer. An error in one file must not keep the others from being examined: it is reported at once.
    fn of(path: &Path, json: bool, identified: claviger_engine::Result<Identified>) -> Self {
        match identified {
            Ok(identified) => Self::Identified(Box::new(identified)),
            Err(e) => {
                let e = anyhow::Error::new(e);
                exit::report(&e, json);
                Self::Failed { path: FileName::path(path), error: Failure::of(&e) }
            }
        }
    }

    fn identified(&self) -> Option<&Identified> {
        if let Self::Identified(identified) = self { Some(identified) } else { None }
    }

    /// What is on the disk: in the image, if the file is one.
    fn disk(&self) -> Option<&Identified> {
        let identified = self.identified()?;
        identified.disk.as_deref().map_or(Some(identified), Self::disk)
    }

    fn disk_mut(&mut self) -> Option<&mut Identified> {
        let Self::Identified(identified) = self else { return None };
        match identified.disk.is_some() {
            true => identified.disk.as_mut()?.disk_mut(),
            false => Some(identified),
        }
    }

    /// The exit code; `None` if the file may hold a volume.
    fn code(&self) -> Option<u8> {
        match self {
            Self::Identified(identified) => match &identified.disk {
                Some(disk) => disk.code(),
                None => (!identified.promising()).then_some(Silent::not_this_format().0),
            },
            Self::Failed { error, .. } => Some(error.exit_code),
        }
    }
}

impl Identified {
    /// Whether the file may hold a volume.
    fn promising(&self) -> bool {
        self.format.is_some()
            || !self.raid_members.is_empty()
            || !self.groups.is_empty()
            || self.partitions.iter().flatten().any(|p| !p.formats.is_empty())
    }

    fn is_folder(&self) -> bool {
        self.size.is_none()
    }

    /// Whether the file may be a volume without a header.
    fn could_be_headerless(&self) -> bool {
        self.begins_random && self.verdict != "yes" && self.partitions.is_none()
    }
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    let examine = |path: &PathBuf| Examined::of(path, args.json, identify(path, args.json));
    let mut examined: Vec<_> = args.files.iter().map(examine).collect();
    name_arrays(&mut examined, &args.files);
    name_logical_volumes(&mut examined, &args.files);
    output::print(&examined, args.json)?;
    let codes: Vec<_> = examined.iter().filter_map(Examined::code).collect();
    gravest(&codes).map_or(Ok(()), |code| Err(Silent(code).into()))
}

fn identify(path: &Path, json: bool) -> claviger_engine::Result<Identified> {
    if path.is_dir() {
        let identified = Identified::of(path, diagnosis::look_at_folder(path)?);
        let format = identified.format.and_then(|name| file_formats::named(name).ok());
        return Ok(match format.is_some_and(|format| is_reversible(path, format)) {
            true => {
                let step = advice::about("To show it encrypted: `claviger mount --reverse VOLUME DIR`", path);
                Identified { reversible: true, steps: vec![step], ..identified }
            }
            false => identified,
        });
    }
    let Some(disk) = remote::disk_in_file(path)? else {
        return identify_store(path, &remote::open(path, Access::ReadOnly)?);
    };
    let store = disk.open(path, Access::ReadOnly).map_err(|e| e.at(path));
    let size = remote::open(path, Access::ReadOnly)?.len();
    let inside = store.and_then(|store| identify_store(path, &store));
    let inside = Some(Box::new(Examined::of(path, json, inside)));
    Ok(Identified { size: Some(size), image: Some(disk.what()), disk: inside, ..Identified::of(path, Vec::new()) })
}

fn identify_store(path: &Path, store: &Arc<dyn Store>) -> claviger_engine::Result<Identified> {
    let diagnosis = diagnosis::look(store).map_err(|e| e.at(path))?;
    // Only a hint: a disk that fails near its end is identified, too.
    let candidates = diagnosis.candidates(&**store).unwrap_or_default();
    // Opening a logical volume of a damaged group by name says what is wrong.
    let groups = logical_volumes::groups(std::slice::from_ref(store)).unwrap_or_default();
    let groups: Vec<_> = groups.into_iter().map(|found| found.group).collect();
    let Diagnosis { size, content, mark, partitions, partition_trouble, formats, raid_members, raid_trouble, .. } =
        diagnosis;
    let begins_random = content.is_some_and(|content| content.begins == Look::Random);
    let identified = Identified { size: Some(size), begins_random, ..Identified::of(path, formats) };
    let beheaded = identified.format.is_none() && partitions.is_empty();
    let by_header_copy = candidates.iter().filter(|_| beheaded).map(|format| format.name()).collect();
    let raid_members = raid_members.into_iter().map(|member| RaidMember { member, open_as: String::new() }).collect();
    let identified = Identified { by_header_copy, raid_members, raid_superblock: raid_trouble, groups, ..identified };
    let partitions = (!partitions.is_empty()).then_some(partitions);
    let identified = Identified { partitions, partition_table: partition_trouble, ..identified };
    let mark = mark.filter(|_| identified.format.is_none());
    let to_contents = mark.iter().flat_map(|mark| images::steps(mark, &identified.path, "explain")).map(in_one_line);
    let steps = to_contents.chain(identified.trials(path)).collect();
    Ok(Identified { steps, ..identified })
}

/// Fills in the names of logical volumes. Several of the files may hold a group: then all of them are needed.
fn name_logical_volumes(examined: &mut [Examined], files: &[PathBuf]) {
    let mut holders: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for (i, file) in examined.iter().enumerate() {
        for group in file.disk().iter().flat_map(|file| &file.groups) {
            holders.entry(group.uuid.clone()).or_default().push(i);
        }
    }
    for (uuid, holders) in &holders {
        let Some(group) = group_of(examined, files, uuid, holders) else { continue };
        let stores = || holders.iter().map(|i| files[*i].as_path());
        for i in holders {
            let Some(file) = examined[*i].disk_mut() else { continue };
            file.logical_volumes.extend(group.openable().into_iter().map(|name| {
                let open_as = assembled::logical_volume_name(&name, stores()).to_string_lossy().into_owned();
                OpenableVolume { name, open_as }
            }));
        }
        let last = holders.last().and_then(|i| examined[*i].disk_mut());
        if let (Some(file), 1..) = (last, group.missing) {
            let more = if group.missing == 1 { "one more physical volume" } else { "more physical volumes" };
            file.steps.push(format!(
                "The volume group {} has {more}. Some of its logical volumes need all of its disks: give them together.",
                group.name
            ));
        }
    }
}

/// The group, from all files that hold a part of it.
fn group_of(examined: &[Examined], files: &[PathBuf], uuid: &str, holders: &[usize]) -> Option<Group> {
    match holders {
        [one] => examined[*one].disk()?.groups.iter().find(|group| group.uuid == uuid).cloned(),
        several => {
            let open = |i: &usize| remote::open_disk(&files[*i], Access::ReadOnly);
            let stores = several.iter().map(open).collect::<claviger_engine::Result<Vec<_>>>().ok()?;
            let groups = logical_volumes::groups(&stores).ok()?;
            groups.into_iter().map(|found| found.group).find(|group| group.uuid == uuid)
        }
    }
}

/// Fills in the names of arrays, of which several of the files may hold members. The last of these files says how to open the array.
fn name_arrays(examined: &mut [Examined], files: &[PathBuf]) {
    let mut holders: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for (i, file) in examined.iter().enumerate() {
        for RaidMember { member, .. } in file.disk().iter().flat_map(|file| &file.raid_members) {
            holders.entry(member.uuid.clone()).or_default().push(i);
        }
    }
    holders.values_mut().for_each(Vec::dedup);
    for (uuid, holders_of_one) in &holders {
        let is_beside = |other: &[usize]| other.iter().any(|i| holders_of_one.contains(i));
        let beside_others = holders.iter().any(|(other, all)| other != uuid && is_beside(all));
        let stores = holders_of_one.iter().map(|i| files[*i].as_path());
        let name = assembled::array_name(beside_others.then_some(uuid), stores).to_string_lossy().into_owned();
        for i in holders_of_one {
            let Some(file) = examined[*i].disk_mut() else { continue };
            let of_array = file.raid_members.iter_mut().filter(|found| found.member.uuid == *uuid);
            of_array.for_each(|found| found.open_as.clone_from(&name));
        }
        let last = holders_of_one.last().and_then(|i| examined.get_mut(*i));
        let Some(file) = last.and_then(Examined::disk_mut) else { continue };
        let Some(found) = file.raid_members.iter().find(|found| found.member.uuid == *uuid) else { continue };
        let array = found.member.array();
        let step = match holders_of_one.len() as u32 >= found.member.devices {
            true => format!("To examine {array}: `{}`", output::suggested("identify", &name)),
            false => format!(
                "To examine {array}, add its other members, separated by commas: `{}`",
                output::suggested("identify", &name)
            ),
        };
        file.steps.push(output::printable(&step));
    }
}

fn in_one_line((what, command): (String, Option<String>)) -> String {
    command.map_or(what.clone(), |command| format!("{what} {command}"))
}

impl Identified {
    fn of(path: &Path, formats: Vec<Opinion>) -> Self {
        let best = formats.iter().map(|o| rank(&o.verdict)).max().unwrap_or((0, "no"));
        let candidates: Vec<_> = match best {
            (0, _) => Vec::new(),
            best => formats.iter().filter(|o| rank(&o.verdict) == best).map(|o| o.format).collect(),
        };
        Self {
            path: FileName::path(path),
            size: None,
            verdict: best.1,
            format: candidates.first().copied(),
            candidates,
            formats: formats.into_iter().map(Reasoned::of).collect(),
            begins_random: false,
            by_header_copy: Vec::new(),
            partitions: None,
            partition_table: None,
            raid_members: Vec::new(),
            raid_superblock: None,
            logical_volumes: Vec::new(),
            groups: Vec::new(),
            image: None,
            disk: None,
            reversible: false,
            steps: Vec::new(),
        }
    }

    /// How to find out whether the file is a volume: by trying its password.
    fn trials(&self, path: &Path) -> Vec<String> {
        let candidates = self.partitions.iter().flatten().filter(|candidate| !candidate.formats.is_empty());
        let numbers: Vec<_> = candidates.map(|candidate| candidate.partition.number.to_string()).collect();
        let partition = match &numbers[..] {
            [] => String::new(),
            [number] => format!("--partition={number} "),
            _ => "--partition=N ".to_owned(),
        };
        let mut steps = Vec::new();
        if self.verdict == "possible" || !partition.is_empty() {
            steps.push(format!("To try a password: `claviger explain {partition}VOLUME`"));
        }
        if !self.by_header_copy.is_empty() {
            let names = self.by_header_copy.join(" or ");
            let what =
                format!("If the beginning of a volume was overwritten, a copy of its header may open it ({names})");
            steps.push(format!("{what}: `claviger explain VOLUME`"));
        }
        if self.could_be_headerless() {
            let names: Vec<_> = FORMATS.iter().filter(|f| f.headerless()).map(|f| f.name()).collect();
            let names = names.join(", ");
            steps.push(format!("{names}: no header; only `claviger explain --format NAME VOLUME` can tell"));
        }
        steps.iter().map(|step| advice::about(step, path)).collect()
    }
}

fn rank(verdict: &Verdict) -> (u8, &'static str) {
    match verdict {
        Verdict::No(_) => (0, "no"),
        Verdict::Possible(_) => (1, "possible"),
        Verdict::Yes(_) => (2, "yes"),
    }
}

impl Report for Vec<Examined> {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        for file in self.iter().filter_map(Examined::identified) {
            file.lines(&output::printable(&file.path)).iter().try_for_each(|line| writeln!(out, "{line}"))?;
        }
        Ok(())
    }

    fn json(&self) -> serde_json::Result<String> {
        output::json_list(self)
    }
}

impl Identified {
    /// The answer as lines for people: what it is, and below that, indented, what is in it. `name` is that of the file or disk.
    fn lines(&self, name: &str) -> Vec<String> {
        let (first, below) = match &self.image {
            Some(what) => (format!("{name}: {what}"), self.lines_of_disk()),
            None => (format!("{name}: {}", self.summary()), self.details()),
        };
        [first].into_iter().chain(below.into_iter().map(|line| format!("  {line}"))).collect()
    }

    fn lines_of_disk(&self) -> Vec<String> {
        let disk = self.disk.as_deref().and_then(Examined::identified);
        disk.map_or_else(Vec::new, |disk| {
            disk.lines(&format!("the disk in it, {}", size::short(disk.size.unwrap_or_default())))
        })
    }

    fn summary(&self) -> String {
        let names = self.candidates.join(" or ");
        match (self.verdict, self.format) {
            _ if self.reversible => format!("a plain folder that {names} can show encrypted"),
            ("yes", Some(_)) if self.is_folder() => format!("an encrypted folder: {names}"),
            (_, None) if self.is_folder() => "not an encrypted folder of any known format".to_owned(),
            ("yes", Some(_)) => names,
            (_, Some(_)) => format!("possibly {names}"),
            (_, None) if self.raid_members.iter().any(|found| found.member.partition.is_none()) => {
                "a member of a Linux RAID array".to_owned()
            }
            (_, None) if !self.raid_members.is_empty() => "a disk with members of Linux RAID arrays".to_owned(),
            (_, None) if !self.logical_volumes.is_empty() => "a physical volume of LVM2".to_owned(),
            (_, None) if self.promising() => "a disk with partitions that could be volumes".to_owned(),
            (_, None) => "not a volume of any known format".to_owned(),
        }
    }

    fn details(&self) -> Vec<String> {
        let headerless = |o: &&Reasoned| FORMATS.iter().any(|f| f.name() == o.format && f.headerless());
        // That a local folder is not on an NTFS is obvious.
        let obvious = |o: &&Reasoned| o.format == EFS.name() && o.verdict == "no";
        let shown = self.formats.iter().filter(|o| !headerless(o) && !obvious(o));
        let reasons = formats::by_reason(shown.flat_map(|o| o.why.iter().map(|why| (o.format, &**why))));
        let partitions = self.partitions.iter().flatten().map(line_of);
        let table = self.partition_table.iter().map(|why| format!("partition table: {why}"));
        let members = self.raid_members.iter().map(|RaidMember { member, .. }| {
            let partition = member.partition.map(|number| format!("partition {number}: ")).unwrap_or_default();
            format!("{partition}{}, UUID {}", output::printable(&member.describe()), member.uuid)
        });
        let superblock = self.raid_superblock.iter().map(|why| format!("RAID superblock: {why}"));
        let volumes = self.logical_volumes.iter().map(|OpenableVolume { name, open_as }| {
            format!("logical volume {name}: `{}`", output::suggested("identify", open_as))
        });
        let lines = reasons.into_iter().chain(partitions).chain(table).chain(members).chain(superblock).chain(volumes);
        lines.chain(self.steps.iter().cloned()).collect()
    }
}

/// A partition as a line: `partition 2 "data", 1 GiB, Linux: possibly TrueCrypt (--partition 2)`.
fn line_of(candidate: &Candidate) -> String {
    let p = &candidate.partition;
    let name = p.name.as_ref().map(|name| format!(" {name:?}")).unwrap_or_default();
    let kind = p.usual.map_or_else(|| format!("type {}", p.kind), str::to_owned);
    let verdict = match &candidate.formats[..] {
        [] => "not a volume of any known format".to_owned(),
        formats => format!("possibly {} (--partition {})", formats.join(" or "), p.number),
    };
    format!("partition {}{name}, {}, {kind}: {verdict}", p.number, size::short(p.len))
}
