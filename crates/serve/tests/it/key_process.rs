//! Keys in another process: the channel to it, and the cage around it.

use std::fs::{self, File};
use std::io;
use std::net::UdpSocket;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use claviger_crypto::modes::aead;
use claviger_engine::key_process::KeyProcess;
use claviger_engine::key_process::volume::{KeylessLayout, Keys};
use claviger_engine::opening::Stores;
use claviger_engine::store::MemoryStore;
use claviger_engine::volume::integrity;
use claviger_engine::{Acceleration, Layout, Payload, Secret, Sectors, Segment, Specification, Store, Volume};
use claviger_serve::key_process::{IoSide, KeySide, Terms, cage};
use claviger_testkit::random::Random;
use claviger_testkit::tools::skip;

const LEN: usize = 3 << 20;

/// Cascades, chains and wide blocks: what lies between their layers must not matter to anybody.
const CIPHERS: &[(&str, usize)] = &[
    ("aes-xts-plain64", 64),
    ("aes-cbc-essiv:sha256", 32),
    ("serpent-lrw-benbi", 48),
    ("xchacha20,aes-adiantum-plain64", 32),
    ("aes-cbc-elephant", 32),
];

fn layout(cipher: &str, key: usize) -> Layout {
    let specification = Specification::parse(cipher).expect("a specification");
    let key: Vec<u8> = (0..key as u8).map(|i| i.wrapping_mul(37)).collect();
    let cipher = specification.with_key(&key, Sectors::default(), Acceleration::On).expect("a key that fits");
    let segment =
        |at, len: usize, payload| Segment { at, len: len as u64, stored_at: at + 512, payload, writable: true };
    let segments = vec![segment(0, 1000, Payload::Clear), segment(1000, LEN, Payload::crypt(cipher, 11))];
    Layout::new(segments).expect("a good layout")
}

#[test]
fn a_volume_whose_keys_are_elsewhere_reads_and_writes_as_before() {
    for (cipher, key) in CIPHERS {
        let stored = Random::new(5).bytes(LEN + 4096);
        let [here, there] = [stored.clone(), stored.clone()].map(|bytes| Arc::new(MemoryStore::new(bytes)));
        let (io_side, socket) = IoSide::new().expect("a channel");
        let memory = io_side.memory().try_clone_to_owned().expect("a descriptor");
        let layout_there = layout(cipher, *key);
        let key_process = thread::spawn(move || {
            let key_side = KeySide::accept(socket, memory).expect("a channel").expect("somebody at its end");
            let (disk, header) = (key_side.disk(), key_side.header().expect("a detached header"));
            let mut bytes = vec![0; disk.len() as usize];
            disk.read_at(0, &mut bytes).expect("lent");
            assert!(
                bytes == stored
                    && disk.read_at(1, &mut bytes).is_err()
                    && disk.write_clobbering(0, &mut bytes).is_err()
            );
            let mut bytes = [0; 3];
            header.read_at(1, &mut bytes).expect("lent");
            assert_eq!((&bytes, header.len()), (b"ead", 4));
            let outline = KeylessLayout::of(&layout_there, &disk).expect("keys");
            key_side.serve_keys(Keys::of(&layout_there, true), outline, || Ok(())).expect("kept");
        });
        let stores = Stores {
            disk: Arc::clone(&there) as Arc<dyn Store>,
            header: Some(Arc::new(MemoryStore::new(b"head".to_vec()))),
            data: Arc::clone(&there) as Arc<dyn Store>,
        };
        let outline: KeylessLayout =
            io_side.serve_until_open(&stores, &Terms::reading(&|| false)).expect("lent").expect("opened");
        let lost = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&lost);
        let asking: Arc<dyn KeyProcess> =
            Arc::new(io_side.opened(move || told.store(true, Ordering::SeqCst)).expect("a thread"));
        let kept = Volume::new(stores.data, outline.with_key_process(&asking, &there).expect("a layout"));
        let own = Volume::new(Arc::clone(&here) as Arc<dyn Store>, layout(cipher, *key));
        same(&kept, &own, 300);
        // More threads than there are slots; each has a part of its own.
        thread::scope(|scope| {
            for n in 0..24 {
                let kept = &kept;
                scope.spawn(move || {
                    let mut random = Random::new(n);
                    let at = 1000 + n * 100_000;
                    for _ in 0..20 {
                        let len = random.below(100_000);
                        let bytes = random.bytes(len);
                        kept.write_clobbering(at, &mut bytes.clone()).expect("written");
                        let mut back = vec![0; bytes.len()];
                        kept.read_at(at, &mut back).expect("read");
                        assert!(back == bytes);
                    }
                });
            }
        });
        drop((kept, asking));
        key_process.join().expect("it ends when it is let go");
        assert!(!lost.load(Ordering::SeqCst));
    }
}

#[test]
fn sectors_with_tags_are_read_written_and_verified_elsewhere() {
    let specification = aead::AeadSpecification::parse("aes-xts-plain64", "hmac(sha256)").expect("it is known");
    let cipher = specification.with_key(&[7; 96], Sectors::default(), Acceleration::On).expect("it fits");
    let store = Arc::new(MemoryStore::new(vec![0; LEN]));
    integrity::format(&*store, 0, LEN as u64, &*cipher, &mut |_, _| Ok(())).expect("there is room");
    let layout = |store: &dyn Store| {
        let area = integrity::open(store, 0, LEN as u64, 32, 512).expect("it is good");
        let segment = integrity::segment(Arc::new(area), 0, Arc::clone(&cipher), true).expect("they fit");
        Layout::new(vec![segment]).expect("one segment")
    };
    let (io_side, socket) = IoSide::new().expect("a channel");
    let memory = io_side.memory().try_clone_to_owned().expect("a descriptor");
    thread::scope(|scope| {
        let key_process = scope.spawn(|| {
            let key_side = KeySide::accept(socket, memory).expect("a channel").expect("somebody at its end");
            let disk = key_side.disk();
            let layout = layout(&disk);
            let outline = KeylessLayout::of(&layout, &disk).expect("keys");
            key_side.serve_keys(Keys::of(&layout, true), outline, || Ok(())).expect("kept");
        });
        let data = Arc::clone(&store) as Arc<dyn Store>;
        let stores = Stores { disk: Arc::clone(&data), header: None, data };
        let outline: KeylessLayout =
            io_side.serve_until_open(&stores, &Terms::reading(&|| false)).expect("lent").expect("opened");
        let asking: Arc<dyn KeyProcess> = Arc::new(io_side.opened(|| ()).expect("a thread"));
        let kept = Volume::new(stores.data, outline.with_key_process(&asking, &store).expect("a layout"));
        let mut model = vec![0; kept.len() as usize];
        let mut random = Random::new(4);
        for _ in 0..60 {
            let at = random.below(model.len());
            let longest = [10, 700, 300_000][random.below(3)];
            let len = random.below(longest).min(model.len() - at);
            let bytes = random.bytes(len);
            model[at..][..len].copy_from_slice(&bytes);
            kept.write_clobbering(at as u64, &mut bytes.clone()).expect("written");
            let mut all = vec![0; model.len()];
            kept.read_at(0, &mut all).expect("read");
            assert!(all == model, "{len} bytes at {at}");
        }
        drop((kept, asking));
        key_process.join().expect("it ends when it is let go");
        let own = Volume::new(Arc::clone(&store) as Arc<dyn Store>, layout(&store));
        let mut all = vec![0; model.len()];
        own.read_at(0, &mut all).expect("each sector has its tag");
        assert!(all == model);
    });
}

fn same(kept: &Volume, own: &Volume, rounds: usize) {
    let mut random = Random::new(9);
    for _ in 0..rounds {
        let at = random.below(LEN);
        let longest = [10, 700, 5000, LEN][random.below(4)];
        let len = random.below(longest).min(LEN - at);
        if random.below(2) == 0 {
            let bytes = random.bytes(len);
            kept.write_clobbering(at as u64, &mut bytes.clone()).expect("written");
            own.write_clobbering(at as u64, &mut bytes.clone()).expect("written");
        }
        let (mut one, mut other) = (vec![0; len], vec![0; len]);
        kept.read_at(at as u64, &mut one).expect("read");
        own.read_at(at as u64, &mut other).expect("read");
        assert!(one == other, "{len} bytes at {at}");
    }
}

/// Something to try: it works, or it is an error.
type Attempt = fn() -> io::Result<()>;

/// What a key process cannot do, even under an attacker's control.
const FORBIDDEN: &[(&str, Attempt)] = &[
    ("open a file", || File::open("/proc/self/maps").map(drop)),
    ("make a file", || File::create(std::env::temp_dir().join("claviger-caged")).map(drop)),
    ("list a folder", || fs::read_dir("/").map(drop)),
    ("look at a file", || fs::metadata("/").map(drop)),
    ("make a socket", || UdpSocket::bind("127.0.0.1:0").map(drop)),
    ("make a pair of sockets", || UnixStream::pair().map(drop)),
    ("run a program", || Command::new("/bin/true").status().map(drop)),
    ("become a program", || Err(Command::new("/bin/sh").args(["-c", "exit 10"]).exec())),
    ("fork", || match unsafe_calls::fork() {
        Ok(0) => unsafe_calls::end_at_once(),
        other => other.map(drop),
    }),
    ("trace another process", unsafe_calls::trace_parent),
    ("read another process", unsafe_calls::read_parent),
    ("signal another process", unsafe_calls::signal_parent),
    ("have the kernel signal another process", unsafe_calls::own_for_parent),
    ("have memory that can be executed", unsafe_calls::executable),
    ("be dumpable again", unsafe_calls::dumpable),
    ("type into the terminal", unsafe_calls::type_in),
    ("load a filter of its own", unsafe_calls::bpf),
];

/// What a key process needs, and can do.
const ALLOWED: &[(&str, Attempt)] = &[
    ("threads", || thread::spawn(|| ()).join().map_err(|_| io::Error::other("it panicked"))),
    ("memory for secrets", || Secret::try_zeroed(64 << 20).map(drop).ok_or_else(|| io::Error::other("none"))),
    ("small secrets", || Secret::try_zeroed(64).map(drop).ok_or_else(|| io::Error::other("none"))),
    ("random numbers", || claviger_engine::Credential::new_keyfile(64).map(drop).map_err(Into::into)),
    ("pools", || {
        let pool = claviger_engine::Pool::for_this_machine(std::time::Duration::ZERO);
        pool.run(100, &|_| ());
        Ok(())
    }),
];

mod unsafe_calls {
    use std::io;

    fn check(result: i64) -> io::Result<()> {
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    pub fn fork() -> io::Result<i32> {
        // SAFETY: the child calls nothing but `_exit`.
        let pid = unsafe { libc::fork() };
        check(pid.into()).map(|()| pid)
    }

    pub fn end_at_once() -> ! {
        // SAFETY: it takes no memory, and runs nothing of this program.
        unsafe { libc::_exit(0) }
    }

    pub fn trace_parent() -> io::Result<()> {
        // SAFETY: it takes no memory. The parent continues, and is let go when this process ends.
        check(unsafe { libc::ptrace(libc::PTRACE_SEIZE, libc::getppid(), 0, 0) })
    }

    pub fn read_parent() -> io::Result<()> {
        let mut byte = 0_u8;
        let own = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
        // SAFETY: it reads a byte of this process by its number into another one.
        check(unsafe { libc::process_vm_readv(libc::getpid(), &raw const own, 1, &raw const own, 1, 0) } as i64)
    }

    pub fn signal_parent() -> io::Result<()> {
        // SAFETY: signal 0 is none.
        check(unsafe { libc::kill(libc::getppid(), 0) }.into())
    }

    pub fn own_for_parent() -> io::Result<()> {
        // SAFETY: it takes no memory, and no input arrives on standard input to be signalled.
        check(unsafe { libc::fcntl(0, libc::F_SETOWN, libc::getppid()) }.into())
    }

    pub fn executable() -> io::Result<()> {
        let (rights, flags) = (libc::PROT_READ | libc::PROT_EXEC, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping aliases nothing.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), 4096, rights, flags, -1, 0) };
        check(at as i64)
    }

    pub fn dumpable() -> io::Result<()> {
        // SAFETY: it takes no memory.
        check(unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 1) }.into())
    }

    pub fn type_in() -> io::Result<()> {
        // SAFETY: the kernel reads one byte. Standard input is no terminal here: the answer is another error without the cage.
        match check(unsafe { libc::ioctl(0, libc::TIOCSTI, c"x".as_ptr()) }.into()) {
            Err(e) if matches!(e.raw_os_error(), Some(libc::ENOTTY | libc::EIO)) => Ok(()),
            other => other,
        }
    }

    pub fn bpf() -> io::Result<()> {
        // Whether an action is known.
        let action: u32 = libc::SECCOMP_RET_ALLOW;
        // SAFETY: the kernel reads the four bytes of `action`.
        check(unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_GET_ACTION_AVAIL, 0, &raw const action) })
    }
}

const TRIED: &str = "CLAVIGER_TEST_TRIED";
const CAGED: &str = "CLAVIGER_TEST_CAGED";
const WORKED: i32 = 10;
const DENIED: i32 = 11;
const FAILED: i32 = 12;

/// Tries one thing and ends the process.
#[test]
#[ignore = "the tests below run it, in a process of its own"]
fn inside() {
    let Ok(what) = std::env::var(TRIED) else { return };
    let (_, attempt) = FORBIDDEN.iter().chain(ALLOWED).find(|(name, _)| *name == what).expect("one of them");
    if std::env::var_os(CAGED).is_some() {
        cage::enter(&[]).expect("a cage");
    }
    let denied = |e: &io::Error| matches!(e.raw_os_error(), Some(libc::EACCES | libc::EPERM));
    std::process::exit(match attempt() {
        Ok(()) => WORKED,
        Err(e) if denied(&e) => DENIED,
        Err(_) => FAILED,
    });
}

/// Tries `what` in a process of its own: its exit code, or the signal that ended it.
fn tried(what: &str, caged: bool) -> (Option<i32>, Option<i32>) {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["--exact", "key_process::inside", "--ignored", "--nocapture"]).env(TRIED, what);
    if caged {
        command.env(CAGED, "1");
    }
    let status = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status().expect("it starts");
    (status.code(), status.signal())
}

#[test]
fn what_a_key_process_may_not_do_is_denied() {
    for (what, _) in FORBIDDEN {
        let without = tried(what, false);
        if without == (Some(DENIED), None) {
            // For example, Yama may forbid all tracing.
            let _: Option<()> = skip(&format!("this machine lets nobody {what}"));
            continue;
        }
        assert_eq!(without, (Some(WORKED), None), "{what}, without a cage");
        let (code, signal) = tried(what, true);
        assert!(code == Some(DENIED) || signal == Some(libc::SIGSYS), "{what}: {code:?} {signal:?}");
    }
}

#[test]
fn what_a_key_process_needs_is_left() {
    for (what, _) in ALLOWED {
        assert_eq!(tried(what, true), (Some(WORKED), None), "{what}");
    }
}
