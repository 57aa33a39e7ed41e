//! The window itself, on a screen in memory and led by its keyboard. What it has done is asked of the program and of the disk, not of
//! pixels. `make window-screen` runs it: Xvfb and the drivers of its screen are too large for every run of the other tests.

#[path = "it/common.rs"]
#[allow(dead_code, reason = "pages need more of it")]
mod common;

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use common::{PASSWORD, claviger, there};
use serde_json::Value;

/// A screen, a home, and the window that is started there.
struct Screen {
    folder: tempfile::TempDir,
    claviger: PathBuf,
    display: String,
    server: Child,
    window: Option<Child>,
}

impl Screen {
    fn new(claviger: PathBuf) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        for name in ["home", "run", "bin"] {
            fs::create_dir(folder.path().join(name)).expect("a folder");
            fs::set_permissions(folder.path().join(name), fs::Permissions::from_mode(0o700))
                .expect("its owner's alone");
        }
        let mut server = Command::new("Xvfb");
        // It does not begin anew when the last window is closed, which would take the next one along.
        server.args(["-displayfd", "1", "-screen", "0", "760x640x24", "-nolisten", "tcp", "-noreset"]);
        let mut server = server.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("a screen");
        let mut number = String::new();
        BufReader::new(server.stdout.take().expect("a pipe")).read_line(&mut number).expect("its number");
        let screen = Self { folder, claviger, display: format!(":{}", number.trim()), server, window: None };
        // What the window starts is noted with how it ends.
        let script = format!(
            "#!/bin/sh\n{} \"$@\"\ncode=$?\necho \"$1 $code\" >>{}\nexit $code\n",
            screen.claviger.display(),
            screen.path("log").display()
        );
        fs::write(screen.path("bin/claviger"), script).expect("a script");
        fs::set_permissions(screen.path("bin/claviger"), fs::Permissions::from_mode(0o755)).expect("runnable");
        // It takes the program that lies beside it.
        fs::copy(env!("CARGO_BIN_EXE_claviger-window"), screen.path("bin/claviger-window")).expect("a copy");
        fs::write(screen.path("password"), PASSWORD).expect("a file");
        screen
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{}:{path}:/usr/sbin:/sbin", self.path("bin").display()));
        command.env("DISPLAY", &self.display).env_remove("WAYLAND_DISPLAY").env("LIBGL_ALWAYS_SOFTWARE", "1");
        command.env("HOME", self.path("home")).env("XDG_RUNTIME_DIR", self.path("run")).env("LANG", "C.UTF-8");
        command.env("CLAVIGER_RUNTIME_DIR", self.path("run/claviger")).current_dir(self.folder.path());
        // No dialog appears on the desktop that runs the tests.
        command.env_remove("DBUS_SESSION_BUS_ADDRESS");
        command
    }

    fn run(&self, program: impl AsRef<std::ffi::OsStr>, words: &[&str]) -> String {
        let output = self.command(program).args(words).output().expect("it starts");
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Starts the window anew.
    fn open(&mut self, words: &[&str]) {
        self.close();
        let mut window = self.command(self.path("bin/claviger-window"));
        self.window = Some(window.args(words).stderr(Stdio::null()).spawn().expect("the window starts"));
        self.run(
            "timeout",
            &["60", "xdotool", "search", "--sync", "--onlyvisible", "--name", "^Claviger$", "windowfocus", "--sync"],
        );
        self.run("xdotool", &["mousemove", "759", "320"]);
        // Its first frames.
        thread::sleep(Duration::from_secs(3));
    }

    fn close(&mut self) {
        if let Some(mut window) = self.window.take() {
            let _ = window.kill();
            let _ = window.wait();
        }
    }

    fn keys(&self, keys: &str, times: usize) {
        for _ in 0..times {
            self.run("xdotool", &["key", "--delay", "80", keys]);
            thread::sleep(Duration::from_millis(150));
        }
    }

    fn types(&self, text: &str) {
        self.run("xdotool", &["type", "--delay", "80", text]);
        thread::sleep(Duration::from_millis(300));
    }

    fn until(&self, what: &str, holds: impl Fn() -> bool) {
        let end = Instant::now() + Duration::from_secs(60);
        while !holds() {
            assert!(Instant::now() < end, "{what} does not come; {:?}", fs::read_to_string(self.path("log")));
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Waits until the window has called this verb and it has ended so.
    fn ended(&self, verb: &str, code: i32) {
        let line = format!("{verb} {code}");
        let log = || fs::read_to_string(self.path("log")).unwrap_or_default();
        self.until(&line, || log().lines().any(|noted| noted == line));
    }

    fn mounted(&self) -> Vec<Value> {
        let listed: Value = serde_json::from_str(&self.run(&self.claviger, &["list", "--json"])).expect("JSON");
        listed["volumes"].as_array().expect("a list").clone()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.close();
        let _ = self.command(&self.claviger).args(["unmount", "--all"]).output();
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

#[test]
#[ignore = "takes a screen: make window-screen"]
fn the_window_is_led_by_its_keyboard() {
    let programs = ["Xvfb", "xdotool", "fusermount3", "mkfs.vfat"];
    if !programs.into_iter().all(there) {
        return;
    }
    let Some(claviger) = claviger() else { return };
    let mut screen = Screen::new(claviger.canonicalize().expect("a path"));
    let cheap = ["--kdf", "pbkdf2", "--iterations", "1000", "--filesystem", "fat", "--password-file", "password"];
    let create = ["create", "--quick", "--format", "LUKS2", "--size", "24M"];
    screen.run(&screen.claviger, &[&create[..], &cheap[..], &["v.luks"]].concat());

    // A wrong password, and then the right one, typed at once: the field has the keyboard.
    let volume = screen.path("v.luks").display().to_string();
    screen.open(&[&volume]);
    screen.types("wrong");
    screen.keys("Return", 1);
    screen.ended("mount", 2);
    assert!(screen.mounted().is_empty());
    thread::sleep(Duration::from_secs(1));
    screen.keys("BackSpace", "wrong".len());
    screen.types(PASSWORD);
    screen.keys("Return", 1);
    screen.ended("mount", 0);
    let mounted = screen.mounted();
    assert!(mounted.len() == 1 && mounted[0]["volume"] == volume && mounted[0]["state"] == "alive", "{mounted:?}");
    fs::write(Path::new(mounted[0]["dir"].as_str().expect("a folder")).join("letter"), "dear").expect("a file");

    // Three places, the folder, and unmounting.
    screen.open(&[]);
    screen.keys("Tab", 5);
    screen.keys("space", 1);
    screen.ended("unmount", 0);
    assert!(screen.mounted().is_empty());
    let words = ["cat", "--password-file", "password", "v.luks", ":/letter"];
    assert_eq!(screen.run(&screen.claviger, &words), "dear");

    // Creating an encrypted folder, step by step: the last place but one, and the fifth purpose behind it.
    screen.open(&[]);
    screen.keys("Tab", 2);
    screen.keys("space", 1);
    screen.ended("create", 0);
    thread::sleep(Duration::from_secs(1));
    screen.keys("Tab", 6);
    screen.keys("space", 1);
    // All options, and the button that goes on.
    screen.keys("Tab", 2);
    screen.keys("space", 1);
    thread::sleep(Duration::from_secs(1));
    // Where: the name is there already, and the button keeps the keyboard. Then the password, which has it, and everything once more.
    screen.keys("space", 1);
    thread::sleep(Duration::from_secs(1));
    screen.types(PASSWORD);
    screen.keys("Tab", 2);
    screen.types(PASSWORD);
    screen.keys("Return", 1);
    thread::sleep(Duration::from_secs(1));
    screen.keys("Tab", 6);
    screen.keys("space", 1);
    screen.until("the folder", || {
        fs::read_to_string(screen.path("log")).is_ok_and(|log| log.matches("create 0").count() == 2)
    });
    assert!(screen.path("home/private").is_dir());
}
