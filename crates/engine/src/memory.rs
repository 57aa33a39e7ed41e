//! The memory available for key derivations.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

/// The last known value, for when the process can no longer open files.
static SEEN: AtomicU64 = AtomicU64::new(u64::MAX);

/// Bytes of memory that this process can use without putting pressure on the system or its control group. This is the least of
/// `MemAvailable` in proc_meminfo(5) and what is left below the `memory.max` of each of its control groups (version 2;
/// Documentation/admin-guide/cgroup-v2.rst). If these files can no longer be read, this is the last known value; `u64::MAX` if
/// there never was one.
pub fn available() -> u64 {
    let meminfo = fs::read_to_string("/proc/meminfo");
    if meminfo.as_ref().is_err_and(|e| e.kind() == io::ErrorKind::PermissionDenied) {
        return SEEN.load(Ordering::Relaxed);
    }
    let available = look(&meminfo.unwrap_or_default());
    SEEN.store(available, Ordering::Relaxed);
    available
}

fn look(meminfo: &str) -> u64 {
    let read = |path: &Path| fs::read_to_string(path).unwrap_or_default();
    let system = mem_available(meminfo).unwrap_or(u64::MAX);
    let group = read(Path::new("/proc/self/cgroup"));
    let group = group.lines().find_map(|l| l.strip_prefix("0::/")).unwrap_or_default();
    let root = Path::new("/sys/fs/cgroup");
    let own = root.join(group);
    let groups = own.ancestors().take_while(|dir| dir.starts_with(root));
    let left = groups.filter_map(|dir| {
        let file = |name: &str| read(&dir.join(name));
        left_in_group(&file("memory.max"), &file("memory.current"), &file("memory.stat"))
    });
    left.fold(system, u64::min)
}

fn mem_available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|l| l.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    kib.checked_mul(1024)
}

/// What is left in a group; `None` without a limit. The page cache counts as used, but is reclaimed before anything is killed.
fn left_in_group(max: &str, current: &str, stat: &str) -> Option<u64> {
    let max: u64 = max.trim().parse().ok()?;
    let current: u64 = current.trim().parse().ok()?;
    let cache = |name: &str| stat.lines().find_map(|l| l.strip_prefix(name)?.trim().parse::<u64>().ok()).unwrap_or(0);
    let cached = cache("inactive_file ").saturating_add(cache("active_file "));
    Some(max.saturating_sub(current.saturating_sub(cached)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_says_what_is_available() {
        let text = "MemTotal:       24683000 kB\nMemFree:  100 kB\nMemAvailable:    2048 kB\n";
        assert_eq!(mem_available(text), Some(2 << 20));
        assert_eq!(mem_available("MemTotal: 1 kB\n"), None);
        assert_eq!(mem_available("MemAvailable: many kB\n"), None);
        assert!(available() > 1 << 20, "this test runs in some memory");
    }

    #[test]
    fn a_control_group_may_have_less() {
        let stat = "anon 5\ninactive_file 100\nactive_file 20\nfile 700\n";
        assert_eq!(left_in_group("1000\n", "600\n", stat), Some(520));
        assert_eq!(left_in_group("1000\n", "2000\n", stat), Some(0));
        assert_eq!(left_in_group("max\n", "600\n", stat), None);
        assert_eq!(left_in_group("", "", ""), None);
    }
}
