//! Third-party programs and samples that tests need. A missing one is a *reported* skip, and a failure in CI.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Finds the program `name`; a reported skip if it is missing.
///
/// # Panics
/// In CI (`CI` is set), where everything is installed and nothing may be skipped.
pub fn program(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let places = env::split_paths(&path).chain(["/usr/sbin", "/sbin"].map(PathBuf::from));
    let found = places.map(|dir| dir.join(name)).find(|p| p.is_file());
    found.or_else(|| skip(&format!("the program {name} is not installed")))
}

/// A file or folder of the samples: in `shared/samples` beside the checkout, or in the folder that `CLAVIGER_SAMPLES`
/// names. A reported skip if it is missing.
///
/// # Panics
/// In CI, where they exist.
pub fn sample(name: &str) -> Option<PathBuf> {
    shared("samples", "CLAVIGER_SAMPLES", name)
}

fn shared(folder: &str, variable: &str, name: &str) -> Option<PathBuf> {
    let beside = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared").join(folder);
    let path = env::var_os(variable).map_or_else(beside, PathBuf::from).join(name);
    if path.exists() { path.canonicalize().ok() } else { skip(&format!("{} is missing", path.display())) }
}

/// An input that once caused a failure, unpacked into a temporary folder that is removed on drop.
pub struct Case {
    folder: tempfile::TempDir,
    content: PathBuf,
}

impl Case {
    /// Unpacks `shared/cases/NAME` (or below `CLAVIGER_CASES`): `.tar.xz`, `.xz`, `.gz`, or a file to copy.
    /// A reported skip if it is missing.
    ///
    /// # Panics
    /// In CI, where they exist; and if it cannot be unpacked.
    pub fn unpack(name: &str) -> Option<Self> {
        let packed = shared("cases", "CLAVIGER_CASES", name)?;
        let folder = tempfile::tempdir().expect("a folder");
        let file = Path::new(name).file_name().expect("a name").to_str().expect("UTF-8");
        let unpacked = folder.path().join(file.trim_end_matches(".xz").trim_end_matches(".gz"));
        let to_file = || std::fs::File::create(&unpacked).expect("a file");
        match file {
            _ if file.ends_with(".tar.xz") => {
                run(Command::new("tar").arg("-xJf").arg(&packed).arg("-C").arg(folder.path()));
            }
            _ if file.ends_with(".xz") => drop(run(Command::new("xz").arg("-dc").arg(&packed).stdout(to_file()))),
            _ if file.ends_with(".gz") => drop(run(Command::new("gzip").arg("-dc").arg(&packed).stdout(to_file()))),
            _ => drop(std::fs::copy(&packed, &unpacked).expect("copied")),
        }
        let mut inside = std::fs::read_dir(folder.path()).expect("a folder");
        let content = inside.next().expect("something was packed").expect("read").path();
        assert!(inside.next().is_none(), "{name} holds one file or folder");
        Some(Self { folder, content })
    }

    /// The unpacked file or folder. Tests may use the rest of [`Self::folder`].
    pub fn path(&self) -> &Path {
        &self.content
    }

    /// The temporary folder that holds [`Self::path`].
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }
}

/// Continues only as root; otherwise a reported skip.
///
/// # Panics
/// In CI, which runs as root.
pub fn root() -> Option<()> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let uid = status.lines().find_map(|l| l.strip_prefix("Uid:")).and_then(|l| l.split_whitespace().nth(1));
    if uid == Some("0") { Some(()) } else { skip("not root") }
}

/// Reports that the calling test is skipped, and why: on standard error, and in the file that `CLAVIGER_SKIPPED` names,
/// because cargo-nextest hides the output of passing tests.
///
/// # Panics
/// In CI.
pub fn skip<T>(why: &str) -> Option<T> {
    assert!(env::var_os("CI").is_none(), "nothing may be skipped in CI: {why}");
    let test = env::var("NEXTEST_TEST_NAME").ok();
    let test = test.or_else(|| std::thread::current().name().map(str::to_owned)).unwrap_or_else(|| "?".to_owned());
    let line = format!("SKIPPED {test}: {why}\n");
    // Bypasses the test harness, which would swallow the output of a passing test.
    use std::io::Write;
    let _ = std::io::stderr().write_all(line.as_bytes());
    if let Some(path) = env::var_os("CLAVIGER_SKIPPED") {
        let _ = std::fs::File::options()
            .append(true)
            .create(true)
            .open(path)
            .and_then(|mut f| f.write_all(line.as_bytes()));
    }
    None
}

/// Chooses the extent of a test: the usual one, or the whole where `CLAVIGER_WHOLE` is set, as by `make torture`.
pub fn much<T>(usual: T, whole: T) -> T {
    if env::var_os("CLAVIGER_WHOLE").is_some() { whole } else { usual }
}

/// Gives `command` the usual memory management, without the settings of `tools/test.sh` for the tests themselves.
pub fn with_usual_memory(command: &mut Command) -> &mut Command {
    command.env_remove("MALLOC_MMAP_THRESHOLD_").env_remove("MALLOC_TRIM_THRESHOLD_")
}

/// Lists the only test of a program without a harness when asked, as by cargo-nextest, and then ends the program.
pub fn list_as(test: &str) {
    let asked = |option| env::args().any(|argument| argument == option);
    if asked("--list") {
        if !asked("--ignored") {
            println!("{test}: test");
        }
        std::process::exit(0);
    }
}

/// Runs `command` to completion.
///
/// # Panics
/// If it cannot be started or fails; the message includes its output.
pub fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    output
}
