//! Once a page is closed, no password that was typed on it is left in the memory of the window, or in the registers of one of its threads.
//! A program of its own: it looks at all of itself.

#[path = "it/common.rs"]
#[allow(dead_code, reason = "pages need more of it")]
mod common;

/// What a debugger sees of a process, as the tests of the program look at it.
#[path = "../../crates/testkit/src/processes.rs"]
#[allow(dead_code, reason = "of memory this program knows more itself")]
mod processes;
#[path = "../../crates/testkit/src/tools.rs"]
#[allow(dead_code, reason = "other tests need more programs")]
mod tools;

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::thread;

use claviger_window::draw::Action;
use claviger_window::texts::ENGLISH as T;
use common::Window;
use processes::Registers;

/// The password, each byte inverted: as it is, it must be nowhere in this program.
const INVERTED: [u8; 16] =
    [0x8e, 0xc8, 0xa7, 0x91, 0xce, 0x85, 0xcc, 0xb4, 0x99, 0xcd, 0x88, 0xcb, 0x93, 0xca, 0x9b, 0xc7];

/// Where so many bytes of the password, from its beginning, lie in a row.
fn occurrences(bytes: &[u8], len: usize) -> impl Iterator<Item = usize> {
    let inverted = |window: &[u8]| window.iter().zip(INVERTED).all(|(byte, inverted)| *byte == !inverted);
    bytes.windows(len).enumerate().filter(move |(_, window)| inverted(window)).map(|(at, _)| at)
}

/// The places in the memory of this process.
fn found(len: usize) -> Vec<u64> {
    let memory = File::open("/proc/self/mem").expect("procfs");
    let mut places = Vec::new();
    for line in fs::read_to_string("/proc/self/maps").expect("procfs").lines() {
        let Some((range, rest)) = line.split_once(' ') else { continue };
        let Some((start, end)) = range.split_once('-') else { continue };
        let number = |text| u64::from_str_radix(text, 16).expect("an address");
        let (start, end) = (number(start), number(end));
        if !rest.starts_with("rw") || end - start > 1 << 30 {
            continue;
        }
        let mut bytes = vec![0; (end - start) as usize];
        // Some of it cannot be read, such as what belongs to a device.
        if memory.read_exact_at(&mut bytes, start).is_ok() {
            places.extend(occurrences(&bytes, len).map(|at| start + at as u64));
        }
        // What was read is no place of its own.
        bytes.fill(0);
        std::hint::black_box(&mut bytes);
    }
    places
}

/// The page is closed: it is nowhere, while the window goes on.
#[track_caller]
fn forgotten(window: &mut Window) {
    window.sees(T.nothing_mounted);
    assert!(found(8).is_empty(), "{:x?}", found(8));
    if tools::root().is_none() {
        return;
    }
    let looking = thread::spawn(|| Registers::of(std::process::id()));
    while !looking.is_finished() {
        window.harness.step();
    }
    // Half of a vector register, or a general one.
    let Some(registers) = looking.join().expect("registers") else { return };
    assert!(registers.threads > 1 && occurrences(&registers.bytes, 8).next().is_none(), "it is in a register");
}

fn type_it(window: &mut Window, name: &str, number: usize) {
    window.types(name, number, "");
    for inverted in INVERTED {
        window.harness.event(eframe::egui::Event::Text(char::from(!inverted).into()));
        window.harness.step();
    }
}

#[test]
fn no_password_stays_when_its_page_is_closed() {
    let Some(mut window) = Window::new() else { return };
    window.run(&["--version"]);
    let volume = window.path("v.luks").display().to_string();
    let cheap = ["--quick", "--size", "20M", "--kdf", "pbkdf2", "--iterations", "1000", "--password-file", "password"];
    window.run(&[&["create", "--format", "LUKS2"], &cheap[..], &[volume.as_str()]].concat());
    assert_eq!(found(INVERTED.len()).len(), 0, "the test itself holds it");

    // Tried, shown, explained, and left.
    window.harness.state_mut().act(Action::Look(volume.clone().into()));
    window.sees("LUKS2");
    type_it(&mut window, T.password, 0);
    window.click(T.show);
    window.click(T.mount);
    window.sees(T.wrong_password);
    assert_eq!(found(INVERTED.len()).len(), 1, "it is in the field, and nowhere else");
    window.click(T.back);
    forgotten(&mut window);

    // A new password of a volume, and another volume's.
    window.harness.state_mut().act(Action::Look(volume.into()));
    window.click(T.change_it);
    window.sees(T.change_title);
    type_it(&mut window, T.password, 0);
    type_it(&mut window, T.new_password, 0);
    type_it(&mut window, T.again, 0);
    window.click(T.change);
    window.sees(T.wrong_password);
    assert_eq!(found(INVERTED.len()).len(), 3, "each field holds it");
    window.click(T.back);
    forgotten(&mut window);
    window.click(T.create_page);
    window.click(T.experts);
    window.sees(T.expert_title);
    type_it(&mut window, T.new_password, 0);
    window.click(T.volumes);
    forgotten(&mut window);
}
