//! The desktop's portal: its file dialogs, and its theme. Each test has a session bus of its own.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use claviger_window::app::Page;
use claviger_window::draw::Action;
use claviger_window::portal;
use claviger_window::texts::ENGLISH as T;
use egui_kittest::kittest::NodeT;
use zbus::blocking::{connection::Builder, fdo::DBusProxy};

use crate::common::{Window, text, there};

#[path = "../../examples/portal.rs"]
#[allow(dead_code, reason = "it is a program, too")]
mod desktop;

use desktop::{Asked, Portal};

struct Bus {
    daemon: Child,
    address: String,
    _folder: tempfile::TempDir,
}

impl Bus {
    fn new() -> Option<Self> {
        if !there("dbus-daemon") {
            return None;
        }
        let folder = tempfile::tempdir().expect("a folder");
        let (config, socket) = (folder.path().join("config"), folder.path().join("bus"));
        // It starts no services, such as a real portal.
        let text = format!(
            "<busconfig><type>session</type><listen>unix:path={}</listen><policy context='default'>\
             <allow send_destination='*'/><allow receive_sender='*'/><allow own='*'/></policy></busconfig>",
            socket.display()
        );
        fs::write(&config, text).expect("a file");
        let mut daemon = Command::new("dbus-daemon");
        daemon.args(["--nofork", "--nosyslog", "--print-address"]).arg(format!("--config-file={}", config.display()));
        let mut daemon = daemon.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("a bus");
        let mut address = String::new();
        BufReader::new(daemon.stdout.take().expect("a pipe")).read_line(&mut address).expect("its address");
        Some(Self { daemon, address: address.trim().to_owned(), _folder: folder })
    }

    fn portal(&self, scheme: u32) -> Portal {
        Portal::on(Builder::address(&*self.address).expect("an address"), scheme).expect("a portal")
    }

    fn window(&self) -> Option<Window> {
        Window::on(&T, Some(self.address.clone()))
    }
}

impl Drop for Bus {
    fn drop(&mut self) {
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
    }
}

/// The dialog that is opened next; the window goes on until then.
#[track_caller]
fn dialog(window: &mut Window, portal: &Portal) -> Asked {
    let mut asked = None;
    let seen = std::cell::RefCell::new(&mut asked);
    window.until("a dialog", |_| {
        **seen.borrow_mut() = portal.asked();
        seen.borrow().is_some()
    });
    asked.expect("it was there")
}

fn sees_field(window: &mut Window, value: &str) {
    window.until(value, |harness| {
        harness.root().children_recursive().any(|node| {
            let node = node.accesskit_node();
            node.value().as_deref() == Some(value) || text(&node).as_deref() == Some(value)
        })
    });
}

#[test]
fn a_file_is_chosen_in_the_desktops_dialog() {
    let Some(bus) = Bus::new() else { return };
    let portal = bus.portal(0);
    let Some(mut window) = bus.window() else { return };
    // A volume to open, with blanks and an umlaut in its name.
    let volume = window.empty_volume("home/my däta 100%.luks", "LUKS2", "20M");
    window.click(T.open_other);
    let asked = dialog(&mut window, &portal);
    assert_eq!((asked.method, &*asked.title), ("OpenFile", T.open_other));
    // The window goes on while the dialog is open.
    window.click(T.measure_page);
    window.sees(T.measure_explanation);
    window.click(T.volumes);
    window.click(T.open_other);
    let asked = dialog(&mut window, &portal);
    let folder = window.path("home");
    let uri = format!("file://{}/my%20d%C3%A4ta%20100%25.luks", folder.display());
    portal.answer(&asked, 0, &[&uri]).expect("an answer");
    window.sees("LUKS2.");
    let Page::Open(page) = &window.harness.state().page else { panic!("another page") };
    assert_eq!(page.volume.at.path, volume);

    // Keyfiles may be several, and the mount point is a folder.
    let number = |window: &Window, option: &str| match &window.harness.state().page {
        Page::Open(page) => page.form.fields.iter().position(|field| field.option == option),
        _ => panic!("another page"),
    };
    window.click(T.more);
    let keyfiles = number(&window, "--keyfile");
    window.harness.state_mut().act(Action::Choose(keyfiles));
    let asked = dialog(&mut window, &portal);
    assert!(asked.options.contains_key("multiple"));
    portal.answer(&asked, 0, &["file:///k%201", "file:///k%202"]).expect("an answer");
    window.sees("/k 1");
    window.sees("/k 2");
    let place = number(&window, "");
    window.harness.state_mut().act(Action::Choose(place));
    let asked = dialog(&mut window, &portal);
    assert!(asked.options.contains_key("directory"));
    portal.answer(&asked, 0, &["file:///media/dr%C3%BCben"]).expect("an answer");
    sees_field(&mut window, "/media/drüben");
}

#[test]
fn a_place_for_a_new_file_is_chosen_in_the_desktops_dialog() {
    let Some(bus) = Bus::new() else { return };
    let portal = bus.portal(0);
    let Some(mut window) = bus.window() else { return };
    window.click(T.create_page);
    window.click(T.experts);
    window.types(T.where_to, 0, "~/old name.luks");
    window.click_on(T.choose, T.where_to);
    let asked = dialog(&mut window, &portal);
    assert_eq!((asked.method, &*asked.title), ("SaveFile", T.where_to));
    let name = asked.options["current_name"].downcast_ref::<String>().expect("a name");
    assert_eq!(name, "old name.luks");
    portal.answer(&asked, 0, &["file:///srv/n%C3%B6w%20name.luks"]).expect("an answer");
    sees_field(&mut window, "/srv/nöw name.luks");
    // Cancelled, nothing changes.
    window.click_on(T.choose, T.where_to);
    let asked = dialog(&mut window, &portal);
    portal.answer(&asked, 1, &[]).expect("an answer");
    gone(&mut window, &portal, &asked);
    sees_field(&mut window, "/srv/nöw name.luks");
    assert!(window.harness.state().notice.is_none());
}

/// Waits until the window has closed its side of the dialog.
#[track_caller]
fn gone(window: &mut Window, portal: &Portal, asked: &Asked) {
    let bus = DBusProxy::new(&portal.connection).expect("the bus");
    window.until("the end of the dialog", |_| {
        let there = bus.name_has_owner(asked.by.clone().into());
        !there.expect("an answer")
    });
    window.harness.run_steps(3);
}

#[test]
fn a_dialog_is_closed_with_its_page() {
    let Some(bus) = Bus::new() else { return };
    let portal = bus.portal(0);
    let Some(mut window) = bus.window() else { return };
    window.click(T.open_other);
    let asked = dialog(&mut window, &portal);
    window.click(T.measure_page);
    gone(&mut window, &portal, &asked);
    // An answer that comes too late changes nothing.
    portal.answer(&asked, 0, &["file:///etc/passwd"]).expect("it is sent");
    window.sees(T.measure_explanation);
    assert!(matches!(window.harness.state().page, Page::Measure(_)));
}

#[test]
fn without_a_dialog_the_window_shows_its_own() {
    let Some(bus) = Bus::new() else { return };
    // There is a bus, but no portal.
    let Some(mut window) = bus.window() else { return };
    window.click(T.open_other);
    window.sees(T.choose_explanation);
    window.click(T.back);
    // The portal has no dialog.
    let portal = bus.portal(0);
    window.click(T.open_other);
    let asked = dialog(&mut window, &portal);
    portal.answer(&asked, 2, &[]).expect("an answer");
    window.sees(T.choose_explanation);
    // The column leads to other pages as ever.
    window.click(T.measure_page);
    window.sees(T.measure_explanation);
}

#[test]
fn a_file_of_another_machine_is_refused() {
    let Some(bus) = Bus::new() else { return };
    let portal = bus.portal(0);
    let Some(mut window) = bus.window() else { return };
    for uri in ["sftp://host/v.luks", "file://host/v.luks", "file:///v%00.luks"] {
        window.click(T.open_other);
        let asked = dialog(&mut window, &portal);
        portal.answer(&asked, 0, &[uri]).expect("an answer");
        window.sees(&T.not_local.replace("{}", uri));
        window.click(T.close);
    }
    assert!(matches!(window.harness.state().page, Page::Home));
}

#[test]
fn the_portal_tells_the_theme() {
    let Some(bus) = Bus::new() else { return };
    assert_eq!(portal::dark(&bus.address), None, "there is none");
    for (scheme, dark) in [(1, Some(true)), (2, Some(false)), (0, None)] {
        let _portal = bus.portal(scheme);
        assert_eq!(portal::dark(&bus.address), dark);
    }
    let _portal = bus.portal(1);
    let Some(mut window) = bus.window() else { return };
    window.until("the dark theme", |harness| harness.ctx.theme() == eframe::egui::Theme::Dark);
}
