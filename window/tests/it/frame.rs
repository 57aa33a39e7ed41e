//! What holds for every page: its most important button is on the screen, and what is missing is said where it is missing.

use std::fs;

use claviger_window::app::Page;
use claviger_window::draw::Action;
use claviger_window::texts::{ENGLISH as T, GERMAN, Texts};
use eframe::egui::{Key, Rect, Vec2, accesskit::Role, vec2};
use egui_kittest::kittest::NodeT;

use crate::common::{PASSWORD, Window, text};

/// A window of 760 × 600 pixels, at 100 and at 200 %.
const SCREENS: [(f32, Vec2); 2] = [(1.0, vec2(760.0, 600.0)), (2.0, vec2(380.0, 300.0))];

/// Where the thing of this name is drawn, if it is one that can be used.
fn place(window: &Window, name: &str) -> Option<Rect> {
    let all = window.harness.root().children_recursive();
    let named = |node: &egui_kittest::Node<'_>| {
        let node = node.accesskit_node();
        node.role() == Role::Button && node.label().as_deref() == Some(name) && !node.is_disabled()
    };
    all.filter(named).map(|node| node.rect()).next()
}

fn screen(size: Vec2) -> Rect {
    Rect::from_min_size(eframe::egui::Pos2::ZERO, size).expand(1.0)
}

#[track_caller]
fn shows(window: &mut Window, size: Vec2, name: &str) {
    window.until(name, |harness| {
        harness.root().children_recursive().any(|node| node.accesskit_node().label().as_deref() == Some(name))
    });
    window.harness.run_steps(3);
    let place = place(window, name).unwrap_or_else(|| panic!("{name} cannot be used"));
    assert!(screen(size).contains_rect(place), "{name} is at {place:?}");
    window.harness.check_accessibility();
}

#[test]
fn the_primary_button_is_on_the_screen_of_every_page() {
    for texts in [&T, &GERMAN] {
        for (scale, size) in SCREENS {
            let Some(window) = Window::with(texts) else { return };
            every_page(window, texts, scale, size);
        }
    }
}

fn every_page(mut window: Window, texts: &'static Texts, scale: f32, size: Vec2) {
    window.resize(scale, size);
    let volume = window.empty_volume("v.luks", "LUKS2", "20M");
    let act = |window: &mut Window, action| window.harness.state_mut().act(action);
    shows(&mut window, size, texts.open_other);
    act(&mut window, Action::Choose(None));
    shows_disabled_or_not(&mut window, size, texts.take);
    act(&mut window, Action::Chosen(None));
    act(&mut window, Action::Look(volume));
    shows(&mut window, size, texts.mount);
    act(&mut window, Action::Change);
    shows(&mut window, size, texts.change);
    act(&mut window, Action::Home);
    act(&mut window, Action::Measure);
    shows(&mut window, size, texts.measure);
    act(&mut window, Action::Create);
    shows(&mut window, size, texts.next);
    act(&mut window, Action::Expert(Some(0)));
    shows(&mut window, size, texts.create);
    act(&mut window, Action::Expert(None));
    let Page::Create(page) = &mut window.harness.state_mut().page else { panic!("another page") };
    page.purpose = claviger_window::create::A_FOLDER;
    act(&mut window, Action::Next);
    shows(&mut window, size, texts.next);
    act(&mut window, Action::Next);
    window.harness.run_steps(3);
    // Nothing was typed: it says so at the field, in sight.
    act(&mut window, Action::Next);
    window.until(texts.is_missing, |harness| {
        let complaint =
            |node: &egui_kittest::Node<'_>| text(&node.accesskit_node()).as_deref() == Some(texts.is_missing);
        let all = harness.root().children_recursive();
        all.filter(complaint).any(|node| screen(size).contains_rect(node.rect()))
    });
    for number in 0..2 {
        let name = [texts.new_password, texts.again][number];
        window.types(name, 0, PASSWORD);
    }
    act(&mut window, Action::Next);
    shows(&mut window, size, texts.create);
}

#[track_caller]
fn shows_disabled_or_not(window: &mut Window, size: Vec2, name: &str) {
    window.until(name, |harness| {
        let named = |node: &egui_kittest::Node<'_>| node.accesskit_node().label().as_deref() == Some(name);
        harness.root().children_recursive().filter(named).any(|node| screen(size).contains_rect(node.rect()))
    });
}

/// What was not given is told at its field as long as it lacks; a failure of the program stands in the bar.
#[test]
fn what_lacks_is_told_at_its_field() {
    let Some(mut window) = Window::new() else { return };
    window.harness.set_size(vec2(760.0, 600.0));
    let volume = window.empty_volume("v.luks", "LUKS2", "20M");
    window.harness.state_mut().act(Action::Look(volume));
    window.click(T.change_it);
    window.sees(T.change_title);
    window.click(T.change);
    window.sees(T.is_missing);
    window.types(T.password, 0, "wrong");
    window.sees_no_more(T.is_missing);
    window.types(T.new_password, 0, "new");
    window.click(T.change);
    window.sees(T.not_the_same);
    window.types(T.again, 0, "new");
    window.click(T.change);
    window.sees(T.wrong_password);
}

/// What lacks behind *More options* is shown, even if they were closed again; a keyfile of the outer volume does not stand for it.
#[test]
fn what_lacks_behind_more_options_is_shown() {
    let Some(mut window) = Window::new() else { return };
    let (volume, keyfile) = (window.path("noise"), window.path("home/key"));
    let mut noise = vec![0; 1 << 20];
    fs::File::open("/dev/urandom")
        .and_then(|mut file| std::io::Read::read_exact(&mut file, &mut noise))
        .expect("noise");
    fs::write(&volume, noise).expect("a file");
    fs::write(&keyfile, "key").expect("a file");
    window.harness.state_mut().act(Action::Look(volume));
    window.click(T.more);
    window.click(T.protect_hidden);
    window.harness.state_mut().act(Action::Choose(Some(1)));
    window.click("key");
    window.sees(&keyfile.display().to_string());
    window.click(T.more);
    window.sees_no_more(T.hidden_keyfiles);
    window.click(T.mount);
    window.sees(T.is_missing);
    window.sees(T.hidden_keyfiles);
}

/// A long task goes on while another page is looked at, is seen in the column, and is come back to.
#[test]
fn a_long_task_is_left_and_come_back_to() {
    let Some(mut window) = Window::new() else { return };
    let volume = window.empty_volume("v.luks", "LUKS2", "1G");
    window.harness.state_mut().act(Action::Look(volume));
    window.click(T.change_it);
    window.click(T.reencrypt);
    window.types(T.password, 0, PASSWORD);
    window.click(T.understood);
    window.click(T.begin);
    window.sees("%");
    window.click(T.measure_page);
    window.sees(T.measure_explanation);
    assert!(!window.harness.state().at_work(), "it is not this page's");
    // The column names it.
    window.click(T.reencrypt);
    window.sees("%");
    assert!(window.harness.state().at_work());
    window.click(T.create_page);
    window.sees(T.what_for);
    window.until("the end", |harness| harness.state().has_finished_elsewhere());
    window.click(T.reencrypt);
    window.sees(T.done);
    assert!(matches!(&window.harness.state().page, Page::Change(page) if page.volume.header.is_some()));
}

/// Opening goes on while another page is looked at, and leaves no page behind.
#[test]
fn opening_is_left_and_ends_in_the_list() {
    if !crate::common::there("fusermount3") || !crate::common::there("mkfs.vfat") {
        return;
    }
    let Some(mut window) = Window::new() else { return };
    let create = ["create", "--quick", "--format", "LUKS2", "--size", "24M", "--filesystem", "fat"];
    let slow = ["--kdf", "pbkdf2", "--iterations", "20000000", "--password-file", "password", "v.luks"];
    window.run(&[&create[..], &slow[..]].concat());
    let volume = window.path("v.luks");
    window.harness.state_mut().act(Action::Look(volume));
    window.types(T.password, 0, PASSWORD);
    window.click(T.mount);
    window.sees(T.mounting);
    window.click(T.measure_page);
    window.sees("“v.luks” is mounted at /");
    window.sees_no_more(T.mounting);
    assert!(!window.harness.state().has_finished_elsewhere(), "its page is closed");
    window.click(T.volumes);
    // The window has finished asking for it.
    window.sees(" used");
    // Unmounting is left in the same way, even for the list of volumes itself.
    let dir = window.mounted_at();
    let app = window.harness.state_mut();
    app.act(Action::Unmount(dir.clone()));
    app.act(Action::Home);
    assert!(!app.at_work(), "it is not this page's");
    window.click(T.measure_page);
    window.sees(&T.unmounted.replace("{}", &dir.display().to_string()));
    window.sees_no_more(T.unmounting);
    window.click(T.volumes);
    window.sees(T.nothing_mounted);
}

/// A line below a new password says how strong it is, in both languages, and fits every screen.
#[test]
fn a_new_password_is_judged() {
    for texts in [&T, &GERMAN] {
        for (scale, size) in SCREENS {
            let Some(mut window) = Window::with(texts) else { return };
            window.resize(scale, size);
            window.click(texts.create_page);
            window.click(texts.experts);
            for (password, verdict) in [("summer2019", texts.weak), ("v8Kq2xTz0bLm4Rw7", texts.strong)] {
                window.types(texts.new_password, 0, password);
                window.until(verdict, |harness| {
                    let judged = |node: &egui_kittest::Node<'_>| {
                        text(&node.accesskit_node()).is_some_and(|text| text.starts_with(&format!("{verdict}: ")))
                    };
                    let all = harness.root().children_recursive();
                    all.filter(judged).any(|node| node.rect().left() >= 0.0 && node.rect().right() <= size.x + 1.0)
                });
            }
            assert!(!window.accessible_data().contains("v8Kq2xTz0bLm4Rw7"), "no password is announced");
            window.harness.check_accessibility();
            // Nothing typed, nothing said; the same where a PIM sets another cost.
            let silent = |window: &Window| !window.labels().iter().any(|label| label.contains(texts.stronger));
            window.types(texts.new_password, 0, "");
            assert!(silent(&window), "{:?}", window.labels());
            window.click("VeraCrypt");
            window.types(texts.new_password, 0, "summer2019");
            window.sees(texts.stronger);
            window.click(texts.more);
            window.types(texts.pim, 0, "20");
            window.harness.run_steps(2);
            assert!(silent(&window), "{:?}", window.labels());
        }
    }
}

/// What cannot be done is not offered: an encrypted folder has no keys that could be forgotten alone.
#[test]
fn only_what_can_be_locked_offers_it() {
    if !crate::common::there("fusermount3") {
        return;
    }
    let Some(mut window) = Window::new() else { return };
    fs::create_dir(window.path("home/plain")).expect("a folder");
    window.run(&["create", "--format", "eCryptfs", "--password-file", "password", "home/secret"]);
    let mount = ["mount", "--format", "eCryptfs", "--password-file", "password", "home/secret", "home/plain"];
    window.run(&mount);
    window.sees(T.open_folder);
    window.sees("eCryptfs");
    assert!(!window.labels().contains(&T.more_actions.to_owned()), "{:?}", window.labels());
}

/// The button that goes on keeps the keyboard from step to step: pressed again, it never does something else.
#[test]
fn the_keyboard_stays_with_the_button_that_goes_on() {
    let Some(mut window) = Window::new() else { return };
    window.click(T.create_page);
    window.click(T.folder_instead);
    let focused = |window: &Window| {
        let node = window.harness.root().children_recursive().find(|node| node.is_focused());
        node.and_then(|node| node.accesskit_node().label())
    };
    for _ in 0..40 {
        if focused(&window).as_deref() == Some(T.next) {
            break;
        }
        window.harness.key_press(Key::Tab);
        window.harness.run_steps(2);
    }
    window.harness.key_press(Key::Space);
    window.harness.run_steps(3);
    window.sees(T.folder_explanation);
    assert_eq!(focused(&window).as_deref(), Some(T.next));
    window.harness.key_press(Key::Space);
    window.harness.run_steps(3);
    // The password is typed at once.
    window.sees(T.again);
    assert_eq!(focused(&window).as_deref(), Some(T.new_password));
}
