//! What docs/security.md says about attacks on the processes of an open volume: with its keys in the same process, and in their own.

use std::cell::RefCell;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};

use crate::common::mounts::MountSpace;
use crate::common::*;
use crate::faults::secrets::{password, secrets_with};
use crate::serving::key_process::{ISOLATED, key_process_of};
use claviger_testkit::processes::{Memory, Needle, Registers, found};
use claviger_testkit::reference::aes::Aes;
use claviger_testkit::tools;

/// The password, the keys and their round keys.
fn needles(volume: &str, password: &str) -> Vec<Needle> {
    let mut all = secrets_with(volume, "AES", password);
    let keys: Vec<Vec<u8>> = all.iter().filter(|(name, _)| name.starts_with("master")).map(|n| n.1.clone()).collect();
    for key in keys.chunks(2) {
        let rounds = Aes::new(&key.concat()).round_keys().to_vec();
        all.extend(rounds.iter().enumerate().map(|(i, round)| (format!("round key {i}"), round.to_vec())));
    }
    all
}

/// A volume that is served, and was used.
struct Served {
    child: Child,
    uri: String,
    /// The process that serves, and the one with the keys, where they are two.
    processes: Vec<u32>,
}

impl Served {
    fn new(place: &MountSpace, volume: &str, isolated: bool) -> Option<Self> {
        let socket = place.folder.str("s");
        let how = if isolated { &[ISOLATED][..] } else { &[] };
        let mut command = place.command(env!("CARGO_BIN_EXE_claviger"));
        command.args(["serve", "--json", "--password-file", &place.folder.password, "--socket", &socket]).args(how);
        let mut child = command.arg(volume).stdout(Stdio::piped()).spawn().expect("the program starts");
        let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines().map(|line| line.expect("text"));
        let json = lines.by_ref().take_while(|line| line != "}").collect::<String>() + "}";
        let value: serde_json::Value = serde_json::from_str(&json).expect("JSON");
        let pid = value["pid"].as_u64().expect("a number") as u32;
        let processes = [pid].into_iter().chain(isolated.then(|| key_process_of(pid))).collect();
        let uri = value["uri"].as_str().expect("a URI").to_owned();
        let served = Self { child, uri, processes };
        for command in ["write -P 1 0 300000", "read -P 1 0 300000"] {
            let Some((good, said)) = qemu_io(&served.uri, command) else {
                served.stop();
                return None;
            };
            assert!(good, "{said}");
        }
        Some(served)
    }

    fn stop(mut self) {
        tools::run(Command::new("kill").args(["-TERM", &self.processes[0].to_string()]));
        assert!(self.child.wait().expect("it ends").success());
    }
}

/// Both ways to have the keys: each with what is left of `look`.
fn both(place: &MountSpace, look: impl Fn(&Served, bool)) -> Option<()> {
    let volume = place.volume("v.tc", "1M", &[]);
    for isolated in [false, true] {
        let served = Served::new(place, &volume, isolated)?;
        look(&served, isolated);
        served.stop();
    }
    Some(())
}

/// Opens the memory of processes, the first of which does not mind. The kernel asks the same of a debugger: PTRACE_MODE_ATTACH (ptrace(2)).
const SAME_USER: &str = r#"
sleep 60 & mine=$!
for pid in $mine "$@"; do
    if (: <"/proc/$pid/mem") 2>/dev/null; then echo open; else echo refused; fi
done
kill $mine
"#;

#[test]
fn a_process_of_the_same_user_can_neither_read_nor_trace() {
    let Some(place) = MountSpace::user() else { return };
    both(&place, |served, _| {
        let pids = served.processes.iter().map(u32::to_string);
        let output = place.command("sh").args(["-c", SAME_USER, "sh"]).args(pids).output().expect("it starts");
        let said = done(output).succeeds().text();
        let said: Vec<&str> = said.lines().collect();
        assert_eq!(said[0], "open", "what may be looked into can be");
        assert_eq!(said[1..], vec!["refused"; served.processes.len()]);
    });
}

#[test]
fn a_crash_leaves_no_core_image() {
    let Some(place) = MountSpace::root() else { return };
    let crashed = |program: &mut Command| program.status().expect("it starts");
    // In a folder of its own, since the kernel writes there.
    let folder = place.folder.path("");
    let shell = |script: &str| {
        let mut command = Command::new("sh");
        command.args(["-c", script]).current_dir(&folder).stdout(Stdio::null()).stderr(Stdio::null());
        command
    };
    let control = crashed(&mut shell("ulimit -c unlimited; exec sh -c 'kill -QUIT $$'"));
    assert_eq!(control.signal(), Some(3));
    if !control.core_dumped() {
        let _: Option<()> = tools::skip("this machine keeps no core images");
        return;
    }
    let volume = place.volume("v.tc", "1M", &[]);
    for how in ["", ISOLATED] {
        let line = format!(
            "ulimit -c unlimited; exec {} serve {how} --socket s --password-file password --run 'kill -QUIT $PPID; sleep 60' v.tc",
            env!("CARGO_BIN_EXE_claviger")
        );
        let ended = crashed(&mut shell(&line));
        assert!(ended.signal() == Some(3) && !ended.core_dumped(), "{how} {ended:?}");
        let _ = fs::remove_file(folder.join("s"));
    }
    // No process here is the parent of the key process, so the test shows the property that the kernel checks.
    let served = Served::new(&place, &volume, true).expect("as before");
    let limits = fs::read_to_string(format!("/proc/{}/limits", served.processes[1])).expect("procfs");
    let core = limits.lines().find(|line| line.starts_with("Max core file size")).expect("a line");
    assert!(core.split_whitespace().skip(4).take(2).eq(["0", "0"]), "{core}");
    served.stop();
}

/// Has the kernel put all memory of processes out that it may: process_madvise(2) with MADV_PAGEOUT for each mapping. The first is one
/// whose memory holds the text given.
const PAGE_OUT: &str = r#"
import ctypes, os, subprocess, sys, time
libc = ctypes.CDLL(None, use_errno=True)
class Span(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("len", ctypes.c_size_t)]
def page_out(pid):
    fd = os.pidfd_open(pid)
    out = 0
    for line in open(f"/proc/{pid}/maps"):
        span, rights = line.split()[:2]
        if rights[0] != "r" or "[v" in line:
            continue
        begin, end = (int(word, 16) for word in span.split("-"))
        vector = Span(begin, end - begin)
        out += max(0, libc.syscall(440, fd, ctypes.byref(vector), 1, 21, 0))
    return out
marked = subprocess.Popen([sys.executable, "-c", f"x = {sys.argv[1]!r} * 10000; print(1, flush=True); import time; time.sleep(60)"],
    stdout=subprocess.PIPE)
marked.stdout.read(1)
for pid in [marked.pid, *map(int, sys.argv[2:])]:
    print(page_out(pid))
time.sleep(1)
print("paged out", flush=True)
sys.stdin.read()
marked.kill()
"#;

/// A file that the kernel swaps to. Not any more on drop.
struct Swap(String);

impl Swap {
    fn new() -> Option<Self> {
        // No file in memory can be swapped to.
        let (mkswap, swapon) = (tools::program("mkswap")?, tools::program("swapon")?);
        let path = tempfile::Builder::new().tempfile_in("/var/tmp").expect("a file").into_temp_path();
        let path = path.keep().expect("a path").display().to_string();
        let swap = Self(path);
        // Where the kernel reclaims memory ahead of need, others fill some hundred MiB at once.
        fs::write(&swap.0, vec![0; 256 << 20]).expect("written");
        File::open(&swap.0).expect("a file").sync_all().expect("written");
        Command::new("chmod").args(["600", &swap.0]).status().expect("it starts");
        tools::run(Command::new(mkswap).arg(&swap.0));
        if !Command::new(swapon).arg(&swap.0).stderr(Stdio::null()).status().expect("it starts").success() {
            return tools::skip("this machine may not swap");
        }
        Some(swap)
    }

    fn bytes(&self) -> Vec<u8> {
        // The kernel swaps past its cache of the file.
        let file = File::open(&self.0).expect("a file");
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("given up");
        fs::read(&self.0).expect("read")
    }
}

impl Drop for Swap {
    fn drop(&mut self) {
        let _ = Command::new("swapoff").arg(&self.0).stderr(Stdio::null()).status();
        let _ = fs::remove_file(&self.0);
    }
}

#[test]
fn nothing_secret_is_swapped() {
    let (Some(place), Some(python)) = (MountSpace::root(), tools::program("python3")) else { return };
    let Some(swap) = Swap::new() else { return };
    // The kernel swaps for everybody: the password is nobody else's, and this process learns it when there is no swap to look at any more.
    let random = "head -c 15 /dev/urandom | base64 >password";
    assert!(
        Command::new("sh").args(["-c", random]).current_dir(place.folder.path("")).status().expect("a shell").success()
    );
    let mark = b"what may be swapped is found where it was swapped to".to_vec();
    let swapped = RefCell::new(Vec::new());
    both(&place, |served, isolated| {
        let pids = served.processes.iter().map(u32::to_string);
        let mut command = Command::new(&python);
        command.args(["-c", PAGE_OUT, std::str::from_utf8(&mark).expect("text")]).args(pids);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
        let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines().map(|line| line.expect("text"));
        let said: Vec<String> = lines.by_ref().take_while(|line| line != "paged out").collect();
        assert!(said.len() == 1 + served.processes.len() && said.iter().all(|bytes| bytes != "0"), "{said:?}");
        swapped.borrow_mut().push((isolated, swap.bytes()));
        drop(child.stdin.take());
        child.wait().expect("it ends");
        let (good, said) = qemu_io(&served.uri, "read -P 1 0 300000").expect("as before");
        assert!(good, "{said}");
    });
    drop(swap);
    let password = fs::read_to_string(&place.folder.password).expect("text");
    let mut needles = needles(&place.folder.str("v.tc"), password.trim_end());
    needles.push(("mark".to_owned(), mark));
    for (isolated, seen) in swapped.into_inner() {
        assert_eq!(found(&seen, &needles), ["mark"], "isolated: {isolated}");
    }
}

#[test]
fn a_debugger_of_root_finds_no_key_where_the_kernel_hides_them() {
    let Some(place) = MountSpace::root() else { return };
    let seen = both(&place, |served, isolated| {
        let needles = needles(&place.folder.str("v.tc"), PASSWORD);
        for (number, &pid) in served.processes.iter().enumerate() {
            // Nobody has asked for anything: while a thread works, round keys are in its registers.
            let Some(registers) = Registers::of(pid) else { return };
            assert!(found(&registers.bytes, &needles).is_empty(), "{number}");
            let memory = Memory::of(pid);
            let all = [memory.locked, memory.ordinary].concat();
            let keys = found(&all, &needles);
            let hidden = number == 1 && memory.hidden > 0;
            let expected = if isolated { number == 1 && !hidden } else { true };
            assert_eq!(!keys.is_empty(), expected, "{isolated} {number}: {keys:?}");
            assert!(found(&all, &[password()]).is_empty(), "it forgets the password");
        }
        let Some(&key_process) = served.processes.get(1) else { return };
        // A signal leaves nothing on a stack: none has a handler, but those of a fault.
        let status = fs::read_to_string(format!("/proc/{key_process}/status")).expect("procfs");
        let line = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).expect("a line");
        let caught = u64::from_str_radix(line.trim(), 16).expect("a number");
        // SIGBUS and SIGSEGV are the language's, 32 and 33 the C library's own.
        let others = [7, 11, 32, 33].iter().fold(caught, |caught, signal| caught & !(1 << (signal - 1)));
        assert_eq!(others, 0, "{caught:x}");
    });
    assert!(seen.is_some() || tools::program("qemu-io").is_none());
}
