//! A real program compiled from its source.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use claviger_engine::ErrorKind;

use super::{flush, in_fresh_folder, made_once, written};
use crate::measure::machine;
use crate::measure::workloads::prelude::*;

/// Names a folder with a source tree that has a `configure` or a `Makefile`, or an archive of one, such as that of Debian's
/// package linux-source.
const VARIABLE: &str = "CLAVIGER_LAB_SOURCE";

/// The package of Debian whose source is fetched where apt knows sources: small, and needs nothing but a C library.
const PACKAGE: &str = "zlib";

/// How Zstandard's library is made of the sources that the crate zstd-sys brings without its Makefile.
const ZSTD_MAKEFILE: &str = "\
OBJECTS = $(patsubst %.c,%.o,$(wildcard */*.c))
libzstd.a: $(OBJECTS)
\t$(AR) rcs $@ $^
%.o: %.c
\t$(CC) $(CFLAGS) -I. -Icommon -DZSTD_DISABLE_ASM=1 -c -o $@ $<
";

/// Where a source tree comes from.
#[derive(Clone, Debug, PartialEq)]
enum Source {
    /// A folder that the user named.
    Named(PathBuf),
    /// An archive that the user named.
    Archive(PathBuf),
    /// The crate zstd-sys in cargo's registry, with Zstandard's C sources.
    Zstd(PathBuf),
    /// [`PACKAGE`], from Debian.
    Debian,
}

/// A real program compiled from its source.
pub(super) static COMPILE: Workload = Workload {
    name: "compile",
    title: "Compiling a program",
    measures,
    not: "A compiler computes far more than it reads and writes, so small differences are the expected result. The \
        compiler and its headers are outside the facility. Figures of another source or another compiler cannot be \
        compared.",
    on: On::Files,
    parameters: &["threads"],
    missing: || {
        program::missing(&["make", "cc", "cp"]).or_else(|| {
        let none = format!(
            "No source tree was found: {VARIABLE} is not set to a folder or an archive, cargo's registry has no zstd-sys, and apt \
                has no source packages (deb-src)."
        );
        Source::found().is_none().then_some(none)
    })
    },
    version: || program::version(Command::new("cc").arg("--version")),
    estimate_s: |plan| {
        let once = match Source::found() {
            Some(Source::Archive(_)) => 180.0,
            _ => plan.level.choose([4.0, 15.0, 15.0]),
        };
        once * jobs(plan).len() as f64
    },
    room: |_| match Source::found() {
        Some(Source::Named(folder)) => 4 * size(folder) + (16 << 20),
        // Linux 6.1 is 130 MiB packed, 1.3 GiB unpacked, and 0.2 GiB more as allnoconfig compiles it.
        Some(Source::Archive(archive)) => 14 * archive.metadata().map_or(0, |data| data.len()) + (64 << 20),
        _ => 32 << 20,
    },
    run: |target, lab| {
        let source = Source::found().ok_or_else(|| ErrorKind::Misuse("no source tree to compile was found".into()))?;
        let source = source.prepared(lab)?;
        let mut outcome = WorkloadOutcome::default();
        for (jobs, series) in jobs(&lab.plan) {
            let measures = in_fresh_folder(&target.folder()?, |folder| compile(folder, &source, (jobs, &series), lab))?;
            outcome.measures.extend(measures);
        }
        Ok(outcome)
    },
    ..Workload::PLAIN
};

fn measures(plan: &Plan) -> String {
    let what = Source::found().map_or("a program".into(), |source| source.title(plan.level));
    let jobs: Vec<String> = jobs(plan).iter().map(|(jobs, _)| format!("make -j{jobs}")).collect();
    format!(
        "Seconds from the start of configure (if there is one) and make to their end, including the flush to the \
            store, and the processor time of the whole machine during that. Compiled: {what}, copied onto the \
            facility beforehand, by {} with {}. BSI 2010 compiled Linux 2.6.34 after make allnoconfig: set {VARIABLE} to \
            the archive of Debian's package linux-source to do the same.",
        jobs.join(" and by "),
        flags(plan.level)
    )
}

/// The number of parallel jobs of `make`, and the name of the series: as a study asks, or one per processor, as people
/// do.
fn jobs(plan: &Plan) -> Vec<(usize, String)> {
    let each = |threads: u32| if threads == 0 { machine::cpus() } else { threads as usize };
    match plan.parameters(COMPILE.name).map(|study| &study.threads[..]) {
        None | Some([]) => vec![(machine::cpus(), String::new())],
        Some(asked) => {
            asked.iter().map(|threads| each(*threads)).map(|jobs| (jobs, format!("make -j{jobs}"))).collect()
        }
    }
}

/// Optimising only takes time.
fn flags(level: Level) -> &'static str {
    if level == Level::Quick { "-O0" } else { "-O2" }
}

impl Source {
    /// The first that there is; the same at every call.
    fn found() -> Option<&'static Self> {
        static FOUND: OnceLock<Option<Source>> = OnceLock::new();
        let named = || Self::named(std::env::var_os(VARIABLE)?.into());
        FOUND.get_or_init(|| named().or_else(|| zstd_in(&registry()?).map(Self::Zstd)).or_else(debian)).as_ref()
    }

    /// What the user named, if it is a source tree or may be an archive of one.
    fn named(path: PathBuf) -> Option<Self> {
        match path.is_file() {
            true => Some(Self::Archive(path)),
            false => Some(path).filter(|folder| can_be_made(folder)).map(Self::Named),
        }
    }

    fn title(&self, level: Level) -> String {
        match self {
            Self::Named(folder) => format!("the source in {}", folder.display()),
            Self::Archive(archive) => format!("the source in {}", archive.display()),
            Self::Zstd(folder) => {
                let crate_name = folder.file_name().unwrap_or_default().to_string_lossy();
                format!(
                    "the folders {} of Zstandard's library from the crate {crate_name}",
                    zstd_parts(level).join(", ")
                )
            }
            Self::Debian => format!("Debian's source package {PACKAGE}"),
        }
    }

    /// The source tree in the lab's own folder; copied there if it is missing.
    fn prepared(&self, lab: &Lab) -> Result<PathBuf> {
        made_once(lab, "compile-source", |folder| match self {
            Self::Named(named) => copy(named, &folder.join("source"), lab),
            Self::Archive(archive) => unpacked(archive, &folder.join("source"), lab),
            Self::Zstd(crate_folder) => zstd(crate_folder, &folder.join("source"), lab),
            Self::Debian => fetched(folder, lab),
        })
    }
}

/// Whether it is a source tree for `./configure` or `make`.
fn can_be_made(folder: &Path) -> bool {
    ["configure", "Makefile", "makefile", "GNUmakefile"].iter().any(|name| folder.join(name).is_file())
}

/// Where cargo keeps the sources of crates.
fn registry() -> Option<PathBuf> {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    Some(home.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo")))?.join("registry/src"))
}

/// The crate zstd-sys, the last of them by name.
fn zstd_in(registry: &Path) -> Option<PathBuf> {
    let folders = |folder: &Path| fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let crates = folders(registry).flat_map(|index| folders(&index).collect::<Vec<_>>());
    let is_zstd = |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("zstd-sys-"));
    crates.filter(is_zstd).filter(|path| path.join("zstd/lib/common").is_dir()).max()
}

/// Which folders of Zstandard's library are compiled.
fn zstd_parts(level: Level) -> &'static [&'static str] {
    if level == Level::Quick { &["common", "decompress"] } else { &["common", "compress", "decompress", "dictBuilder"] }
}

fn zstd(crate_folder: &Path, to: &Path, lab: &Lab) -> Result<PathBuf> {
    let library = crate_folder.join("zstd/lib");
    fs::create_dir(to).map_err(|e| Error::from(e).at(to))?;
    for part in zstd_parts(lab.plan.level).iter().copied().chain(["zstd.h", "zstd_errors.h", "zdict.h"]) {
        copy(&library.join(part), &to.join(part), lab)?;
    }
    let makefile = to.join("Makefile");
    fs::write(&makefile, ZSTD_MAKEFILE).map_err(|e| Error::from(e).at(&makefile))?;
    Ok(to.into())
}

/// Debian's package, if apt knows where sources are. Nothing is fetched yet.
fn debian() -> Option<Source> {
    program::find("dpkg-source")?;
    let mut command = Command::new(program::find("apt-get")?);
    command.args(["source", "--print-uris", PACKAGE]);
    program::run(&mut command, || false).is_ok().then_some(Source::Debian)
}

/// Fetches Debian's package, whose signatures apt checks, and unpacks it.
fn fetched(folder: &Path, lab: &Lab) -> Result<PathBuf> {
    program::run(Command::new("apt-get").args(["source", "-q", PACKAGE]).current_dir(folder), lab.cancelled)?;
    let entries = fs::read_dir(folder).map_err(|e| Error::from(e).at(folder))?;
    let mut trees = entries.flatten().map(|entry| entry.path()).filter(|path| can_be_made(path));
    let strange = || {
        Error::from(std::io::Error::other(format!(
            "apt-get source {PACKAGE} gave no source tree with a configure script"
        )))
    };
    trees.next().ok_or_else(strange)
}

/// Unpacks an archive without its topmost folder. Linux is configured as the BSI's study had it, which is not timed.
fn unpacked(archive: &Path, to: &Path, lab: &Lab) -> Result<PathBuf> {
    fs::create_dir(to).map_err(|e| Error::from(e).at(to))?;
    let mut tar = Command::new("tar");
    tar.arg("--extract").arg("--strip-components=1").arg("--directory").arg(to).arg("--file").arg(archive);
    program::run(&mut tar, lab.cancelled)?;
    if !can_be_made(to) {
        return Err(Error::misuse("the archive holds no configure and no Makefile in its topmost folder").at(archive));
    }
    if to.join("Kconfig").is_file() {
        program::run(Command::new("make").arg("allnoconfig").current_dir(to), lab.cancelled)?;
    }
    Ok(to.into())
}

/// Copies a file or a folder, with the times that make looks at.
fn copy(from: &Path, to: &Path, lab: &Lab) -> Result<PathBuf> {
    program::run(Command::new("cp").arg("-a").arg("--").arg(from).arg(to), lab.cancelled)?;
    Ok(to.into())
}

/// Bytes of all files below.
fn size(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let each = |entry: fs::DirEntry| match entry.metadata() {
        Ok(data) if data.is_dir() => size(&entry.path()),
        Ok(data) => data.len(),
        Err(_) => 0,
    };
    entries.map(each).sum()
}

fn compile(folder: &Path, source: &Path, (jobs, series): (usize, &str), lab: &Lab) -> Result<[Measure; 2]> {
    let tree = copy(source, &folder.join("source"), lab)?;
    flush(folder)?;
    lab.drop_caches()?;
    let run = |command: &mut Command| {
        let command = command.current_dir(&tree).env("CFLAGS", flags(lab.plan.level)).env_remove("MAKEFLAGS");
        program::run(command, lab.cancelled).map(drop)
    };
    let took = written(folder, || {
        if tree.join("configure").is_file() {
            run(Command::new("sh").arg("./configure"))?;
        }
        run(Command::new("make").arg(format!("-j{jobs}")))
    })?;
    let case = |operation: &str| Case::new(operation).of(series);
    let time = Measure::time(case("compile"), 0, took);
    let cpu = Measure { case: case("compile, processor time"), value: took.cpu_s, ..time.clone() };
    Ok([time, cpu])
}

#[cfg(test)]
mod tests {
    use claviger_testkit::tools;

    use super::*;
    use crate::measure::lab::tests::lab;

    /// A program of two files that is configured, and says so when it is run.
    fn small_source(folder: &Path) {
        fs::write(folder.join("configure"), "echo '#define ANSWER 42' > config.h\necho \"$CFLAGS\" > flags\n").unwrap();
        fs::write(folder.join("Makefile"), "answer: main.o value.o\n\t$(CC) -o $@ $^\n").unwrap();
        fs::write(folder.join("main.c"), "int value(void);\nint main(void) { return value(); }\n").unwrap();
        fs::write(folder.join("value.c"), "#include \"config.h\"\nint value(void) { return ANSWER; }\n").unwrap();
    }

    #[test]
    fn a_source_is_copied_configured_and_compiled() {
        let (Some(_), Some(_)) = (tools::program("make"), tools::program("cc")) else { return };
        let [named, scratch, folder] = [(); 3].map(|()| tempfile::tempdir().unwrap());
        small_source(named.path());
        let lab = Lab { scratch: scratch.path().into(), ..lab() };
        let source = Source::Named(named.path().into()).prepared(&lab).unwrap();
        let measures = compile(folder.path(), &source, (1, ""), &lab).unwrap();
        let found: Vec<_> = measures.iter().map(|m| (m.case.operation.as_str(), m.unit)).collect();
        assert_eq!(found, [("compile", Unit::Seconds), ("compile, processor time", Unit::Seconds)]);
        let made = folder.path().join("source");
        assert_eq!(Command::new(made.join("answer")).status().unwrap().code(), Some(42));
        assert_eq!(fs::read_to_string(made.join("flags")).unwrap(), "-O0\n");
        assert!(!source.join("config.h").exists(), "the source stays as it is");

        fs::write(source.join("value.c"), "this is no C").unwrap();
        fs::remove_dir_all(&made).unwrap();
        let error = compile(folder.path(), &source, (1, ""), &lab).unwrap_err().to_string();
        assert!(error.contains("make failed") && error.contains("value.o"), "{error}");
    }

    #[test]
    fn the_crate_with_zstandard_is_found_and_laid_out_to_be_made() {
        let (registry, scratch) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        assert_eq!(zstd_in(registry.path()), None);
        for version in ["zstd-sys-2.0.15+zstd.1.5.6", "zstd-sys-2.0.16+zstd.1.5.7", "zstd-sys-9.9.9"] {
            fs::create_dir_all(registry.path().join("index").join(version)).unwrap();
        }
        for version in ["2.0.15+zstd.1.5.6", "2.0.16+zstd.1.5.7"] {
            let library = registry.path().join(format!("index/zstd-sys-{version}/zstd/lib"));
            for (part, code) in [("common", "int a(void) { return 1; }"), ("decompress", "int b(void) { return 2; }")] {
                fs::create_dir_all(library.join(part)).unwrap();
                fs::write(library.join(part).join(format!("{part}.c")), code).unwrap();
            }
            for header in ["zstd.h", "zstd_errors.h", "zdict.h"] {
                fs::write(library.join(header), "").unwrap();
            }
        }
        let found = zstd_in(registry.path()).unwrap();
        assert!(found.ends_with("zstd-sys-2.0.16+zstd.1.5.7"), "{found:?}");

        let (Some(_), Some(_)) = (tools::program("make"), tools::program("cc")) else { return };
        let lab = Lab { scratch: scratch.path().into(), ..lab() };
        let source = Source::Zstd(found).prepared(&lab).unwrap();
        let folder = tempfile::tempdir().unwrap();
        compile(folder.path(), &source, (2, "make -j2"), &lab).unwrap();
        assert!(folder.path().join("source/libzstd.a").is_file());
        assert!(size(&source) > 50);
    }

    #[test]
    fn an_archive_is_unpacked_and_a_kernel_configured() {
        let (Some(_), Some(_)) = (tools::program("make"), tools::program("tar")) else { return };
        let [sources, scratch] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let tree = sources.path().join("linux-source-0.1");
        fs::create_dir(&tree).unwrap();
        let archive = sources.path().join("linux-source-0.1.tar.gz");
        let pack = || {
            let mut tar = Command::new("tar");
            tar.arg("-C").arg(sources.path()).arg("-czf").arg(&archive).arg("linux-source-0.1");
            assert!(tar.status().unwrap().success());
        };
        let lab = Lab { scratch: scratch.path().into(), ..lab() };
        pack();
        let error = unpacked(&archive, &scratch.path().join("empty"), &lab).unwrap_err().to_string();
        assert!(error.contains("no configure and no Makefile"), "{error}");

        fs::write(tree.join("Makefile"), "allnoconfig:\n\techo none > .config\n").unwrap();
        fs::write(tree.join("Kconfig"), "").unwrap();
        pack();
        let source = Source::named(archive).expect("an archive").prepared(&lab).unwrap();
        assert_eq!(fs::read_to_string(source.join(".config")).unwrap(), "none\n");
    }

    #[test]
    fn a_study_says_with_how_many_jobs() {
        let plan = lab().plan;
        assert_eq!(jobs(&plan), [(machine::cpus(), String::new())]);
        let parameters = crate::model::parameters::Parameters { threads: vec![0, 5], ..Default::default() };
        let work = crate::model::parameters::PlannedWork { name: "compile".into(), parameters, facilities: Vec::new() };
        let study =
            crate::model::plan::PlannedStudy { name: String::new(), facilities: Vec::new(), workloads: vec![work] };
        let all = machine::cpus();
        let plan = Plan { repeated: Some(study), ..plan };
        assert_eq!(jobs(&plan), [(all, format!("make -j{all}")), (5, "make -j5".to_owned())]);
    }

    #[test]
    fn only_what_can_be_made_is_a_source() {
        let folder = tempfile::tempdir().unwrap();
        assert!(!can_be_made(folder.path()) && !can_be_made(&folder.path().join("none")));
        small_source(folder.path());
        assert!(can_be_made(folder.path()));
    }
}
