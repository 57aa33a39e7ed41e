//! The window in a folder of its own, and what people do with it.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use claviger_window::app::{App, Places};
use claviger_window::program::Programs;
use claviger_window::texts::{ENGLISH, Texts};
use eframe::egui::{Key, Modifiers, Vec2, accesskit::Role, vec2};
use egui_kittest::Harness;
use egui_kittest::kittest::{NodeT, Queryable};

pub const PASSWORD: &str = "open sesame";

/// How long anything may take before a test fails.
const PATIENCE: Duration = Duration::from_secs(60);

/// The program beside this one: what `make window-test` has built.
pub fn claviger() -> Option<PathBuf> {
    let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target");
    let target = std::env::var_os("CLAVIGER_TARGET").map_or(target, PathBuf::from);
    let found = ["debug", "release"]
        .into_iter()
        .map(|profile| target.join(profile).join("claviger"))
        .find(|path| path.is_file());
    if found.is_none() {
        skip("there is no program claviger: make window-test builds it");
    }
    found
}

/// Says that a test was not made, and fails where everything has to be there.
pub fn skip(why: &str) {
    assert!(std::env::var("CI").as_deref() != Ok("true"), "{why}");
    eprintln!("SKIPPED: {why}");
}

/// Whether this program is there.
pub fn there(program: &str) -> bool {
    let there = Command::new("sh").args(["-c", &format!("PATH=$PATH:/sbin:/usr/sbin; command -v {program}")]).output();
    let there = there.is_ok_and(|output| output.status.success());
    if !there {
        skip(&format!("there is no {program}"));
    }
    there
}

pub struct Window {
    pub harness: Harness<'static, App>,
    pub folder: tempfile::TempDir,
    claviger: PathBuf,
}

impl Window {
    /// The window, with a home and mounts of its own. Nothing without the program.
    pub fn new() -> Option<Self> {
        Self::with(&ENGLISH)
    }

    /// The same in this language.
    pub fn with(texts: &'static Texts) -> Option<Self> {
        Self::on(texts, None)
    }

    /// The same with a desktop on this session bus.
    pub fn on(texts: &'static Texts, bus: Option<String>) -> Option<Self> {
        let claviger = claviger()?;
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name);
        for name in ["home", "runtime", "sys", "udev"] {
            fs::create_dir(path(name)).expect("a folder");
            fs::set_permissions(path(name), fs::Permissions::from_mode(0o700)).expect("its owner's alone");
        }
        let mut programs = Programs::at(claviger.clone(), || {});
        programs.environment.push(("CLAVIGER_RUNTIME_DIR", path("runtime").into()));
        let (home, favourites) = (path("home"), path("favourites.toml"));
        let places = Places { home, favourites, system: path("sys"), udev: path("udev"), bus };
        let app = App::new(programs, texts, places);
        let harness =
            Harness::builder().with_size(vec2(720.0, 1600.0)).build_ui_state(|ui, app: &mut App| app.draw(ui), app);
        Some(Self { harness, folder, claviger })
    }

    /// Makes it as large as this, at this scale.
    pub fn resize(&mut self, scale: f32, size: Vec2) {
        self.harness.set_pixels_per_point(scale);
        // Otherwise the toolkit keeps the size that it had in pixels.
        self.harness.step();
        self.harness.set_size(size);
        self.harness.step();
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Where the one volume that is open is mounted.
    pub fn mounted_at(&self) -> PathBuf {
        let mounted = &self.harness.state().home.mounted;
        mounted[0].dir.as_ref().expect("it is mounted").into()
    }

    pub fn claviger(&self) -> &Path {
        &self.claviger
    }

    /// A program in the window's folder, with the password in a file there.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        fs::write(self.path("password"), format!("{PASSWORD}\n")).expect("a file");
        let mut command = Command::new(program);
        command.env("CLAVIGER_RUNTIME_DIR", self.path("runtime")).current_dir(self.folder.path());
        command
    }

    /// Runs `claviger`.
    pub fn run(&self, words: &[&str]) -> String {
        let output = self.command(&self.claviger).args(words).output().expect("the program starts");
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// A LUKS2 volume that opens quickly, with a FAT in it.
    pub fn volume(&self, name: &str) -> PathBuf {
        self.volume_of(name, "LUKS2", &["--new-kdf", "pbkdf2", "--new-iterations", "1000"])
    }

    /// The same in this format, with more options.
    pub fn volume_of(&self, name: &str, format: &str, more: &[&str]) -> PathBuf {
        let path = self.path(name);
        let plain = self.path("plain");
        fs::write(&plain, vec![0; 8 << 20]).expect("a file");
        let made = Command::new("mkfs.vfat").env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin").arg(&plain).output();
        assert!(made.is_ok_and(|output| output.status.success()), "mkfs.vfat");
        let (plain, volume) = (plain.display().to_string(), path.display().to_string());
        let words = ["convert", "--raw-source", "--new-format", format, "--new-password-file", "password"];
        self.run(&[&words[..], more, &[&plain, &volume]].concat());
        path
    }

    /// An empty volume that opens quickly.
    pub fn empty_volume(&self, name: &str, format: &str, size: &str) -> PathBuf {
        let cheap: &[&str] = match format {
            "BitLocker" => &["--no-recovery-password"],
            _ => &["--kdf", "pbkdf2", "--iterations", "1000"],
        };
        let words = ["create", "--quick", "--format", format, "--size", size, "--password-file", "password", name];
        self.run(&[&words[..], cheap].concat());
        self.path(name)
    }

    /// Frames until it holds.
    #[track_caller]
    pub fn until(&mut self, what: &str, holds: impl Fn(&Harness<'static, App>) -> bool) {
        let end = Instant::now() + PATIENCE;
        loop {
            self.harness.step();
            if holds(&self.harness) {
                return;
            }
            assert!(Instant::now() < end, "{what} did not come; there is:\n{}", self.labels().join("\n"));
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Waits for something with these words in its name.
    #[track_caller]
    pub fn sees(&mut self, words: &str) {
        self.until(words, |harness| harness.query_all_by(|node| has(node, words)).next().is_some());
    }

    /// Waits until no text is this one.
    #[track_caller]
    pub fn sees_no_more(&mut self, words: &str) {
        let is = |node: &egui_kittest::kittest::AccessKitNode<'_>| text(node).as_deref() == Some(words);
        self.until(&format!("the end of “{words}”"), |harness| harness.query_all_by(is).next().is_none());
    }

    /// Waits for this button, box or page, and clicks on it as a screen reader does.
    #[track_caller]
    pub fn click(&mut self, name: &str) {
        let is = |node: &egui_kittest::kittest::AccessKitNode<'_>| {
            node.role() != Role::Label && node.label().as_deref() == Some(name) && !node.is_disabled()
        };
        self.until(name, |harness| harness.query_all_by(is).next().is_some());
        self.harness.query_all_by(is).next().expect("it was there").click_accesskit();
        self.harness.step();
        self.harness.step();
    }

    /// The same of several buttons of that name: the one that is about this.
    #[track_caller]
    pub fn click_on(&mut self, name: &str, what: &str) {
        let is = |node: &egui_kittest::kittest::AccessKitNode<'_>| {
            node.label().as_deref() == Some(name) && node.description().is_some_and(|it| it.contains(what))
        };
        self.until(&format!("{name} of {what}"), |harness| harness.query_all_by(is).next().is_some());
        self.harness.query_all_by(is).next().expect("it was there").click_accesskit();
        self.harness.run_steps(2);
    }

    /// Types into the `number`th field of this name, one key after the other, instead of what is there.
    #[track_caller]
    pub fn types(&mut self, name: &str, number: usize, text: &str) {
        let is = |node: &egui_kittest::kittest::AccessKitNode<'_>| {
            [Role::PasswordInput, Role::TextInput].contains(&node.role()) && node.label().as_deref() == Some(name)
        };
        self.until(name, |harness| harness.query_all_by(is).nth(number).is_some());
        self.harness.query_all_by(is).nth(number).expect("it was there").focus();
        self.harness.step();
        self.harness.step();
        self.harness.key_press_modifiers(Modifiers::COMMAND, Key::A);
        self.harness.key_press_modifiers(Modifiers::COMMAND, Key::Backspace);
        self.harness.step();
        for letter in text.chars() {
            self.harness.event(eframe::egui::Event::Text(letter.into()));
            self.harness.step();
        }
    }

    pub fn labels(&self) -> Vec<String> {
        self.harness.root().children_recursive().filter_map(|node| text(&node.accesskit_node())).collect()
    }

    /// All that screen readers learn of fields and texts.
    pub fn accessible_data(&self) -> String {
        let nodes = self.harness.root().children_recursive();
        nodes.map(|node| format!("{:?}\n", node.accesskit_node().data())).collect()
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        let mut command = Command::new(&self.claviger);
        let _ = command.env("CLAVIGER_RUNTIME_DIR", self.path("runtime")).args(["unmount", "--all"]).output();
    }
}

/// What is read out: texts have a value, and everything else a name.
pub fn text(node: &egui_kittest::kittest::AccessKitNode<'_>) -> Option<String> {
    if node.role() == Role::Label { node.value() } else { node.label() }
}

fn has(node: &egui_kittest::kittest::AccessKitNode<'_>, words: &str) -> bool {
    text(node).is_some_and(|text| text.contains(words))
}
