//! The kernel's requests to a device, one by one: its trace event `block_rq_issue`, from which blktrace and
//! Seekwatcher make their drawings, too (Linux, Documentation/trace/events.rst and include/trace/events/block.h).

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use claviger_engine::{Error, Result};
use rustix::fs::{major, minor};

use crate::model::figures::TracedRequest;

/// Where the trace events are.
const TRACING: &str = "/sys/kernel/tracing";

/// KiB of the kernel's buffer for each processor: a request takes some 100 bytes.
const BUFFER_KIB: u32 = 8 << 10;

/// The prefix of the names of a lab's trace instances; the number of its process follows.
const NAME: &str = "claviger-lab-";

/// Bytes of a sector, as the kernel counts.
const SECTOR: u64 = 512;

/// A trace that is being written. Dropping it ends it.
pub struct Events {
    instance: PathBuf,
    /// First sector of the device on its disk: 0 unless it is a partition.
    start: u64,
}

impl Events {
    /// From now on.
    ///
    /// # Errors
    /// `Unsupported` if the kernel has no trace events, or this user may not read them; `Io`.
    pub fn start(device: &Path) -> Result<Self> {
        let instances = Path::new(TRACING).join("instances");
        if !instances.is_dir() {
            return Err(Error::unsupported("a trace of the kernel's requests without its trace events")
                .hint(format!("As root: mount -t tracefs tracefs {TRACING}")));
        }
        remove_dead(&instances);
        let instance = instances.join(format!("{NAME}{}", std::process::id()));
        fs::create_dir(&instance).map_err(|e| match e.kind() {
            io::ErrorKind::PermissionDenied => Error::unsupported("a trace of the kernel's requests without root"),
            _ => Error::from(e).at(&instance),
        })?;
        let place = BlockDevice::of(device);
        let events = Self { instance, start: place.as_ref().map_or(0, |place| place.start) };
        let BlockDevice { disk, start, end } = place?;
        events.set("buffer_size_kb", &BUFFER_KIB.to_string())?;
        let filter = format!("dev == {disk} && sector >= {start} && sector < {end}");
        events.set("events/block/block_rq_issue/filter", &filter)?;
        events.set("events/block/block_rq_issue/enable", "1")?;
        Ok(events)
    }

    /// The requests until now, in the order of time. Flushes and discards move nothing and are left out.
    ///
    /// # Errors
    /// `Io`, also where there were more requests than the buffer takes.
    pub fn stop(self) -> Result<Vec<TracedRequest>> {
        self.set("tracing_on", "0")?;
        for processor in fs::read_dir(self.instance.join("per_cpu"))? {
            let path = processor?.path().join("stats");
            let text = fs::read_to_string(&path).map_err(|e| Error::from(e).at(&path))?;
            if !text.lines().any(|line| line.trim() == "overrun: 0") {
                let what = "more requests than the kernel's buffer takes: the trace has gaps";
                return Err(Error::from(io::Error::other(what)).at(&path));
            }
        }
        let path = self.instance.join("trace");
        let text = fs::read_to_string(&path).map_err(|e| Error::from(e).at(&path))?;
        Ok(read(&text, self.start))
    }

    fn set(&self, name: &str, value: &str) -> Result<()> {
        let path = self.instance.join(name);
        fs::write(&path, value).map_err(|e| Error::from(e).at(&path))
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.instance);
    }
}

/// A device as the block layer sees it.
struct BlockDevice {
    /// The disk's number in the kernel's own form, 12 bits and 20.
    disk: u64,
    /// The range of sectors of the disk that belongs to the device.
    start: u64,
    end: u64,
}

impl BlockDevice {
    fn of(device: &Path) -> Result<Self> {
        let number = fs::metadata(device).map_err(|e| Error::from(e).at(device))?.rdev();
        let folder = PathBuf::from(format!("/sys/dev/block/{}:{}", major(number), minor(number)));
        let folder = folder.canonicalize().map_err(|e| Error::from(e).at(&folder))?;
        let text = |path: PathBuf| fs::read_to_string(&path).map_err(|e| Error::from(e).at(&path));
        let numbers = |path: PathBuf| -> Result<Vec<u64>> {
            Ok(text(path)?.trim().split(':').filter_map(|number| number.parse().ok()).collect())
        };
        let partition = folder.join("partition").exists();
        let disk = if partition { folder.join("..") } else { folder.clone() };
        let start = if partition { numbers(folder.join("start"))?.first().copied().unwrap_or(0) } else { 0 };
        let len = numbers(folder.join("size"))?.first().copied().unwrap_or(0);
        match numbers(disk.join("dev"))?[..] {
            [major, minor] => Ok(Self { disk: major << 20 | minor, start, end: start + len }),
            _ => Err(Error::unsupported("a trace of requests to a device without a number").at(device)),
        }
    }
}

/// Removes the instances of processes that were killed.
fn remove_dead(instances: &Path) {
    for instance in fs::read_dir(instances).into_iter().flatten().flatten() {
        let name = instance.file_name();
        let process =
            name.to_str().and_then(|name| name.strip_prefix(NAME)).and_then(|number| number.parse::<u32>().ok());
        if process.is_some_and(|process| !Path::new("/proc").join(process.to_string()).exists()) {
            let _ = fs::remove_dir(instance.path());
        }
    }
}

/// The requests of a trace, from the time of the first on, and from the sector `start` of the disk on.
fn read(text: &str, start: u64) -> Vec<TracedRequest> {
    let mut requests: Vec<TracedRequest> = text.lines().filter_map(|line| request(line, start)).collect();
    requests.sort_by(|a, b| a.at.total_cmp(&b.at));
    let first = requests.first().map_or(0.0, |first| first.at);
    requests.iter_mut().for_each(|request| request.at = ((request.at - first) * 1e6).round() / 1e6);
    requests
}

/// `dd-71 [001] ..... 12.345678: block_rq_issue: 7,0 WS 4096 () 2048 + 8 none,0,0 [dd]`. The name of a program may hold
/// anything except the text before the event.
fn request(line: &str, start: u64) -> Option<TracedRequest> {
    let (before, event) = line.split_once(": block_rq_issue: ")?;
    let at: f64 = before.rsplit(' ').next()?.parse().ok()?;
    let kind = event.split(' ').nth(1)?;
    let write = match kind.trim_start_matches('F').bytes().next()? {
        b'W' => true,
        b'R' => false,
        _ => return None,
    };
    let mut place = event.split_once(") ")?.1.split(' ');
    let sector: u64 = place.next()?.parse().ok()?;
    let sectors: u64 = place.nth(1)?.parse().ok()?;
    let offset = sector.checked_sub(start)? * SECTOR;
    (sectors > 0).then_some(TracedRequest { at, offset, len: sectors * SECTOR, write })
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::FileExt;
    use std::process::Command;

    use claviger_testkit::mounts::LoopDevice;
    use claviger_testkit::tools;

    use super::*;

    #[test]
    fn requests_are_read_from_the_kernels_lines() {
        let text = "# tracer: nop\n#\n\
            \x20 kworker/1:1-71  [001] ..... 12.345679: block_rq_issue: 7,0 FWS 8192 () 2056 + 16 none,0,0 [kworker/1:1]\n\
            \x20 a: b ] c-71  [001] ..... 12.345678: block_rq_issue: 7,0 R 4096 () 2048 + 8 none,0,0 [a: b ] c]\n\
            \x20 dd-9  [000] ..... 12.4: block_rq_issue: 7,0 FF 0 () 0 + 0 none,0,0 [dd]\n\
            \x20 dd-9  [000] ..... 12.4: block_rq_issue: 7,0 DS 4096 () 2048 + 8 none,0,0 [dd]\n\
            \x20 dd-9  [000] ..... 12.4: block_rq_issue: 7,0 WS 4096 () 40 + 8 none,0,0 [dd]\n";
        let requests = read(text, 2048);
        let expected = [(0.0, 0, 4096, false), (1e-6, 4096, 8192, true)];
        assert_eq!(requests, expected.map(|(at, offset, len, write)| TracedRequest { at, offset, len, write }));
    }

    /// The folder of the kernel's trace events. Mounts it if nobody has, as systemd does.
    struct Mounted(bool);

    impl Mounted {
        fn if_missing() -> Self {
            let missing = !Path::new(TRACING).join("instances").is_dir();
            let mount = || Command::new("mount").args(["-t", "tracefs", "tracefs", TRACING]).status();
            Self(missing && mount().is_ok_and(|status| status.success()))
        }
    }

    impl Drop for Mounted {
        fn drop(&mut self) {
            if self.0 {
                let _ = Command::new("umount").arg(TRACING).status();
            }
        }
    }

    #[test]
    fn what_a_device_is_asked_for_is_traced() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        file.as_file().set_len(4 << 20).expect("room");
        let Some(device) = LoopDevice::new(file.path(), &[]) else { return };
        let _mounted = Mounted::if_missing();
        let Some(events) = Events::start(device.path()).map_or_else(|e| tools::skip(&e.to_string()), Some) else {
            return;
        };
        let instance = events.instance.clone();
        let disk = File::options().read(true).write(true).open(device.path()).expect("a device");
        disk.write_all_at(&[1; 8192], 1 << 20).expect("written");
        disk.sync_all().expect("flushed");
        let requests = events.stop().expect("a trace");
        assert!(!instance.exists(), "nothing is left");
        let written: Vec<_> = requests.iter().filter(|r| r.write).map(|r| (r.offset, r.len)).collect();
        assert_eq!(written, [(1 << 20, 8192)], "{requests:?}");
    }
}
