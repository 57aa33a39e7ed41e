//! What was begun and is killed in the middle: it is seen when the volume is looked at, and goes on.

use std::fs::{self, File};
use std::path::Path;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use claviger_window::app::Page;
use claviger_window::draw::Action;
use claviger_window::texts::ENGLISH as T;

use crate::common::{PASSWORD, Window};

/// Starts `claviger` and kills it in the middle of what it does.
fn killed(window: &Window, words: &[&str]) {
    let told = window.path("progress");
    File::create(&told).expect("a file");
    let mut command = window.command("sh");
    command.args(["-c", "exec 3>progress; exec \"$@\" --progress-fd 3 --password-file password", "sh"]);
    let mut child = command.arg(window.claviger()).args(words).stderr(Stdio::null()).spawn().expect("sh");
    let end = Instant::now() + Duration::from_secs(60);
    while !in_the_middle(&told) {
        assert!(
            Instant::now() < end && child.try_wait().expect("a child").is_none(),
            "{words:?} is not caught at work"
        );
        thread::sleep(Duration::from_millis(2));
    }
    child.kill().expect("killed");
    child.wait().expect("its end");
}

fn in_the_middle(told: &Path) -> bool {
    let lines = fs::read_to_string(told).expect("a file");
    let progress = lines.lines().last().and_then(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    progress.is_some_and(|it| it["done"].as_u64() > Some(0) && it["done"].as_u64() < it["all"].as_u64())
}

/// Looks at it, and goes on with what was begun.
fn go_on(window: &mut Window, volume: &Path, said: &str, further: &[&str]) {
    window.harness.state_mut().act(Action::Look(volume.to_owned()));
    window.sees(said);
    window.click(T.go_on);
    window.sees(T.change_title);
    window.types(T.password, 0, PASSWORD);
    for name in further {
        window.types(name, 0, PASSWORD);
    }
    window.click(T.go_on);
    window.sees(T.done);
    let Page::Change(page) = &window.harness.state().page else { panic!("another page") };
    assert_eq!(page.volume.half_way(&T), None, "there is nothing more to go on with");
}

#[test]
fn a_reencryption_that_was_killed_goes_on() {
    let Some(mut window) = Window::new() else { return };
    let volume = window.empty_volume("v.luks", "LUKS2", "100M");
    killed(&window, &["reencrypt", "--yes", "--hotzone-size", "64K", "v.luks"]);
    go_on(&mut window, &volume, T.half_way, &[]);
    window.run(&["keyslot", "test", "--password-file", "password", "v.luks"]);
    let shown = window.run(&["header", "show", "--json", "v.luks"]);
    assert!(!shown.contains("online-reencrypt"), "{shown}");
}

#[test]
fn a_reencryption_is_cancelled_and_goes_on() {
    let Some(mut window) = Window::new() else { return };
    let volume = window.empty_volume("v.luks", "LUKS2", "1G");
    window.harness.state_mut().act(Action::Look(volume));
    window.click(T.change_it);
    window.click(T.reencrypt);
    window.types(T.password, 0, PASSWORD);
    window.click(T.understood);
    window.click(T.begin);
    window.sees("%");
    window.click(T.cancel);
    window.sees(T.cancelled);
    // What there is to do is another thing now.
    window.click(T.go_on_title);
    window.types(T.password, 0, PASSWORD);
    window.click(T.go_on);
    window.sees("%");
    window.sees(T.done);
    window.sees(T.reencrypt);
}

#[test]
fn a_bitlocker_volume_that_was_being_decrypted_goes_on() {
    let Some(mut window) = Window::new() else { return };
    let volume = window.empty_volume("v.bl", "BitLocker", "64M");
    killed(&window, &["reencrypt", "--decrypt", "--yes", "--hotzone-size", "64K", "v.bl"]);
    window.harness.state_mut().act(Action::Look(volume.clone()));
    window.sees(T.half_way);
    window.click(T.go_on);
    window.sees(T.change_title);
    window.types(T.password, 0, PASSWORD);
    window.click(T.go_on);
    window.sees(T.done);
    // Nothing was ever written to it, and what was never encrypted stays as it is.
    window.click(T.back);
    window.harness.state_mut().act(Action::Look(volume));
    window.sees(T.is_nothing);
}

#[test]
fn a_conversion_that_was_killed_goes_on() {
    let Some(mut window) = Window::new() else { return };
    let volume = window.empty_volume("v.luks", "LUKS2", "200M");
    let words = ["convert", "--new-format", "TrueCrypt", "--new-password-file", "password", "v.luks", "home/new.tc"];
    killed(&window, &words);
    let part = window.path("home/new.tc.part");
    assert!(part.is_file() && !window.path("home/new.tc").exists());
    // From what was being made, too.
    window.harness.state_mut().act(Action::Look(part));
    window.sees("LUKS2");
    window.click(T.back);
    go_on(&mut window, &volume, T.conversion_half_way, &[T.new_password]);
    window.run(&["keyslot", "test", "--password-file", "password", "v.luks"]);
    window.run(&["info", "--truecrypt", "--password-file", "password", "home/new.tc"]);
    assert!(!window.path("home/new.tc.part.json").exists());
}
