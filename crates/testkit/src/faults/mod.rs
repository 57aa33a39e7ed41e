//! Faults from outside: the n-th system call of a program that changes a folder is its last, fails, or completes only
//! in part. All threads and children are traced; seccomp(2) lets all other calls run at full speed.

mod sys;

use std::collections::{BTreeMap, HashSet};
use std::fs::{self, File};
use std::io::{self, Read, Seek};
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use libc::{c_long, user_regs_struct};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, kill_process, wait};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, TargetArch};

use Names::{At, ByPath, Fd};

/// Time limit for a program.
const PATIENCE: Duration = Duration::from_secs(120);

/// Interval between checks.
const TICK: Duration = Duration::from_millis(20);

/// The fault at a system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// SIGKILL before the call has any effect.
    KilledBefore,
    /// SIGKILL after the call.
    KilledAfter,
    /// The call does nothing and fails with this error.
    Fails(Errno),
    /// A write completes only about half.
    Short,
}

impl Fault {
    /// All faults to try, with the errors of a full disk, a broken disk, and an interrupting signal.
    pub const ALL: [Self; 6] = [
        Self::KilledBefore,
        Self::KilledAfter,
        Self::Fails(Errno::NOSPC),
        Self::Fails(Errno::IO),
        Self::Fails(Errno::INTR),
        Self::Short,
    ];

    /// Whether the fault kills the program.
    pub fn kills(self) -> bool {
        matches!(self, Self::KilledBefore | Self::KilledAfter)
    }

    /// Whether the fault must have no visible effect: the program must write the rest, or repeat an interrupted call.
    pub fn harmless(self) -> bool {
        self.kind() != ANY
    }

    /// The kind of calls that the fault can strike.
    fn kind(self) -> usize {
        match self {
            Self::Fails(Errno::INTR) => INTERRUPTIBLE,
            Self::Short => WRITES,
            _ => ANY,
        }
    }
}

/// Kinds of calls: all, those whose manual page lists EINTR, and writes of more than one byte.
const ANY: usize = 0;
const INTERRUPTIBLE: usize = 1;
const WRITES: usize = 2;

/// The arguments that name the file of a call.
#[derive(Clone, Copy)]
enum Names {
    /// An open file.
    Fd(usize),
    /// A path, relative to the working folder.
    ByPath(usize),
    /// A folder and a path relative to it.
    At(usize, usize),
}

/// The argument with the length of a write.
#[derive(Clone, Copy)]
enum Length {
    /// A number of bytes.
    Bytes(usize),
    /// A number of pieces; the argument before has their addresses and lengths.
    Pieces(usize),
}

/// A system call that changes files.
struct Call {
    number: c_long,
    name: &'static str,
    about: &'static [Names],
    length: Option<Length>,
    /// Whether its manual page lists EINTR.
    interruptible: bool,
}

const fn call(number: c_long, name: &'static str, about: &'static [Names]) -> Call {
    Call { number, name, about, length: None, interruptible: false }
}

impl Call {
    const fn writes(mut self, length: Length) -> Self {
        self.length = Some(length);
        self.or_interrupted()
    }

    const fn or_interrupted(mut self) -> Self {
        self.interruptible = true;
        self
    }
}

static CALLS: &[Call] = &[
    call(libc::SYS_write, "write", &[Fd(0)]).writes(Length::Bytes(2)),
    call(libc::SYS_pwrite64, "pwrite64", &[Fd(0)]).writes(Length::Bytes(2)),
    call(libc::SYS_writev, "writev", &[Fd(0)]).writes(Length::Pieces(2)),
    call(libc::SYS_pwritev, "pwritev", &[Fd(0)]).writes(Length::Pieces(2)),
    call(libc::SYS_pwritev2, "pwritev2", &[Fd(0)]).writes(Length::Pieces(2)),
    call(libc::SYS_copy_file_range, "copy_file_range", &[Fd(2)]).writes(Length::Bytes(4)),
    call(libc::SYS_sendfile, "sendfile", &[Fd(0)]).writes(Length::Bytes(3)),
    call(libc::SYS_splice, "splice", &[Fd(2)]).writes(Length::Bytes(4)),
    call(libc::SYS_fsync, "fsync", &[Fd(0)]).or_interrupted(),
    call(libc::SYS_fdatasync, "fdatasync", &[Fd(0)]).or_interrupted(),
    call(libc::SYS_syncfs, "syncfs", &[Fd(0)]),
    call(libc::SYS_sync_file_range, "sync_file_range", &[Fd(0)]),
    call(libc::SYS_ftruncate, "ftruncate", &[Fd(0)]).or_interrupted(),
    call(libc::SYS_truncate, "truncate", &[ByPath(0)]).or_interrupted(),
    call(libc::SYS_fallocate, "fallocate", &[Fd(0)]).or_interrupted(),
    call(OPEN[0], "open", &[ByPath(0)]).or_interrupted(),
    call(OPEN[1], "creat", &[ByPath(0)]).or_interrupted(),
    call(OPEN[2], "openat", &[At(0, 1)]).or_interrupted(),
    call(OPEN[3], "openat2", &[At(0, 1)]).or_interrupted(),
    call(libc::SYS_rename, "rename", &[ByPath(0), ByPath(1)]),
    call(libc::SYS_renameat, "renameat", &[At(0, 1), At(2, 3)]),
    call(libc::SYS_renameat2, "renameat2", &[At(0, 1), At(2, 3)]),
    call(libc::SYS_link, "link", &[ByPath(0), ByPath(1)]),
    call(libc::SYS_linkat, "linkat", &[At(0, 1), At(2, 3)]),
    call(libc::SYS_symlink, "symlink", &[ByPath(1)]),
    call(libc::SYS_symlinkat, "symlinkat", &[At(1, 2)]),
    call(libc::SYS_unlink, "unlink", &[ByPath(0)]),
    call(libc::SYS_unlinkat, "unlinkat", &[At(0, 1)]),
    call(libc::SYS_mkdir, "mkdir", &[ByPath(0)]),
    call(libc::SYS_mkdirat, "mkdirat", &[At(0, 1)]),
    call(libc::SYS_rmdir, "rmdir", &[ByPath(0)]),
    call(libc::SYS_mknod, "mknod", &[ByPath(0)]),
    call(libc::SYS_mknodat, "mknodat", &[At(0, 1)]),
    call(libc::SYS_chmod, "chmod", &[ByPath(0)]),
    call(libc::SYS_fchmod, "fchmod", &[Fd(0)]),
    call(libc::SYS_fchmodat, "fchmodat", &[At(0, 1)]),
    call(libc::SYS_chown, "chown", &[ByPath(0)]),
    call(libc::SYS_fchown, "fchown", &[Fd(0)]),
    call(libc::SYS_lchown, "lchown", &[ByPath(0)]),
    call(libc::SYS_fchownat, "fchownat", &[At(0, 1)]),
    call(libc::SYS_setxattr, "setxattr", &[ByPath(0)]),
    call(libc::SYS_lsetxattr, "lsetxattr", &[ByPath(0)]),
    call(libc::SYS_fsetxattr, "fsetxattr", &[Fd(0)]),
    call(libc::SYS_utimensat, "utimensat", &[At(0, 1)]),
];

/// Calls that change files only with certain flags.
const OPEN: [c_long; 4] = [libc::SYS_open, libc::SYS_creat, libc::SYS_openat, libc::SYS_openat2];

/// The result of running the program.
#[derive(Debug)]
pub struct Ended {
    /// How it ended.
    pub status: ExitStatus,
    /// Standard output.
    pub out: Vec<u8>,
    /// Standard error.
    pub err: String,
    /// The call that the fault struck, if it was reached.
    pub struck: Option<String>,
    /// The calls after it.
    pub after: Vec<String>,
    calls: [u64; 3],
}

impl Ended {
    /// The number of calls that the fault could strike, up to the one that it struck.
    pub fn calls(&self, fault: Fault) -> u64 {
        self.calls[fault.kind()]
    }
}

/// Runs a program to its end. The fault strikes the call of this number, from 0, among those that change files in
/// `folder` and that it can strike. Everything that the program has started ends with it. Standard input is empty.
///
/// # Panics
/// If the program does not start, or does not end within two minutes.
pub fn run(command: &mut Command, folder: &Path, strike: Option<(Fault, u64)>) -> Ended {
    Tracer::new(folder, strike).apart(command)
}

/// Runs a program like [`run`], but lets the processes it started end by themselves. Calls `at_exit` for each process
/// that ends, while its memory still exists. Once any of them has worked for the time in `interrupt`, the program gets
/// a SIGINT.
///
/// # Panics
/// Like [`run`]; the two minutes are for all processes together.
pub fn to_the_last(
    command: &mut Command,
    folder: &Path,
    strike: Option<(Fault, u64)>,
    interrupt: Option<Duration>,
    at_exit: &mut (dyn FnMut(u32) + Send),
) -> Ended {
    let mut tracer = Tracer::new(folder, strike);
    (tracer.interrupt, tracer.at_exit) = (interrupt, Some(at_exit));
    tracer.apart(command)
}

struct Tracer<'a> {
    folder: PathBuf,
    strike: Option<(Fault, u64)>,
    interrupt: Option<Duration>,
    /// Called for each process that ends. If set, `run` waits for the last one.
    at_exit: Option<&'a mut (dyn FnMut(u32) + Send)>,
    calls: [u64; 3],
    struck: Option<String>,
    after: Vec<String>,
    known: Known,
}

/// Traced processes and threads.
type Known = Arc<Mutex<HashSet<Pid>>>;

impl<'a> Tracer<'a> {
    fn new(folder: &Path, strike: Option<(Fault, u64)>) -> Self {
        let folder = folder.canonicalize().expect("the folder is there");
        let (after, known) = (Vec::new(), Known::default());
        Self { folder, strike, interrupt: None, at_exit: None, calls: [0; 3], struck: None, after, known }
    }

    fn apart(self, command: &mut Command) -> Ended {
        // ptrace(2) and waiting for it belong to a thread, so a separate one never sees other children.
        thread::scope(|scope| scope.spawn(|| self.run(command)).join().expect("it was traced"))
    }

    // The tracing loop waits for it.
    #[allow(clippy::zombie_processes)]
    fn run(mut self, command: &mut Command) -> Ended {
        let [out, err] = [(); 2].map(|()| tempfile::tempfile().expect("a temporary file"));
        let share = |file: &File| Stdio::from(file.try_clone().expect("a descriptor"));
        command.stdin(Stdio::null()).stdout(share(&out)).stderr(share(&err));
        sys::traced(command, filter());
        // The process stops after it has executed the program.
        let child = command.spawn().expect("the program starts");
        let pid = Pid::from_child(&child);
        let (ended, watched) = channel::<()>();
        let (known, mut interrupt) = (Arc::clone(&self.known), self.interrupt);
        let status = thread::scope(|scope| {
            scope.spawn(move || {
                let begun = Instant::now();
                while watched.recv_timeout(TICK) == Err(RecvTimeoutError::Timeout) {
                    if interrupt.is_some_and(|time| list(&known).any(|pid| worked(pid) >= time)) {
                        interrupt = None;
                        let _ = kill_process(pid, Signal::INT);
                    }
                    if begun.elapsed() > PATIENCE {
                        eprintln!("the program has not ended after {PATIENCE:?} and is killed");
                        list(&known).chain([pid]).for_each(kill);
                    }
                }
            });
            let status = self.follow(pid);
            drop(ended);
            status
        });
        let err = String::from_utf8_lossy(&all_of(err)).into_owned();
        Ended { status, out: all_of(out), err, struck: self.struck, after: self.after, calls: self.calls }
    }

    fn follow(&mut self, program: Pid) -> ExitStatus {
        let mut status = None;
        // All processes that this thread traces, and no others, until none is left.
        let whom = WaitOptions::from_bits_retain((libc::__WALL | libc::__WNOTHREAD).cast_unsigned());
        while let Ok(Some((pid, now))) = wait(whom) {
            if now.stopped() {
                // A process killed in the meantime cannot continue. A child that first stops after the program has ended was
                // unknown when the others were killed.
                let _ = match status {
                    Some(_) if self.at_exit.is_none() => kill_process(pid, Signal::KILL).map_err(io::Error::from),
                    _ => self.stopped(pid, now, program),
                };
                continue;
            }
            lock(&self.known).remove(&pid);
            if pid == program {
                status = Some(ExitStatus::from_raw(now.as_raw()));
                list(&self.known).filter(|_| self.at_exit.is_none()).for_each(kill);
            }
        }
        status.expect("the program has ended")
    }

    fn stopped(&mut self, pid: Pid, status: WaitStatus, program: Pid) -> io::Result<()> {
        let (event, signal) = (status.as_raw() >> 16, status.stopping_signal().unwrap_or(0));
        if lock(&self.known).insert(pid) {
            if pid == program {
                sys::follow(pid, self.at_exit.is_some())?;
            }
            return sys::go_on(pid, 0);
        }
        match (event, signal) {
            (libc::PTRACE_EVENT_EXIT, _) => {
                let number = pid.as_raw_nonzero().get().cast_unsigned();
                self.at_exit.as_mut().filter(|_| is_process(number)).into_iter().for_each(|look| look(number));
                sys::go_on(pid, 0)
            }
            (libc::PTRACE_EVENT_SECCOMP, _) => self.at_call(pid),
            (0, signal) if signal == libc::SIGTRAP | 0x80 => Ok(kill_process(pid, Signal::KILL)?),
            (0, signal) => sys::go_on(pid, signal),
            _ => sys::go_on(pid, 0),
        }
    }

    fn at_call(&mut self, pid: Pid) -> io::Result<()> {
        let mut registers = sys::registers(pid)?;
        let Some((fault, call)) = self.strikes(pid, &registers) else { return sys::go_on(pid, 0) };
        match fault {
            Fault::KilledBefore => return Ok(kill_process(pid, Signal::KILL)?),
            Fault::KilledAfter => return sys::end_call(pid),
            Fault::Fails(error) => {
                // An invalid call number, which fails with this error (seccomp(2), SECCOMP_RET_TRACE).
                registers.orig_rax = u64::MAX;
                registers.rax = i64::from(-error.raw_os_error()).cast_unsigned();
            }
            Fault::Short => shorten(pid, &mut registers, call.length)?,
        }
        sys::set_registers(pid, &registers)?;
        sys::go_on(pid, 0)
    }

    /// The fault and the call, if this is the one to strike.
    fn strikes(&mut self, pid: Pid, registers: &user_regs_struct) -> Option<(Fault, &'static Call)> {
        let call = CALLS.iter().find(|call| call.number.cast_unsigned() == registers.orig_rax)?;
        let args = arguments(registers);
        if OPEN.contains(&call.number) && !creates(pid, call.number, &args) {
            return None;
        }
        let file = call
            .about
            .iter()
            .filter_map(|names| named(pid, *names, &args))
            .find(|file| file.starts_with(&self.folder))?;
        let told = format!("{} of {}", call.name, file.strip_prefix(&self.folder).unwrap_or(&file).display());
        if self.struck.is_some() {
            self.after.push(told);
            return None;
        }
        let of_kind = [true, call.interruptible, call.length.is_some_and(|length| half(pid, length, &args) > 0)];
        let before = self.calls;
        self.calls.iter_mut().zip(of_kind).for_each(|(calls, counts)| *calls += u64::from(counts));
        let (fault, nth) = self.strike?;
        if !of_kind[fault.kind()] || before[fault.kind()] != nth {
            return None;
        }
        self.struck = Some(told);
        Some((fault, call))
    }
}

fn lock(known: &Known) -> MutexGuard<'_, HashSet<Pid>> {
    known.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Kills a process, which may have ended.
fn kill(pid: Pid) {
    let _ = kill_process(pid, Signal::KILL);
}

/// The processes and threads known now.
fn list(known: &Known) -> std::vec::IntoIter<Pid> {
    lock(known).iter().copied().collect::<Vec<_>>().into_iter()
}

/// Whether the number is a process's and not another thread's.
fn is_process(number: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{number}/status")).unwrap_or_default();
    status.lines().filter_map(|line| line.strip_prefix("Tgid:")).any(|group| group.trim() == number.to_string())
}

/// CPU time of a process, in steps of 10 ms (proc_pid_stat(5)).
fn worked(pid: Pid) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap_or_default();
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields).split_whitespace();
    Duration::from_millis(fields.skip(11).take(2).filter_map(|ticks| ticks.parse::<u64>().ok()).sum::<u64>() * 10)
}

fn filter() -> BpfProgram {
    let rules: BTreeMap<_, _> = CALLS.iter().map(|call| (call.number, Vec::new())).collect();
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, SeccompAction::Trace(0), TargetArch::x86_64);
    filter.and_then(BpfProgram::try_from).expect("a filter")
}

/// The arguments of a system call (x86-64's ABI, section A.2.1).
fn arguments(registers: &user_regs_struct) -> [u64; 6] {
    [registers.rdi, registers.rsi, registers.rdx, registers.r10, registers.r8, registers.r9]
}

fn creates(pid: Pid, number: c_long, args: &[u64; 6]) -> bool {
    let flags = match number {
        libc::SYS_open => args[1],
        libc::SYS_openat => args[2],
        // The flags come first in `struct open_how`.
        libc::SYS_openat2 => number_at(pid, args[2]).unwrap_or(0),
        _ => return true,
    };
    flags & (libc::O_CREAT | libc::O_TRUNC) as u64 != 0 || flags & libc::O_TMPFILE as u64 == libc::O_TMPFILE as u64
}

/// The path of the file that the arguments name.
fn named(pid: Pid, names: Names, args: &[u64; 6]) -> Option<PathBuf> {
    let process = PathBuf::from(format!("/proc/{}", pid.as_raw_nonzero()));
    let open = |fd: u64| match fd as i32 {
        libc::AT_FDCWD => fs::read_link(process.join("cwd")).ok(),
        fd => fs::read_link(process.join(format!("fd/{fd}"))).ok(),
    };
    let path = |at: u64| {
        let mut bytes = vec![0; libc::PATH_MAX as usize];
        let read = File::open(process.join("mem")).and_then(|memory| memory.read_at(&mut bytes, at)).ok()?;
        let bytes = bytes[..read].split(|byte| *byte == 0).next()?;
        Some(PathBuf::from(<std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(bytes)))
    };
    let whole = match names {
        Fd(fd) => open(args[fd])?,
        ByPath(at) => open(libc::AT_FDCWD as u64)?.join(path(args[at])?),
        // Without a path, the call is for the open file itself.
        At(fd, at) if args[at] == 0 => open(args[fd])?,
        At(fd, at) => open(args[fd])?.join(path(args[at])?),
    };
    // /proc/self/fd/N names a file that is open already.
    match whole.strip_prefix("/proc/self").or_else(|_| whole.strip_prefix(&process)) {
        Ok(rest) => fs::read_link(process.join(rest)).ok().or(Some(whole)),
        Err(_) => Some(whole),
    }
}

/// About half of the bytes, in whole blocks if possible, as for writes that bypass the page cache; 0 if they cannot be split.
fn half(pid: Pid, length: Length, args: &[u64; 6]) -> u64 {
    let bytes = match length {
        Length::Bytes(at) => args[at],
        Length::Pieces(at) if args[at] == 0 => 0,
        // The length comes second in `struct iovec`.
        Length::Pieces(at) => number_at(pid, args[at - 1] + 8).unwrap_or(0),
    };
    let block = [4096, 512, 1].into_iter().find(|block| bytes >= 2 * block);
    block.map_or(0, |block| bytes / 2 / block * block)
}

/// Reads a number from the program's memory.
fn number_at(pid: Pid, at: u64) -> io::Result<u64> {
    let mut number = [0; 8];
    memory(pid)?.read_exact_at(&mut number, at)?;
    Ok(u64::from_ne_bytes(number))
}

fn memory(pid: Pid) -> io::Result<File> {
    File::options().read(true).write(true).open(format!("/proc/{}/mem", pid.as_raw_nonzero()))
}

fn shorten(pid: Pid, registers: &mut user_regs_struct, length: Option<Length>) -> io::Result<()> {
    let args = arguments(registers);
    let Some(length) = length else { return Ok(()) };
    let half = half(pid, length, &args);
    let (at, value) = match length {
        Length::Bytes(at) => (at, half),
        Length::Pieces(at) => {
            memory(pid)?.write_all_at(&half.to_ne_bytes(), args[at - 1] + 8)?;
            (at, 1)
        }
    };
    *[&mut registers.rdi, &mut registers.rsi, &mut registers.rdx, &mut registers.r10, &mut registers.r8][at] = value;
    Ok(())
}

fn all_of(mut file: File) -> Vec<u8> {
    let mut bytes = Vec::new();
    file.rewind().and_then(|()| file.read_to_end(&mut bytes)).expect("a temporary file");
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a shell with `dd` in its own folder. Returns the result and the files left there.
    fn shell(script: &str, strike: Option<(Fault, u64)>) -> (Ended, Vec<(String, Vec<u8>)>) {
        let folder = tempfile::tempdir().expect("a folder");
        let mut command = Command::new("sh");
        let ended = run(command.args(["-c", script]).current_dir(folder.path()), folder.path(), strike);
        let files = fs::read_dir(folder.path()).expect("a folder").map(|entry| {
            let entry = entry.expect("an entry");
            (entry.file_name().display().to_string(), fs::read(entry.path()).expect("a file"))
        });
        let mut files: Vec<_> = files.collect();
        files.sort();
        (ended, files)
    }

    const SCRIPT: &str = "printf 12345678 > one; mv one two; echo out; exit 3";

    fn name(name: &str, bytes: &[u8]) -> Vec<(String, Vec<u8>)> {
        vec![(name.into(), bytes.into())]
    }

    #[test]
    fn each_call_is_struck_in_turn_and_those_elsewhere_are_not() {
        let (ended, files) = shell(SCRIPT, None);
        assert_eq!((ended.status.code(), ended.calls, ended.struck), (Some(3), [3, 2, 1], None));
        assert_eq!((ended.out.as_slice(), files), (&b"out\n"[..], name("two", b"12345678")));
        for (nth, before, after) in [
            (0, vec![], name("one", b"")),
            (1, name("one", b""), name("one", b"12345678")),
            // mv is killed, and the shell continues.
            (2, name("one", b"12345678"), name("two", b"12345678")),
        ] {
            for (fault, left) in [(Fault::KilledBefore, before), (Fault::KilledAfter, after)] {
                let (ended, files) = shell(SCRIPT, Some((fault, nth)));
                assert_eq!(files, left, "{nth}: {fault:?} at {:?}", ended.struck);
                assert_eq!(ended.status.signal(), if nth < 2 { Some(9) } else { None });
            }
        }
    }

    #[test]
    fn calls_fail_and_writes_are_cut_in_half() {
        let (ended, files) = shell(SCRIPT, Some((Fault::Fails(Errno::NOSPC), 2)));
        assert!(ended.err.contains("No space left"), "{}", ended.err);
        assert_eq!(files, name("one", b"12345678"));
        let (ended, files) = shell(SCRIPT, Some((Fault::Short, 0)));
        assert_eq!((ended.struck.as_deref(), ended.calls(Fault::Short)), (Some("write of one"), 1), "{}", ended.err);
        assert_eq!(files, name("two", b"12345678"), "the rest was written by another call");
        let python =
            "python3 -c 'import os; print(os.pwritev(os.open(\"v\", os.O_RDWR | os.O_CREAT), [b\"1234\", b\"5\"], 1))'";
        if crate::tools::program("python3").is_some() {
            let (ended, files) = shell(python, Some((Fault::Short, 0)));
            assert_eq!((ended.out.as_slice(), files), (&b"2\n"[..], name("v", b"\x0012")), "{}", ended.err);
        }
    }

    #[test]
    fn what_threads_do_is_seen_and_what_was_started_ends_too() {
        if crate::tools::program("python3").is_none() {
            return;
        }
        let script = "exec python3 -c 'import threading, os
t = threading.Thread(target=lambda: os.mkdir(\"made\")); t.start(); t.join()'";
        let (ended, files) = shell(script, Some((Fault::KilledBefore, 0)));
        assert_eq!((ended.status.signal(), ended.struck.as_deref(), files.len()), (Some(9), Some("mkdir of made"), 0));
        let begun = Instant::now();
        let (ended, _) = shell("sleep 60 & exit 0", Some((Fault::KilledBefore, 0)));
        assert!(ended.status.success() && begun.elapsed() < Duration::from_secs(30));
    }
}
