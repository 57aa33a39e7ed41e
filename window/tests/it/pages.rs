//! Each page, as people go through it.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use claviger_window::app::Page;
use claviger_window::change::Change;
use claviger_window::create::{Create, choices};
use claviger_window::draw::Action;
use claviger_window::form::Input;
use claviger_window::header::{Header, Keyslot};
use claviger_window::home::AtHand;
use claviger_window::open::{Open, Verdict, Volume};
use claviger_window::program::Programs;
use claviger_window::recovery::Recovery;
use claviger_window::texts::{ENGLISH as T, GERMAN};
use eframe::egui::{Key, vec2};
use egui_kittest::kittest::NodeT;

use crate::common::{PASSWORD, Window, claviger, text, there};

/// A volume is looked at, does not open with a wrong password, opens with the right one, is locked, unlocked and unmounted.
#[test]
fn a_volume_is_mounted_locked_unlocked_and_unmounted() {
    if !there("fusermount3") || !there("mkfs.vfat") {
        return;
    }
    let Some(mut window) = Window::new() else { return };
    let volume = window.volume("v.luks");
    window.sees(T.nothing_mounted);
    window.harness.state_mut().act(Action::Look(volume.clone()));
    window.sees("LUKS2");
    // Typed at once: the field has the keyboard.
    for letter in "wrong".chars() {
        window.harness.event(eframe::egui::Event::Text(letter.into()));
        window.harness.step();
    }
    window.harness.key_press(Key::Enter);
    window.sees(T.wrong_password);
    // And again: what is typed replaces it, and the message ends.
    for letter in PASSWORD.chars() {
        window.harness.event(eframe::egui::Event::Text(letter.into()));
    }
    window.harness.run_steps(1);
    window.sees_no_more(T.wrong_password);
    assert!(!window.accessible_data().contains(PASSWORD), "a password is never announced");
    window.click(T.mount);
    window.sees(T.open_folder);
    let dir = window.mounted_at();
    fs::write(dir.join("letter"), "dear").expect("a file");
    window.click(T.more_actions);
    window.click(T.lock);
    window.sees(T.locked);
    window.click(T.unlock);
    window.sees(T.is_locked);
    window.types(T.password, 0, PASSWORD);
    window.click(T.unlock);
    window.sees(T.open_folder);
    assert_eq!(fs::read_to_string(dir.join("letter")).expect("a file"), "dear");
    window.click(T.unmount);
    window.sees(T.nothing_mounted);
    window.until("the folder is gone", |_| !dir.exists());
    window.sees(T.recent);
}

/// A wrong password is explained, with progress, and that can be cancelled.
#[test]
fn why_it_does_not_open_is_looked_for_and_cancelled() {
    let Some(mut window) = Window::new() else { return };
    let volume = window.path("noise");
    let noise: Vec<u8> =
        (0..1u32 << 20).map(|i| (i.wrapping_mul(2_654_435_761).wrapping_mul(i | 1) >> 13) as u8).collect();
    fs::write(&volume, noise).expect("a file");
    window.harness.state_mut().act(Action::Look(volume));
    window.sees(T.no_mark);
    // The bytes alone, without a password.
    window.click(T.why_not);
    window.sees(T.findings);
    window.types(T.password, 0, "guess");
    window.click(T.why_not);
    window.sees(T.explaining);
    window.sees("%");
    // It goes on while another page is looked at.
    window.click(T.measure_page);
    window.sees(T.measure_explanation);
    assert!(!window.harness.state().at_work(), "it is not this page's");
    window.click(T.explaining);
    window.click(T.cancel);
    window.sees(T.cancelled);
    assert!(matches!(window.harness.state().page, Page::Open(_)), "the page stays");
    window.click(T.close);
}

/// A password that was typed with Caps Lock on is found, and one button opens the volume.
#[test]
fn caps_lock_is_found_and_undone() {
    if !there("fusermount3") || !there("mkfs.vfat") {
        return;
    }
    let Some(mut window) = Window::new() else { return };
    let volume = window.volume("v.luks");
    window.harness.state_mut().act(Action::Look(volume));
    window.types(T.password, 0, &PASSWORD.to_uppercase());
    window.sees(T.capitals);
    window.click(T.why_not);
    window.click(T.swap_case);
    window.sees(T.open_folder);
    window.click(T.unmount);
    window.sees(T.nothing_mounted);
}

/// A container whose first header was overwritten opens by the copy at its end.
#[test]
fn a_beheaded_container_is_opened() {
    if !there("fusermount3") || !there("mkfs.vfat") {
        return;
    }
    let Some(mut window) = Window::new() else { return };
    let volume = window.volume_of("v.tc", "TrueCrypt", &[]);
    let file = fs::OpenOptions::new().write(true).open(&volume).expect("a file");
    std::os::unix::fs::FileExt::write_all_at(&file, &[0; 65536], 0).expect("overwritten");
    window.harness.state_mut().act(Action::Look(volume));
    window.sees(&T.is_beheaded.replace("{}", "TrueCrypt / VeraCrypt"));
    window.types(T.password, 0, PASSWORD);
    window.click(T.mount);
    window.sees(T.open_folder);
    assert!(fs::write(window.mounted_at().join("letter"), "dear").is_err(), "it is read-only");
    window.click(T.unmount);
    window.sees(T.nothing_mounted);
}

/// A volume is made by the guide, with a file system and a recovery key, which opens it.
#[test]
fn a_volume_is_made_by_the_guide() {
    if !there("fusermount3") || !there("mkfs.ext4") {
        return;
    }
    let Some(mut window) = Window::new() else { return };
    window.click(T.create_page);
    window.click(T.external);
    window.click(T.next);
    window.sees(T.recommended);
    window.sees("free there");
    window.types(T.size, 0, "9000T");
    window.click(T.next);
    window.sees(T.no_room.split("{}").next().expect("its beginning"));
    window.types(T.where_to, 0, "made.vol");
    window.types(T.size, 0, "40M");
    window.click(T.next);
    window.types(T.new_password, 0, PASSWORD);
    window.types(T.again, 0, "something else");
    window.click(T.next);
    window.sees(T.not_the_same);
    window.types(T.again, 0, PASSWORD);
    window.click(T.next);
    window.sees(T.review_title);
    window.sees("made.vol");
    window.click(T.create);
    window.sees(T.creating);
    window.sees(T.created);
    window.sees(T.print_recovery);
    window.sees(T.qr_code);
    let key = fs::read_to_string(window.path("home/recovery-key.txt")).expect("the key");
    let group = &key[..key.find('-').expect("groups")];
    assert!(!window.accessible_data().contains(group), "a key is never announced");
    window.click(T.close);
    window.click(T.close);
    window.sees(T.nothing_mounted);
    let made = window.path("home/made.vol").display().to_string();
    let told = window.run(&["info", "--json", "--password-file", "password", &made]);
    assert!(told.contains("\"format\""), "{told}");
    let listed = window.run(&["ls", "--password-file", "password", &made]);
    assert!(listed.contains("lost+found"), "{listed}");
}

/// The page for experts makes what its fields say.
#[test]
fn experts_choose_format_and_cipher() {
    let Some(mut window) = Window::new() else { return };
    window.click(T.create_page);
    window.click(T.experts);
    // It begins with a format of today.
    let Page::Create(page) = &window.harness.state().page else { panic!("another page") };
    assert_eq!(page.expert.map(|at| page.all[at].format.as_str()), Some("LUKS2"));
    window.click("TrueCrypt");
    window.types(T.where_to, 0, "old.tc");
    window.types(T.size, 0, "1M");
    window.click(T.more);
    window.click(T.cipher);
    window.click("Serpent");
    window.click(T.file_system);
    window.click("–");
    window.types(T.new_password, 0, PASSWORD);
    window.types(T.again, 0, PASSWORD);
    window.click(T.quick);
    window.click(T.create);
    window.sees(T.created);
    let made = window.path("home/old.tc").display().to_string();
    let told = window.run(&["info", "--json", "--truecrypt", "--password-file", "password", &made]);
    assert!(told.contains("\"Serpent\""), "{told}");
}

/// The password is changed, and then the header saved and a copy of the volume made.
#[test]
fn a_volume_is_changed() {
    if !there("mkfs.vfat") {
        return;
    }
    let Some(mut window) = Window::new() else { return };
    let volume = window.volume("v.luks");
    window.harness.state_mut().act(Action::Look(volume.clone()));
    window.click(T.change_it);
    window.sees(T.change_title);
    window.types(T.password, 0, "wrong");
    window.types(T.new_password, 0, "new one");
    window.types(T.again, 0, "new one");
    window.click(T.change);
    window.sees(T.wrong_password);
    window.types(T.password, 0, PASSWORD);
    window.click(T.change);
    window.sees(T.done);
    window.click(T.backup);
    window.click(T.save);
    window.sees(T.done);
    assert!(window.path("home/v.luks.header").is_file());
    window.click(T.restore);
    window.types(T.backup_file, 0, "v.luks.header");
    window.types(T.password, 0, "new one");
    window.click(T.restore_button);
    window.sees(T.agree_first);
    window.click(T.understood);
    window.click(T.restore_button);
    window.sees(T.done);
    fs::write(window.path("new"), "new one").expect("a file");
    window.run(&["keyslot", "test", "--password-file", "new", "v.luks"]);
    window.click(T.add_recovery);
    window.types(T.password, 0, "new one");
    window.click(T.add);
    window.sees(T.qr_code);
    window.run(&["keyslot", "test", "--password-file", "home/v.luks.recovery.txt", "v.luks"]);
    window.harness.state_mut().act(Action::Look(volume.clone()));
    window.click(T.change_it);
    let digest = |window: &Window| window.run(&["header", "show", "--json", "v.luks"]);
    let before = digest(&window);
    window.click(T.reencrypt);
    window.types(T.password, 0, "new one");
    window.click(T.understood);
    window.click(T.begin);
    window.sees(T.done);
    assert_ne!(digest(&window), before, "it has another key");
    window.run(&["keyslot", "test", "--password-file", "new", "v.luks"]);
}

/// What opens a volume is listed, and removed and changed by its number.
#[test]
fn a_keyslot_is_removed_by_its_row() {
    let Some(mut window) = Window::new() else { return };
    let volume = window.empty_volume("v.luks", "LUKS2", "20M");
    fs::write(window.path("other"), "other one").expect("a file");
    let add = ["keyslot", "add", "--kdf", "pbkdf2", "--iterations", "1000", "--password-file", "password"];
    window.run(&[&add[..], &["--new-password-file", "other", "v.luks"]].concat());
    window.run(&[&add[..], &["--recovery-key-file", "recovery.txt", "v.luks"]].concat());
    window.harness.state_mut().act(Action::Look(volume));
    window.click(T.change_it);
    window.sees(T.keyslots);
    window.sees("pbkdf2, sha256, 1000 iterations");
    window.sees(&format!("Keyslot 2: {}", T.recovery_title));
    window.click_on(T.change_it, "Keyslot 1");
    window.types(T.password, 0, "other one");
    window.types(T.new_password, 0, "third");
    window.types(T.again, 0, "third");
    window.click(T.change);
    window.sees(T.done);
    fs::write(window.path("third"), "third").expect("a file");
    window.run(&["keyslot", "test", "--password-file", "third", "v.luks"]);
    window.click_on(T.remove_it, "Keyslot 1");
    window.sees(T.kill_explanation);
    window.types(T.password, 0, PASSWORD);
    window.click(T.understood);
    window.click(T.remove);
    window.sees(T.done);
    let removable = |window: &Window| window.labels().into_iter().filter(|label| label == T.remove_it).count();
    assert_eq!(removable(&window), 2);
    window.click_on(T.remove_it, "Keyslot 2");
    window.types(T.password, 0, PASSWORD);
    window.click(T.understood);
    window.click(T.remove);
    window.until("the last one, which is not removed", |harness| {
        matches!(&harness.state().page, Page::Change(page) if page.volume.header.as_ref().is_some_and(|it| it.keyslots.len() == 1))
    });
    assert_eq!(removable(&window), 0, "{:?}", window.labels());
}

/// A partition of a disk is opened and changed as a volume is.
#[test]
fn a_partition_is_opened_and_changed() {
    if !there("fusermount3") || !there("mkfs.vfat") {
        return;
    }
    let Some(mut window) = Window::new() else { return };
    let volume = fs::read(window.volume("v.luks")).expect("a file");
    let (start, sectors) = (2048u32, (volume.len() / 512) as u32);
    let mut disk = vec![0; start as usize * 512];
    // A master boot record with one partition, of Linux.
    disk[446 + 4] = 0x83;
    disk[446 + 8..446 + 12].copy_from_slice(&start.to_le_bytes());
    disk[446 + 12..446 + 16].copy_from_slice(&sectors.to_le_bytes());
    disk[510..512].copy_from_slice(&[0x55, 0xaa]);
    disk.extend(volume);
    fs::write(window.path("disk.img"), disk).expect("a file");
    let look = |window: &mut Window| {
        let disk = window.path("disk.img");
        window.harness.state_mut().act(Action::Look(disk));
        window.sees(T.is_disk);
        let name = window.labels().into_iter().find(|label| label.starts_with("Partition 1: ")).expect("it is listed");
        window.click(&name);
        window.sees("LUKS2.");
    };
    look(&mut window);
    window.click(T.change_it);
    window.sees(T.keyslots);
    window.types(T.password, 0, PASSWORD);
    window.types(T.new_password, 0, "new one");
    window.types(T.again, 0, "new one");
    window.click(T.change);
    window.sees(T.done);
    look(&mut window);
    window.types(T.password, 0, "new one");
    window.click(T.mount);
    window.sees(T.open_folder);
    window.click(T.unmount);
    window.click_on(T.open_it, "disk.img, Partition 1");
    window.sees("LUKS2.");
}

/// A run of the lab is cancelled, goes on, and its report is shown.
#[test]
fn the_lab_measures() {
    let Some(mut window) = Window::new() else { return };
    window.click(T.measure_page);
    window.click(T.more);
    window.types(T.facility, 0, "plain");
    window.types(T.workload, 0, "hdparm-like");
    window.types(T.repeats, 0, "1");
    window.click(T.run_lab);
    window.sees("hdparm-like on plain");
    window.click(T.cancel);
    window.sees(T.cancelled);
    window.sees(T.lab_interrupted);
    window.click(T.go_on);
    window.sees(T.open_report);
    window.sees("B/s");
    assert!(window.path("home/claviger-lab/report.html").is_file());
    assert!(!window.labels().contains(&T.go_on.to_owned()), "nothing is left to do");
}

/// A folder whose files are encrypted one by one is made, and opened while nothing in it tells what it is.
#[test]
fn a_folder_is_made_and_opened() {
    if !there("fusermount3") {
        return;
    }
    let Some(mut window) = Window::new() else { return };
    window.click(T.create_page);
    window.click(T.folder_instead);
    window.click(T.next);
    window.sees(T.folder_explanation);
    window.types(T.new_folder, 0, "letters");
    window.click(T.next);
    window.types(T.new_password, 0, PASSWORD);
    window.types(T.again, 0, PASSWORD);
    window.click(T.next);
    window.click(T.create);
    window.sees(T.created);
    window.click_on(T.open_it, "letters");
    window.sees("eCryptfs.");
    window.types(T.password, 0, PASSWORD);
    window.click(T.mount);
    window.sees(T.open_folder);
    fs::write(window.mounted_at().join("letter"), "dear").expect("a file");
    window.click(T.unmount);
    window.sees(T.nothing_mounted);
    let names: Vec<_> = fs::read_dir(window.path("home/letters")).expect("a folder").flatten().collect();
    assert!(names.len() == 1 && names[0].file_name() != "letter", "{names:?}");
    let told = window.run(&["cat", "--password-file", "password", "home/letters", ":/letter"]);
    assert_eq!(told, "dear");
}

/// A volume is verified on its page, in both languages: the damage is named, and what to do next.
#[test]
fn a_volume_is_verified() {
    for texts in [&T, &GERMAN] {
        let Some(mut window) = Window::with(texts) else { return };
        let volume = window.empty_volume("v.luks", "LUKS2", "20M");
        window.harness.state_mut().act(Action::Look(volume.clone()));
        window.click(texts.verify);
        window.sees(texts.is_missing);
        window.types(texts.password, 0, "wrong");
        window.click(texts.verify);
        window.sees(texts.wrong_password);
        window.types(texts.password, 0, PASSWORD);
        window.click(texts.verify);
        window.sees(texts.is_sound);
        window.sees(texts.copy_header);
        // The second copy of its header, whose checksum is wrong now. The page is left meanwhile.
        let file = fs::File::options().write(true).open(&volume).expect("the volume");
        std::os::unix::fs::FileExt::write_all_at(&file, b"damage", 20000).expect("written");
        let app = window.harness.state_mut();
        app.act(Action::Verify);
        app.act(Action::Home);
        window.until("the end", |harness| harness.state().has_finished_elsewhere());
        window.harness.state_mut().act(Action::Return);
        window.sees(texts.is_damaged);
        window.sees("secondary: ");
        window.sees(texts.restore_header);
    }
}

/// Bars come one after the other, and measuring can be cancelled.
#[test]
fn the_benchmark_shows_bars_while_it_runs() {
    let Some(mut window) = Window::new() else { return };
    window.click(T.measure_page);
    window.click(T.aes_instructions);
    window.click(T.measure);
    window.sees("AES: ");
    window.sees("2/8");
    window.click(T.cancel);
    window.until("the end", |harness| !harness.state().at_work());
    window.sees("AES: ");
    let Page::Measure(page) = &window.harness.state().page else { panic!("another page") };
    assert!(page.at.is_none() && page.rows.len() < 8);
    // The program knows all of them.
    window.click(T.measure_again);
    window.until(
        "all bars",
        |harness| matches!(&harness.state().page, Page::Measure(page) if page.at.is_none() && page.rows.len() == 8),
    );
    assert!(matches!(&window.harness.state().page, Page::Measure(page) if page.trouble.is_none()));
}

/// What a server of a mounted volume left when it was killed is told, and cleaned up.
#[test]
fn a_server_that_is_gone_is_told() {
    if !there("fusermount3") || !there("mkfs.vfat") {
        return;
    }
    let Some(mut window) = Window::new() else { return };
    let volume = window.volume("v.luks").display().to_string();
    let dir = window.path("dir").display().to_string();
    fs::create_dir(&dir).expect("a folder");
    let told = window.run(&["mount", "--json", "--password-file", "password", &volume, &dir]);
    let told: serde_json::Value = serde_json::from_str(&told).expect("JSON");
    window.sees(T.open_folder);
    let pid = told["pid"].as_i64().and_then(|pid| rustix::process::Pid::from_raw(pid as i32)).expect("a process");
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("killed");
    window.sees(T.server_gone);
    window.click(T.clean_up);
    window.sees(T.nothing_mounted);
}

/// The drive that a volume is on is pulled out: what is written then is lost, which is told, and everything can be taken down.
#[test]
fn a_drive_that_was_pulled_out_is_told() {
    if !there("fusermount3") || !there("mkfs.vfat") {
        return;
    }
    let Some(mut window) = Window::new() else { return };
    // A drive that is served through FUSE, which can be killed.
    fs::write(window.path("drive.img"), vec![0; 64 << 20]).expect("a file");
    let made = window.command("mkfs.vfat").env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin").arg("drive.img").output();
    assert!(made.is_ok_and(|output| output.status.success()), "mkfs.vfat");
    fs::create_dir(window.path("drive")).expect("a folder");
    let drive = window.run(&["mount", "--raw", "--json", "drive.img", "drive"]);
    let drive: serde_json::Value = serde_json::from_str(&drive).expect("JSON");
    let volume = window.volume("drive/v.luks");
    window.harness.state_mut().act(Action::Look(volume));
    window.types(T.password, 0, PASSWORD);
    window.click(T.mount);
    window.sees("v.luks");
    window.until("both are listed", |harness| harness.state().home.mounted.len() == 2);
    let on_drive = |mounted: &&claviger_window::home::Mounted| mounted.volume.ends_with("v.luks");
    let dir = window.harness.state().home.mounted.iter().find(on_drive).and_then(|mounted| mounted.dir.clone());
    let pid = drive["pid"].as_i64().and_then(|pid| rustix::process::Pid::from_raw(pid as i32)).expect("a process");
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("killed");
    // Whoever writes is told so only when it is to be durable, if at all.
    let written = fs::File::create(Path::new(&dir.expect("a folder")).join("letter"))
        .and_then(|mut file| std::io::Write::write_all(&mut file, &[7; 1 << 20]).and_then(|()| file.sync_all()));
    assert!(written.is_err(), "there is nothing to write to");
    window.sees(T.writes_failed);
    window.sees(T.server_gone);
    window.click(T.unmount_all);
    window.sees(T.nothing_mounted);
    window.sees(T.close);
}

/// Favourites are at hand, with their folder and options; a file that cannot be read is told once.
#[test]
fn favourites_are_at_hand() {
    let Some(mut window) = Window::new() else { return };
    fs::write(window.path("favourites.toml"), "[diary]\nvolume = 'd.tc'").expect("a file");
    window.sees("missing field `dir`");
    window.click(T.close);
    window.empty_volume("home/d.tc", "LUKS2", "20M");
    fs::write(window.path("favourites.toml"), "[diary]\nvolume = 'd.tc'\ndir = 'diary'\noptions = ['--read-only']")
        .expect("a file");
    window.click_on(T.open_it, "diary");
    window.until("the page", |harness| matches!(harness.state().page, Page::Open(_)));
    let Page::Open(page) = &window.harness.state().page else { panic!("another page") };
    assert!(page.form.ticked("--read-only") && page.form.text("").ends_with("home/diary"));
    // The folder is made, as `claviger attach` makes it.
    window.types(T.password, 0, "wrong");
    window.click(T.mount);
    window.sees(T.wrong_password);
    assert!(window.path("home/diary").is_dir());
}

/// A file is chosen by the keyboard alone.
#[test]
fn a_file_is_chosen_by_keyboard() {
    let Some(mut window) = Window::new() else { return };
    fs::write(window.path("home/letter.txt"), "dear ".repeat(1000)).expect("a file");
    let reach = |window: &mut Window, name: &str| {
        for _ in 0..60 {
            window.harness.key_press(Key::Tab);
            window.harness.run_steps(2);
            let focused = window.harness.root().children_recursive().find(|node| node.is_focused());
            if focused.is_some_and(|node| node.accesskit_node().label().as_deref() == Some(name)) {
                window.harness.key_press(Key::Space);
                window.harness.run_steps(3);
                return;
            }
        }
        panic!("the keyboard does not reach {name}: {:?}", window.labels());
    };
    window.sees(T.nothing_mounted);
    reach(&mut window, T.open_other);
    reach(&mut window, "letter.txt");
    window.sees(T.is_nothing);
    reach(&mut window, T.back);
    window.sees(T.nothing_mounted);
}

/// At 200 % in a small window everything is within reach: nothing lies beside it, for which there would be no scroll bar.
#[test]
fn pages_fit_a_narrow_window_at_200_percent() {
    let Some(mut window) = Window::new() else { return };
    window.resize(2.0, vec2(360.0, 400.0));
    let fits = |window: &Window| {
        let all = window.harness.root().children_recursive();
        for node in all.filter(|node| node.accesskit_node().raw_bounds().is_some()) {
            let (rect, label) = (node.rect(), text(&node.accesskit_node()));
            assert!(label.is_none() || rect.right() <= 361.0, "{label:?} ends at {rect:?}");
        }
    };
    window.sees(T.nothing_mounted);
    fits(&window);
    window.click(T.create_page);
    window.click(T.experts);
    window.sees(T.expert_title);
    fits(&window);
    window.click(T.guide);
    window.sees(T.what_for);
    fits(&window);
    window.click(T.measure_page);
    window.sees(T.measure_explanation);
    fits(&window);
    let path = window.path("file");
    fs::write(&path, [0; 4096]).expect("a file");
    window.harness.state_mut().act(Action::Look(path));
    window.sees(T.is_nothing);
    fits(&window);
    let key = window.path("key");
    fs::write(&key, "lhetbcnb-vnlfljci-jnvrtgfi-gfeblvjn-blgcrrjj-igkllvgb-btfdeuih-ijebigth\n").expect("a file");
    window.harness.state_mut().page = Page::Recovery(Box::new(Recovery::read(&key).expect("a key")));
    window.sees(T.print_recovery);
    fits(&window);
    window.harness.check_accessibility();
}

/// What is cancelled while it is made is not there, and the page is as it was.
#[test]
fn making_a_volume_is_cancelled() {
    let Some(mut window) = Window::new() else { return };
    window.click(T.create_page);
    window.click(T.experts);
    window.click("TrueCrypt");
    window.types(T.where_to, 0, "large.tc");
    window.types(T.size, 0, "3G");
    window.types(T.new_password, 0, PASSWORD);
    window.types(T.again, 0, PASSWORD);
    window.click(T.create);
    window.sees("%");
    window.click(T.cancel);
    window.sees(T.cancelled);
    assert!(!window.path("home/large.tc").exists(), "it is removed again");
    assert!(matches!(window.harness.state().page, Page::Create(_)), "the page stays");
}

/// The program understands what every form of every format comes to: it fails for want of the volume, and not of the words.
#[test]
fn the_program_understands_every_form() {
    let Some(claviger) = claviger() else { return };
    let programs = Programs::at(claviger.clone(), || {});
    let nowhere = Path::new("/nowhere/v");
    let listed =
        Command::new(&claviger).args(["create", "--list", "--json"]).output().expect("the program starts").stdout;
    let listed = serde_json::from_slice(&listed).expect("JSON");
    let mut create = Create::new(&listed);
    let mut forms = Vec::new();
    for number in 0..create.all.len() {
        create.choose(number, Path::new("/nowhere"), &T);
        let format = create.all[number].format.clone();
        forms.extend(create.form.take());
        let verdict = Verdict { format: Some(format.clone()), ..Verdict::default() };
        let slot = |number: &str| Keyslot { number: number.into(), ..Keyslot::default() };
        let header = Header { format, keyslots: vec![slot("0"), slot("1")], half_way: true };
        let volume = Volume { at: AtHand::chosen(nowhere), verdict, header: Some(header), conversion: None };
        let whole = Volume { header: None, ..volume.clone() };
        for volume in [volume, whole] {
            forms.extend(Change::new(volume, &choices(&listed), Path::new("/nowhere"), &T).forms);
        }
    }
    let candidates = vec!["TrueCrypt".to_owned(), "VeraCrypt".to_owned()];
    for beheaded in [false, true] {
        let format = candidates.first().cloned();
        let verdict = Verdict { format, candidates: candidates.clone(), beheaded, ..Verdict::default() };
        let volume = Volume { at: AtHand::chosen(nowhere), verdict, header: None, conversion: None };
        let mut form = Open::new(volume, &T).form;
        // Those belong to a box that is not ticked.
        form.fields.retain(|field| !field.option.starts_with("--hidden-"));
        forms.push(form);
    }
    assert!(forms.len() > 30, "{}", forms.len());
    for mut form in forms {
        for field in &mut form.fields {
            match &mut field.input {
                Input::Secret(secret) => secret.push("a"),
                Input::NewSecret(first, again) => {
                    [first, again].into_iter().for_each(|secret| secret.push("long enough"))
                }
                Input::Existing(path) => *path = "/nowhere/file".into(),
                Input::Choice(at, all) => *at = all.len() - 1,
                Input::Text(hash) if field.option == "--hash" => *hash = "SHA-512".into(),
                _ => {}
            }
        }
        form.warning = form.warning.map(|(text, _)| (text, true));
        // Further steps of creating are none of the first call's words.
        let call = form
            .call_with(&|option| option.is_empty() || option.starts_with("--"), Path::new("/"))
            .expect("nothing lacks");
        let words = call.text();
        let job = programs.start(call);
        let done = loop {
            match job.done() {
                Some(done) => break done,
                None => std::thread::sleep(Duration::from_millis(2)),
            }
        };
        let said = done.error.clone().unwrap_or_default();
        assert!(!done.ok() && said.contains("/nowhere") && !said.contains("Usage"), "{words:?}: {done:?}");
    }
}
