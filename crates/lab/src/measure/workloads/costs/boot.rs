//! A whole system on an encrypted disk: a small Debian, started, used and shut down in user-mode Linux.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use claviger_engine::ErrorKind;
use claviger_uml::{COMPILER, KERNEL};

use super::debian;
use crate::measure::facility::{Surface, SurfaceKind};
use crate::measure::program::{OutputPiece, Ran};
use crate::measure::workloads::prelude::*;

/// Seconds after which a guest that has not finished is killed.
const PATIENCE: &str = "600";

/// A guest that is silent for this long hangs: no step takes a tenth of it.
const SILENCE: Duration = Duration::from_secs(60);

/// Seconds that each step takes at least: the guest needs twenty times as long to start a process.
const SHORTEST_S: f64 = 0.001;

/// Bytes of a request while the image is copied.
const BLOCK: usize = 1 << 20;

/// A step that the guest reports (see `debian.init`), its name in reports, and the message before it begins.
const STEPS: &[(&str, &str, Option<&str>)] = &[
    ("start", "start of the system", None),
    ("python3", "first run of python3", Some("before-python3")),
    ("perl", "first run of perl", Some("before-perl")),
    ("bash", "first run of bash", Some("before-bash")),
    ("dpkg", "first run of dpkg -l", Some("before-dpkg")),
    ("apt", "first run of apt-get", Some("before-apt")),
    ("install", "installing a package", Some("before-install")),
];

/// Booting.
pub static BOOT: Workload = Workload {
    name: "boot",
    title: "A whole system, started and shut down",
    measures: |_| {
        format!(
            "A small Debian ({}, made by debootstrap, ext4, {} MiB) on the volume, in user-mode Linux, a real kernel in a process with \
             256 MiB of memory. Seconds from the command until its file systems and services are up; seconds for the first run of \
             programs that are not yet in the guest's memory, for installing a package with dpkg, which flushes what it writes, and \
             for shutting down until the machine is off. Times are by the host's clock, unless a figure is marked as being by the \
             guest's own (/proc/uptime). The studies' tests of full disk encryption did this by hand.",
            debian::SUITE,
            debian::SIZE >> 20
        )
    },
    not: "User-mode Linux is slow: a system call takes 25 to 110 microseconds and starting a process 20 milliseconds. \
        Everything takes longer than on hardware, and the share of encryption is smaller. A minimal system starts \
        almost no services. There is no boot loader, and no passphrase is requested.",
    on: On::Bytes,
    missing: || {
        let compiler = claviger_uml::needs_shim().then_some(COMPILER);
        let missing = [KERNEL].into_iter().chain(compiler).find(|name| program::find(name).is_none());
        missing.map(|name| format!("The program {name} is not installed.")).or_else(debian::missing)
    },
    version: || {
        let output = Command::new(program::find(KERNEL)?).arg("--version").output().ok()?;
        let version = String::from_utf8_lossy(&output.stdout).lines().next()?.trim().to_owned();
        Some(format!("user-mode Linux {version}"))
    },
    estimate_s: |_| 8.0,
    once_s: || if debian::is_made() { 0.0 } else { debian::MAKING_S },
    room: |_| debian::SIZE,
    run,
    ..Workload::PLAIN
};

fn run(target: &mut FacilityTarget, lab: &Lab) -> Result<WorkloadOutcome> {
    let surface = target.bytes()?;
    let SurfaceKind::File(disk) = surface.way.clone() else {
        return Err(Error::unsupported("booting from something that is neither a file nor a device"));
    };
    copy(&debian::image(lab)?, &surface, lab)?;
    lab.drop_caches()?;
    let ran = boot(&disk, lab, claviger_uml::needs_shim())?;
    Ok(measures(&ran)?.into())
}

/// Puts the image on the volume.
fn copy(image: &Path, surface: &Surface, lab: &Lab) -> Result<()> {
    if surface.len < debian::SIZE {
        return Err(
            Error::misuse("the volume is too small for a system").hint(format!("It needs {} MiB.", debian::SIZE >> 20))
        );
    }
    let mut file = File::open(image).map_err(|e| Error::from(e).at(image))?;
    let (mut device, mut buffer) = (surface.device()?, Buffer::new(BLOCK));
    for offset in (0..debian::SIZE).step_by(BLOCK) {
        lab.go_on()?;
        file.read_exact(&mut buffer).map_err(|e| Error::from(e).at(image))?;
        device.write(offset, &mut buffer)?;
    }
    Ok(device.flush()?)
}

/// Runs the guest from boot to power-off.
fn boot(disk: &Path, lab: &Lab, with_shim: bool) -> Result<Ran> {
    let folder = tempfile::Builder::new().prefix("boot-").tempdir_in(&lab.scratch)?;
    // On the kernel's command line a name must have no space and no comma.
    symlink(disk.canonicalize().map_err(|e| Error::from(e).at(disk))?, folder.path().join("disk"))?;
    // Like the disk, it is found from the guest's folder, whatever that is called.
    let shim = with_shim.then(|| claviger_uml::build_shim(folder.path())).transpose()?;
    let shim = shim.as_deref().and_then(Path::file_name).map(|name| Path::new(".").join(name));
    let mut command = Command::new("timeout");
    command.args(["--foreground", "-k", "5", PATIENCE]).args(program::bound(&[]));
    command.args(claviger_uml::words(&kernel()?, shim.as_deref()));
    command.current_dir(folder.path());
    // d: plain data, never a copy-on-write file, whatever the first bytes look like.
    command.args(["mem=256M", "uml_dir=.", "umid=guest", "ubd0d=disk", "root=/dev/ubda", "rootfstype=ext4", "rw"]);
    command.arg(format!("init={}", debian::INIT));
    command.args(["con=null", "con0=null,fd:1", "quiet", "panic=-1", "noreboot"]);
    program::run_while_heard(&mut command, SILENCE, lab.cancelled)
}

fn kernel() -> Result<PathBuf> {
    program::find(KERNEL).ok_or_else(|| Error::unsupported(format!("without the program {KERNEL}")))
}

/// What the guest reported, and when.
#[derive(Clone, Copy, Debug, PartialEq)]
struct BootStep {
    /// By the host's clock.
    after: Elapsed,
    /// The exit status of what was done.
    status: u32,
    /// Seconds, by the guest's clock, since its kernel began.
    uptime: f64,
}

/// The figures of one guest, from boot to power-off.
fn measures(ran: &Ran) -> Result<Vec<Measure>> {
    let report = |step: &str| find(&ran.output, step).ok_or_else(|| unfinished(step, ran));
    let time = |name: &str, took: Elapsed| Measure::time(Case::new(name), 0, took);
    let mut measures = Vec::new();
    for (step, name, before) in STEPS {
        let end = report(step)?;
        if end.status != 0 {
            return Err(unfinished(step, ran));
        }
        let begin = before.map(report).transpose()?.map_or(Elapsed { seconds: 0.0, cpu_s: 0.0 }, |begin| begin.after);
        let took = end.after.since(begin);
        if took.seconds < SHORTEST_S {
            return Err(untimed(step));
        }
        measures.push(time(name, took));
    }
    report("shutdown")?;
    measures.push(time("shutting down", ran.took.since(report("before-shutdown")?.after)));
    measures.push(time("all of it", ran.took));
    let uptime = report("start")?.uptime;
    let case = Case::new("start of the system, by its own clock");
    measures.push(Measure { case, value: uptime, unit: Unit::Seconds, bytes: 0, seconds: uptime, cpu_s: None });
    Ok(measures)
}

/// The line `claviger-lab: STEP STATUS UPTIME` in pieces of output. It counts as printed when the piece with its end
/// was read.
fn find(output: &[OutputPiece], step: &str) -> Option<BootStep> {
    let mut line = String::new();
    for piece in output {
        for part in piece.text.split_inclusive('\n') {
            line.push_str(part);
            if part.ends_with('\n') {
                if let Some(found) = parse(line.trim(), step, piece.after) {
                    return Some(found);
                }
                line.clear();
            }
        }
    }
    None
}

fn parse(line: &str, step: &str, after: Elapsed) -> Option<BootStep> {
    let mut words = line.strip_prefix("claviger-lab: ")?.split(' ');
    if words.next()? != step {
        return None;
    }
    Some(BootStep { after, status: words.next()?.parse().ok()?, uptime: words.next()?.parse().ok()? })
}

/// The beginning of a step was read no earlier than its end, so that the host's clock cannot say how long it took.
fn untimed(step: &str) -> Error {
    let reason =
        format!("the step `{step}` could not be timed: this machine was too busy to read its beginning before its end");
    ErrorKind::Io(std::io::Error::other(reason)).into()
}

/// The guest did not finish a step, or failed in it.
fn unfinished(step: &str, ran: &Ran) -> Error {
    let output = program::text(&ran.output);
    let lines: Vec<&str> = output.lines().map(str::trim_end).filter(|line| !line.is_empty()).collect();
    let last = lines[lines.len().saturating_sub(6)..].join("; ");
    ErrorKind::Io(std::io::Error::other(format!("the guest did not complete the step `{step}`: {last}"))).into()
}

#[cfg(test)]
mod tests {
    use std::sync::OnceLock;
    use std::time::{Duration, Instant};

    use claviger_testkit::tools;

    use super::*;
    use crate::measure::lab::tests::{lab, working_below};

    fn piece(seconds: f64, text: &str) -> OutputPiece {
        OutputPiece { after: Elapsed { seconds, cpu_s: seconds / 2.0 }, text: text.into() }
    }

    /// What a guest prints, with the times of the lines a second apart.
    fn life(steps: &[&str]) -> Ran {
        let line = |(i, step): (usize, &&str)| {
            piece(i as f64 + 1.0, &format!("mmapper_init - find_iomem failed\r\nclaviger-lab: {step} 0.25\r\n"))
        };
        let took = Elapsed { seconds: steps.len() as f64 + 1.0, cpu_s: 1.0 };
        Ran { took, own_cpu_s: 0.0, output: steps.iter().enumerate().map(line).collect(), errors: Vec::new() }
    }

    #[rustfmt::skip]
    const LIFE: &[&str] = &[
        "start 0", "before-python3 0", "python3 0", "before-perl 0", "perl 0", "before-bash 0", "bash 0",
        "before-dpkg 0", "dpkg 0", "before-apt 0", "apt 0", "before-install 0", "install 0", "before-shutdown 0",
        "shutdown 0",
    ];

    #[test]
    fn a_line_is_told_when_its_end_was_read() {
        let pieces =
            [piece(1.0, "claviger-lab: sta"), piece(2.0, "rt 0 1.25\r\nclaviger-lab: bash 7"), piece(3.0, " 2.5\n")];
        let start = find(&pieces, "start").unwrap();
        assert_eq!((start.after.seconds, start.status, start.uptime), (2.0, 0, 1.25));
        assert_eq!(find(&pieces, "bash").map(|found| (found.after.seconds, found.status)), Some((3.0, 7)));
        assert_eq!(find(&pieces, "perl"), None);
        assert_eq!(find(&pieces[..2], "bash"), None);
    }

    #[test]
    fn a_life_gives_all_figures_and_an_unfinished_or_failed_one_none() {
        let all = measures(&life(LIFE)).unwrap();
        let seconds: Vec<f64> = all.iter().map(|measure| measure.value).collect();
        assert_eq!(seconds, [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 2.0, 16.0, 0.25]);
        for end in 0..LIFE.len() {
            let error = measures(&life(&LIFE[..end])).unwrap_err().to_string();
            assert!(error.contains("the guest did not complete the step"), "{error}");
        }
        let mut at_once = life(LIFE);
        let [before, perl] = ["before-perl", "perl"].map(|step| find(&at_once.output, step).unwrap().after);
        at_once.output.iter_mut().filter(|piece| piece.after == before).for_each(|piece| piece.after = perl);
        assert!(measures(&at_once).unwrap_err().to_string().contains("`perl` could not be timed"));
        let failed: Vec<&str> = LIFE.iter().map(|step| if *step == "dpkg 0" { "dpkg 127" } else { step }).collect();
        assert!(measures(&life(&failed)).unwrap_err().to_string().contains("`dpkg`"));
    }

    #[test]
    fn a_system_lives_on_a_file_and_leaves_nothing_behind() {
        if [KERNEL, COMPILER, "debootstrap", "mke2fs"].iter().any(|name| tools::program(name).is_none()) {
            return;
        }
        let scratch = tempfile::tempdir().unwrap();
        let lab = Lab { scratch: scratch.path().to_owned(), ..lab() };
        let disk = scratch.path().join("a disk, in a folder with spaces");
        std::fs::copy(debian::image(&lab).unwrap(), &disk).unwrap();
        // Boots with the shim, which does no harm where it is not needed; tests of the program boot without it. Other
        // tests may keep the machine too busy to time a short step.
        let life = || measures(&boot(&disk, &lab, true).unwrap());
        let untimed =
            |measured: &Result<Vec<Measure>>| measured.as_ref().is_err_and(|e| e.to_string().contains("not be timed"));
        let measures = (0..5)
            .map(|_| life())
            .find(|measured| !untimed(measured))
            .expect("a life of which every step was timed")
            .unwrap();
        assert!(measures.iter().all(|measure| measure.value > 0.0), "{measures:?}");
        // The guest has unmounted its disk: nothing is to be recovered (the flag needs_recovery of ext4(5)).
        let superblock = std::fs::read(&disk).unwrap()[1024..2048].to_vec();
        assert_eq!(u32::from_le_bytes(superblock[0x60..][..4].try_into().unwrap()) & 4, 0);

        // Once the guest is under way.
        static BEGAN: OnceLock<Instant> = OnceLock::new();
        let cancelled = || BEGAN.get_or_init(Instant::now).elapsed() > Duration::from_secs(1);
        let cancelled = Lab { cancelled, scratch: scratch.path().to_owned(), ..self::lab() };
        assert!(matches!(boot(&disk, &cancelled, true).unwrap_err().kind, ErrorKind::Cancelled));
        assert_eq!(working_below(scratch.path()), Vec::<PathBuf>::new());
        let left: Vec<_> = std::fs::read_dir(scratch.path()).unwrap().flatten().map(|entry| entry.path()).collect();
        assert_eq!(left, [disk]);
    }
}
