//! The program `claviger-window`: a window over `claviger`.
#![forbid(unsafe_code)]

use std::io::Write;
use std::process::ExitCode;
use std::thread;

use claviger_window::app::{App, Places};
use claviger_window::draw::Action;
use claviger_window::program::Programs;
use claviger_window::texts::Texts;
use claviger_window::words::{self, IO, Words};
use claviger_window::{desktop, texts};
use eframe::egui::ViewportBuilder;

fn main() -> ExitCode {
    // Passwords are typed here: no core dump, and no other process of this user looks into it.
    let _ = rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable);
    let texts = texts::of_environment();
    let chosen = match words::understood(std::env::args_os().skip(1), texts) {
        Words::Open(chosen) => chosen,
        Words::Say(text) => {
            let said = writeln!(std::io::stdout(), "{text}");
            return if said.is_ok() { ExitCode::SUCCESS } else { ExitCode::from(IO) };
        }
        Words::Refuse(text, code) => return refuse(&text, code),
    };
    let screen =
        ["WAYLAND_DISPLAY", "WAYLAND_SOCKET", "DISPLAY"].into_iter().any(|name| std::env::var_os(name).is_some());
    if !screen {
        return no_window(&texts.no_screen, texts);
    }
    // The window is created in the meantime.
    let fonts = thread::spawn(desktop::fonts);
    // The name is that of the .desktop file, so that the desktop finds the icon.
    let viewport = ViewportBuilder::default()
        .with_app_id("io.github.claviger.Claviger")
        .with_inner_size([960.0, 680.0])
        .with_min_inner_size([320.0, 240.0]);
    let options = eframe::NativeOptions { viewport, ..Default::default() };
    let start = |creation: &eframe::CreationContext<'_>| {
        let told = creation.egui_ctx.clone();
        let programs = Programs::find(move || told.request_repaint());
        let fonts = fonts.join().unwrap_or_default();
        let mut app = App::new(programs, texts, Places::usual()).with_fonts(fonts);
        if let Some(path) = chosen {
            app.act(Action::Look(path));
        }
        Ok(Box::new(app) as Box<dyn eframe::App>)
    };
    match eframe::run_native("Claviger", options, Box::new(start)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => no_window(&e, texts),
    }
}

fn no_window(why: &dyn std::fmt::Display, texts: &Texts) -> ExitCode {
    refuse(&format!("claviger-window: {}: {why}\n{}", texts.no_window, texts.without_window), IO)
}

fn refuse(text: &str, code: u8) -> ExitCode {
    let _ = writeln!(std::io::stderr(), "{text}");
    ExitCode::from(code)
}
