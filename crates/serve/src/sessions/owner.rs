//! The owner of a folder. Folders may be shared with processes that are invisible here.

use std::fmt;
use std::fs;
use std::io;
use std::str::FromStr;
use std::sync::OnceLock;

use super::Process;

/// The process that owns a folder, and the realm in which its ID is valid.
///
/// Another kernel (a guest with access to this machine's folders, a machine with the same network file system) or PID
/// namespace (a container) has its own processes. This process cannot tell which of them are alive. Processes from
/// before a reboot of this machine look the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FolderOwner {
    /// The process.
    pub process: Process,
    /// A digest of what the process ID and start time are relative to; [`UNKNOWN`] belongs to nobody.
    realm: u64,
}

/// The realm of a process that cannot read /proc.
const UNKNOWN: u64 = 0;

impl FolderOwner {
    /// This process.
    pub fn this() -> Self {
        // Without /proc the realm is unknown too, and then nothing compares these values.
        Self::of(Process::this().unwrap_or(Process { pid: std::process::id(), started: 0 }))
    }

    /// A process visible to this one.
    pub fn of(process: Process) -> Self {
        Self { process, realm: realm() }
    }

    /// Whether the process belongs to this process's realm. Only then can its state be determined.
    pub fn is_here(&self) -> bool {
        self.realm != UNKNOWN && self.realm == realm()
    }

    /// Whether the process has certainly ended. A PID namespace's number is reused only after all of its processes have ended.
    pub fn has_ended(&self) -> bool {
        self.is_here() && !self.process.alive()
    }
}

/// `PID-TICKS-REALM`.
impl fmt::Display for FolderOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Process { pid, started } = self.process;
        write!(f, "{pid}-{started}-{:012x}", self.realm)
    }
}

impl FromStr for FolderOwner {
    type Err = io::Error;

    fn from_str(text: &str) -> io::Result<Self> {
        let parse = || {
            let mut parts = text.split('-');
            let process = Process { pid: parts.next()?.parse().ok()?, started: parts.next()?.parse().ok()? };
            let owner = Self { process, realm: u64::from_str_radix(parts.next()?, 16).ok()? };
            // Only the canonical form: no signs, no leading zeros.
            (owner.to_string() == text).then_some(owner)
        };
        parse().ok_or_else(|| io::ErrorKind::InvalidData.into())
    }
}

/// The context of process IDs and start times here: the boot of this kernel, the PID namespace, and the time namespace,
/// which shifts start times (time_namespaces(7)).
fn realm() -> u64 {
    static REALM: OnceLock<u64> = OnceLock::new();
    *REALM.get_or_init(|| read_realm().map_or(UNKNOWN, |text| digest(&text)))
}

fn read_realm() -> io::Result<String> {
    // /proc may belong to another PID namespace, where this process has another ID or none.
    if fs::read_link("/proc/self")?.to_str() != Some(&std::process::id().to_string()) {
        return Err(io::ErrorKind::NotFound.into());
    }
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    let pids = fs::read_link("/proc/self/ns/pid")?;
    // Not before Linux 5.6.
    let times = fs::read_link("/proc/self/ns/time").unwrap_or_default();
    Ok(format!("{} {} {}", boot.trim(), pids.display(), times.display()))
}

/// 48 bits of FNV-1a: no secret depends on it, and the name stays short.
fn digest(text: &str) -> u64 {
    let hash = text
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3_u64));
    (hash >> 16).max(UNKNOWN + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_says_whose_it_is() {
        let this = FolderOwner::this();
        assert_eq!(this.to_string().parse::<FolderOwner>().expect("an owner"), this);
        assert!(this.is_here() && !this.has_ended());
        let ended = FolderOwner { process: Process { started: this.process.started + 1, ..this.process }, ..this };
        assert!(ended.has_ended());
        for elsewhere in [FolderOwner { realm: this.realm ^ 1, ..ended }, FolderOwner { realm: UNKNOWN, ..ended }] {
            assert!(!elsewhere.is_here() && !elsewhere.has_ended());
            assert_eq!(elsewhere.to_string().parse::<FolderOwner>().expect("an owner"), elsewhere);
        }
        for wrong in
            ["", "1-2", "1-2-3", "1-2-00000000000g", "+1-2-000000000003", "1-2-000000000003-4", "01-2-000000000003"]
        {
            assert!(wrong.parse::<FolderOwner>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn boots_and_namespaces_are_told_apart() {
        // The test vector "foobar" of the hash's authors (draft-eastlake-fnv, appendix C).
        assert_eq!(digest("foobar"), 0x8594_4171_f739_67e8 >> 16);
        let here = read_realm().expect("/proc");
        assert!(here.contains("pid:["), "{here}");
        assert_ne!(digest(&here), digest(&here.replace("pid:[", "pid:[1")));
    }
}
