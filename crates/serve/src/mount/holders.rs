//! Finds the processes that keep a mount busy with an open file, working folder, root, program or mapping.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use crate::sessions::{Stat, escape};

/// A process that keeps a mount busy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The process ID.
    pub pid: u32,
    /// The program's name, as the kernel keeps it (15 bytes).
    pub name: String,
    /// The path below the mount that it uses.
    pub path: PathBuf,
}

impl std::fmt::Display for Holder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "process {}, {}, has {}", self.pid, self.name.replace(char::is_control, "?"), escape(&self.path))
    }
}

/// The processes that hold `dir`, if found within `limit`. Reading about a process that waits for an unresponsive
/// server can hang forever. A separate thread does so, and is abandoned after the limit.
pub fn holders(dir: &Path, limit: Duration) -> Vec<Holder> {
    let (found, results) = mpsc::channel();
    let dir = dir.to_owned();
    let look = move || {
        for pid in processes() {
            // Reading the maps of a process in uninterruptible sleep can block until it wakes up.
            let asleep = Stat::of(pid).is_ok_and(|stat| stat.state == 'D');
            if let Some(path) = (!asleep).then(|| held(pid, &dir)).flatten() {
                let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim_end().to_owned();
                if found.send(Holder { pid, name, path }).is_err() {
                    return;
                }
            }
        }
    };
    let end = Instant::now() + limit;
    let Ok(_) = thread::Builder::new().name("holders".into()).spawn(look) else { return Vec::new() };
    let mut holders = Vec::new();
    while let Ok(holder) = results.recv_timeout(end.saturating_duration_since(Instant::now())) {
        holders.push(holder);
    }
    holders
}

fn processes() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// A path that the process uses below `dir`. Links are read, never followed: following one asks the mount's server.
fn held(pid: u32, dir: &Path) -> Option<PathBuf> {
    let process = PathBuf::from(format!("/proc/{pid}"));
    let below = |link: PathBuf| fs::read_link(link).ok().filter(|path| path.starts_with(dir));
    let fixed = ["cwd", "root", "exe"].into_iter().find_map(|name| below(process.join(name)));
    let open = || fs::read_dir(process.join("fd")).into_iter().flatten().flatten().find_map(|fd| below(fd.path()));
    let mapped = || {
        let maps = fs::read(process.join("maps")).ok()?;
        // The path is the sixth and last field; it may contain spaces (proc_pid_maps(5)).
        let paths = maps.split(|b| *b == b'\n').filter_map(|line| Some(&line[line.iter().position(|b| *b == b'/')?..]));
        paths.map(crate::sessions::unescape).find(|path| path.starts_with(dir))
    };
    fixed.or_else(open).or_else(mapped)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn open_files_and_working_folders_are_found() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().canonicalize().expect("a path");
        let file = fs::File::create(path.join("f")).expect("a file");
        let mut sleepers = [
            Command::new("sleep").arg("100").current_dir(&path).spawn().expect("sleep, of coreutils"),
            Command::new("sleep").arg("100").stdout(Stdio::from(file)).spawn().expect("sleep, of coreutils"),
        ];
        let found = holders(&path, Duration::from_secs(60));
        let of = |pid| found.iter().find(|h| h.pid == pid).map(|h| (h.name.clone(), h.path.clone()));
        let expected = [path.clone(), path.join("f")].map(|path| Some(("sleep".to_owned(), path)));
        let got = [of(sleepers[0].id()), of(sleepers[1].id())];
        for sleeper in &mut sleepers {
            sleeper.kill().expect("killed");
            sleeper.wait().expect("ended");
        }
        assert_eq!(got, expected);
        assert!(holders(Path::new("/no/such"), Duration::from_secs(60)).is_empty());
    }
}
