//! Reencryption of a volume that is in use with its keys in a key process.

use std::cell::RefCell;
use std::fs;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use crate::common::mounts::wait_until;
use crate::common::*;
use crate::faults::secrets::password;
use crate::serving::in_use::{
    CHEAP, fill, is_full, is_listed_as, listed_reencryption, reencrypt, resized, serve, used_until_done,
};
use crate::serving::key_process::{ISOLATED, ended, key_process_of, key_processes_of};
use claviger_testkit::processes::{Memory, found};
use claviger_testkit::random::Random;
use claviger_testkit::tools;
use rustix::process::{Pid, Signal, kill_process};

/// A served volume full of a pattern, whose keys are in a key process; `None` without qemu-io.
fn served_full(folder: &Folder, more: &[&str]) -> Option<(String, Served)> {
    let volume = folder.str("v.luks");
    let create = ["create", "--format", "LUKS2", "--quick", "--size", "40M", "--sector-size", "512"];
    let create = create.into_iter().chain(CHEAP).chain(more.iter().copied());
    run(create.chain(["--password-file", &*folder.password, &volume])).succeeds();
    let served = serve(folder, &[ISOLATED, &volume]);
    fill(&served)?;
    Some((volume, served))
}

fn isolated(folder: &Folder, more: &[&str]) -> Command {
    reencrypt(folder, &[&[ISOLATED], more].concat())
}

/// The same at work: something is rewritten.
fn at_work(folder: &Folder, volume: &str, more: &[&str]) -> Child {
    try_work(folder, volume, more).unwrap_or_else(|said| panic!("{said}"))
}

/// The same, or what it said when it ended before that.
fn try_work(folder: &Folder, volume: &str, more: &[&str]) -> Result<Child, String> {
    let work = isolated(folder, &[more, &[volume]].concat()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
    let work = RefCell::new(work.expect("it starts"));
    let has_ended = || work.borrow_mut().try_wait().expect("it is ours").is_some();
    wait_until("it works", || has_ended() || listed_reencryption(volume).is_some());
    if has_ended() { Err(said(work.into_inner()).1) } else { Ok(work.into_inner()) }
}

fn said(work: Child) -> (bool, String) {
    let ended = work.wait_with_output().expect("it ends");
    (ended.status.success(), String::from_utf8_lossy(&ended.stderr).into_owned())
}

fn locks(volume: &str) {
    run(["lock", volume]).succeeds();
}

fn unlocks(folder: &Folder, volume: &str) {
    run(["unlock", "--password-file", &folder.password, volume]).succeeds();
}

/// Whether the header says that a reencryption has begun.
fn begun(volume: &str) -> bool {
    run(["header", "show", volume]).text().contains("reencrypt")
}

fn signal(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(pid.cast_signed()).expect("a process");
    kill_process(pid, signal).expect("it runs");
}

/// Opens the finished volume with other programs, and without a key process.
fn is_whole(folder: &Folder, volume: &str) {
    assert!(!begun(volume));
    run(["verify", "--password-file", &folder.password, volume]).succeeds();
    let again = serve(folder, &[volume]);
    is_full(&again);
    again.stop().succeeds();
    if let Some(cryptsetup) = tools::program("cryptsetup") {
        let password = fs::File::open(&folder.password).expect("a password file");
        tools::run(Command::new(cryptsetup).args(["open", "--test-passphrase", volume]).stdin(password));
    }
}

#[test]
fn an_isolated_volume_is_reencrypted_while_clients_read_and_write() {
    let folder = Folder::new();
    let Some((volume, mut served)) = served_full(&folder, &[]) else { return };
    let first = key_process_of(served.pid);
    for (size, more) in
        [(26, &["--new-cipher", "serpent-xts-plain64"][..]), (28, &["--new-sector-size", "4096", "--backward"])]
    {
        // Also after it has grown in use.
        resized(&volume, &folder.password, &format!("{size}M"), &[]).succeeds();
        served.size = size << 20;
        fill(&served).expect("as before");
        used_until_done(&served, &volume, isolated(&folder, &[more, &[&volume]].concat()));
        assert!(ended(first), "another process has the keys");
        is_full(&served);
        is_listed_as(&volume, "LUKS2", "serpent");
        // A key process that counts differently comes, and grows with the volume.
        locks(&volume);
        unlocks(&folder, &volume);
        is_full(&served);
        fill(&served).expect("as before");
    }
    served.stop().succeeds();
    is_whole(&folder, &volume);
}

/// One session from plaintext to plaintext, with a detached header, and with a key process that has come by `unlock` in each state.
#[test]
fn an_isolated_volume_with_a_detached_header_is_converted_while_clients_read_and_write() {
    let folder = Folder::new();
    let (data, header) = (folder.str("data"), folder.str("header"));
    fs::write(&data, vec![0x5a; 24 << 20]).expect("a file");
    let with_header = &["--header", &*header, &*data];
    let begin = [&["--encrypt", "--init-only"], &with_header[..]].concat();
    done(reencrypt(&folder, &begin).output().expect("it starts")).succeeds();
    let serve_it = |how: &[&str]| serve(&folder, &[how, with_header].concat());
    let mut served = serve_it(&[ISOLATED]);
    served.size = 24 << 20;
    if fill(&served).is_none() {
        return;
    }
    for how in [&["--resume"][..], &["--new-cipher", "serpent-xts-plain64"], &["--decrypt"]] {
        used_until_done(&served, &data, isolated(&folder, &[how, with_header].concat()));
        is_full(&served);
        if how != ["--decrypt"] {
            locks(&data);
            run(["unlock", "--password-file", &folder.password, "--header", &header, &data]).succeeds();
            is_full(&served);
        } else {
            run(["lock", &data]).fails(1, &["no longer encrypted", "Unmount it"]);
            is_full(&served);
        }
    }
    served.stop().succeeds();
    assert!(fs::read(&data).expect("it is there").iter().all(|byte| *byte == 0x5a));
}

/// The command, its key process before the exchange, and the locks of somebody who goes away.
#[test]
fn an_isolated_reencryption_in_use_survives_the_end_of_its_command_and_locks() {
    let folder = Folder::new();
    let Some((volume, served)) = served_full(&folder, &[]) else { return };
    for round in 0..8_u64 {
        let resume: &[&str] = if begun(&volume) { &["--resume"] } else { &[] };
        let mut work = isolated(&folder, &[resume, &[&volume]].concat());
        let mut work = work.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts");
        thread::sleep(Duration::from_millis(round * 60));
        let _ = kill_process(Pid::from_child(&work), if round % 2 == 0 { Signal::KILL } else { Signal::INT });
        work.wait().expect("it ends");
        wait_until("the file is back", || run(["keyslot", "list", &volume]).code == 0);
        is_full(&served);
        if round % 4 > 1 {
            locks(&volume);
            unlocks(&folder, &volume);
            is_full(&served);
        }
    }
    for _ in 0..2 {
        let work = at_work(&folder, &volume, if begun(&volume) { &["--resume"] } else { &[] });
        let key_process = key_process_of(work.id());
        locks(&volume);
        assert!(ended(key_process), "it has gone when that is said");
        let (good, said) = said(work);
        assert!(!good && said.contains("was locked") && said.contains("--resume"), "{said}");
        let locked = isolated(&folder, &["--resume", &volume]).output().expect("it starts");
        done(locked).fails(5, &["it is locked"]);
        unlocks(&folder, &volume);
        is_full(&served);
        fill(&served).expect("as before");
    }
    used_until_done(&served, &volume, isolated(&folder, &["--resume", &volume]));
    locks(&volume);
    unlocks(&folder, &volume);
    is_full(&served);
    served.stop().succeeds();
    is_whole(&folder, &volume);
}

/// The new key process, from its start to the exchange. Afterwards it is the volume's own, and the server ends with it.
#[test]
fn an_isolated_volume_keeps_its_key_process_if_the_new_one_ends_before_the_exchange() {
    let folder = Folder::new();
    let Some((volume, mut served)) = served_full(&folder, &[]) else { return };
    let (mut before_header, mut after_header) = (0, 0);
    for round in 0..60 {
        if before_header > 1 && after_header > 1 {
            break;
        }
        let own = key_process_of(served.pid);
        let resume: &[&str] = if begun(&volume) { &["--resume"] } else { &[] };
        let mut work = isolated(&folder, &[resume, &[&volume]].concat());
        let work = work.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("it starts");
        wait_until("it starts a key process", || !key_processes_of(work.id()).is_empty());
        let new = key_process_of(work.id());
        thread::sleep(Duration::from_millis(round % 20 * 5));
        signal(new, Signal::KILL);
        let (good, said) = said(work);
        // After the exchange, the server ends, and that is what the command sees.
        assert!(!good && (ended(own) || said.contains("key process")), "{said}");
        let has_begun = begun(&volume);
        assert_eq!(said.contains("--resume"), has_begun, "{said}");
        if ended(own) {
            served.child.wait().expect("it ends with its key process");
            served = serve(&folder, &[ISOLATED, &volume]);
        } else {
            *(if has_begun { &mut after_header } else { &mut before_header }) += 1;
        }
        is_full(&served);
        fill(&served).expect("as before");
    }
    assert!(
        before_header > 0 && after_header > 0,
        "before the header's beginning: {before_header}, after: {after_header}"
    );
    served.stop().succeeds();
    run(["reencrypt", "--resume", "--password-file", &folder.password, &volume]).succeeds();
    is_whole(&folder, &volume);
}

/// A reencryption that could lose data to a crash is resumed only while nobody uses the volume.
#[test]
fn a_reencryption_without_protection_is_not_resumed_in_use() {
    let folder = Folder::new();
    let Some((volume, served)) = served_full(&folder, &[]) else { return };
    served.stop().succeeds();
    let begin = ["--resilience", "none", "--init-only", &*volume];
    done(reencrypt(&folder, &begin).output().expect("it starts")).succeeds();
    for how in [&[ISOLATED][..], &[]] {
        let served = serve(&folder, &[how, &[&volume]].concat());
        let before = fs::read(&volume).expect("the volume");
        let resume = reencrypt(&folder, &[how, &["--resume", &volume]].concat()).output().expect("it starts");
        let refused = done(resume).fails(5, &["its zones have no protection", "Unmount it first"]);
        assert!(!refused.err.contains("--resume"), "{}", refused.err);
        assert!(fs::read(&volume).expect("the volume") == before);
        is_full(&served);
        served.stop().succeeds();
    }
    done(reencrypt(&folder, &["--resume", &volume]).output().expect("it starts")).succeeds();
    is_whole(&folder, &volume);
}

/// Without its key process or its server the volume is one that a crash has left, and the next command continues: in use or not, with a
/// key process or without.
#[test]
fn an_isolated_reencryption_in_use_survives_the_end_of_its_key_process_and_of_its_server() {
    let folder = Folder::new();
    let Some((volume, mut served)) = served_full(&folder, &[]) else { return };
    let mut patience = 400;
    for (round, server_too) in [false, true, false, true].into_iter().enumerate() {
        let work = loop {
            let refused = match try_work(&folder, &volume, if begun(&volume) { &["--resume"] } else { &[] }) {
                Ok(work) => break work,
                Err(refused) => refused,
            };
            if !begun(&volume) {
                // There was little left to do.
                assert!(refused.is_empty(), "{refused}");
                continue;
            }
            // After an end in the middle of a zone, the work goes on without the volume in use: with a key process, or without.
            served.stop().succeeds();
            let how: &[&str] = if round == 1 { &[ISOLATED] } else { &[] };
            let resume = ["reencrypt", "--resume", "--throttle", "12M", "--hotzone-size", "512K"];
            let mut work = claviger();
            let work = work.args(resume).args(how).args(["--password-file", &folder.password, &volume]);
            let mut work = work.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts");
            thread::sleep(Duration::from_millis(patience));
            let _ = kill_process(Pid::from_child(&work), Signal::INT);
            work.wait().expect("it ends");
            patience *= 2;
            served = serve(&folder, &[ISOLATED, &volume]);
            is_full(&served);
        };
        let key_process = key_process_of(work.id());
        match server_too {
            true => drop(served),
            false => {
                signal(key_process, Signal::KILL);
                served.child.wait().expect("it ends");
            }
        }
        let (good, said) = said(work);
        assert!(!good && said.contains("--resume"), "{said}");
        wait_until("its key process ends", || ended(key_process));
        served = serve(&folder, &[ISOLATED, &volume]);
        is_full(&served);
    }
    served.stop().succeeds();
    if begun(&volume) {
        run(["reencrypt", "--resume", "--password-file", &folder.password, &volume]).succeeds();
    }
    is_whole(&folder, &volume);
}

/// Nothing is changed where the keys of command and server would not be in the same place, or the header is another volume's.
#[test]
fn what_an_isolated_volume_in_use_cannot_do_is_refused_before_anything_is_changed() {
    let folder = Folder::new();
    let Some((volume, served)) = served_full(&folder, &[]) else { return };
    served.stop().succeeds();
    let other = folder.str("other");
    let create = ["create", "--format", "LUKS2", "--quick", "--size", "8M", "--header", &other];
    let data = folder.str("data");
    run(create.into_iter().chain(CHEAP).chain(["--password-file", &*folder.password, &data])).succeeds();
    let bitlocker = folder.str("bitlocker");
    let create = ["create", "--format", "BitLocker", "--quick", "--size", "32M", "--password-file", &folder.password];
    run(create.into_iter().chain([&*bitlocker])).succeeds();
    let bad = folder.str("bad");
    fs::write(&bad, "another password").expect("a file");
    let good = &*folder.password;
    for (path, serving, password, options, (code, why)) in [
        (&volume, &[ISOLATED][..], good, &[][..], (5, "Add --isolate-keys")),
        (&volume, &[], good, &[ISOLATED], (5, "Omit --isolate-keys")),
        (&volume, &[ISOLATED, "--read-only"], good, &[ISOLATED], (5, "read-only")),
        (&volume, &[ISOLATED], &bad, &[ISOLATED], (2, "passphrase")),
        (&volume, &[ISOLATED], good, &[ISOLATED, "--resilience", "none"], (5, "no protection")),
        (&volume, &[ISOLATED], good, &[ISOLATED, "--init-only"], (1, "--init-only")),
        (&volume, &[ISOLATED], good, &[ISOLATED, "--header", &other], (1, "was not opened with this header")),
        (&volume, &[ISOLATED], good, &[ISOLATED, "--resume"], (1, "not being reencrypted")),
        (
            &bitlocker,
            &[ISOLATED],
            good,
            &[ISOLATED, "--decrypt"],
            (5, "BitLocker volume whose keys are in a key process"),
        ),
    ] {
        let (before, header) = (fs::read(path).expect("the volume"), fs::read(&other).expect("the header"));
        let serve = ["--password-file", good, "--socket", &folder.str("s"), path];
        let served = Served::start(serve.iter().chain(serving));
        run(["reencrypt", "--yes", "--password-file", password, path].iter().chain(options)).fails(code, &[why]);
        let (read, out) = qemu_io(&served.uri, "read 0 1M").expect("as before");
        assert!(read, "{why}: {out}");
        served.stop().succeeds();
        assert!(fs::read(path).expect("the volume") == before, "{why}");
        assert!(fs::read(&other).expect("the header") == header, "{why}");
    }
}

/// Neither the process that serves nor the command has the password or a key: the old one, or the new one.
#[test]
fn who_serves_a_volume_that_is_reencrypted_has_no_key() {
    if tools::root().is_none() {
        return;
    }
    let folder = Folder::new();
    let old = Random::new(78).bytes(64);
    let key_file = folder.str("key");
    fs::write(&key_file, &old).expect("a key");
    let Some((volume, served)) = served_full(&folder, &["--volume-key-file", &key_file]) else { return };
    let work = at_work(&folder, &volume, &[]);
    wait_until("some of it is rewritten", || listed_reencryption(&volume).is_some_and(|(done, _)| done > 0));
    for pid in [served.pid, work.id()] {
        signal(pid, Signal::STOP);
    }
    let memory = [served.pid, work.id()].map(Memory::of);
    for pid in [served.pid, work.id()] {
        signal(pid, Signal::CONT);
    }
    let (good, said) = said(work);
    assert!(good, "{said}");
    is_full(&served);
    served.stop().succeeds();
    let Some(cryptsetup) = tools::program("cryptsetup") else { return };
    let new = folder.str("new");
    let dump = ["luksDump", "-q", "--dump-volume-key", "--volume-key-file", &new, &volume];
    let password_file = fs::File::open(&folder.password).expect("a password file");
    tools::run(Command::new(cryptsetup).args(dump).stdin(password_file));
    let new = fs::read(&new).expect("a key");
    assert!(new.len() == old.len() && new != old);
    let pieces = [old, new].concat();
    let pieces = pieces.chunks(16).enumerate().map(|(i, piece)| (format!("key {i}"), piece.to_vec()));
    let needles: Vec<_> = pieces.chain([password()]).collect();
    for memory in memory {
        let memory = [memory.locked, memory.ordinary].concat();
        assert!(found(&memory, &needles).is_empty(), "{:?}", found(&memory, &needles));
    }
}
