//! The program `claviger-window`: a window over `claviger`.
#![forbid(unsafe_code)]

use std::path::PathBuf;

use claviger_window::app::{App, Places};
use claviger_window::draw::Action;
use claviger_window::program::Programs;
use claviger_window::texts;
use eframe::egui::ViewportBuilder;

fn main() -> eframe::Result {
    // Passwords are typed here: no core dump, and no other process of this user looks into it.
    let _ = rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable);
    let chosen = std::env::args_os().nth(1).map(PathBuf::from);
    if chosen.as_deref().is_some_and(|word| word.as_os_str() == "--version") {
        println!("claviger-window {}", env!("CARGO_PKG_VERSION"));
        return Ok(());
    }
    // The name is that of the .desktop file, so that the desktop finds the icon.
    let viewport = ViewportBuilder::default()
        .with_app_id("io.github.claviger.Claviger")
        .with_inner_size([760.0, 640.0])
        .with_min_inner_size([320.0, 240.0]);
    let options = eframe::NativeOptions { viewport, ..Default::default() };
    let start = |creation: &eframe::CreationContext<'_>| {
        let told = creation.egui_ctx.clone();
        let programs = Programs::find(move || told.request_repaint());
        let mut app = App::new(programs, texts::of_environment(), Places::usual());
        if let Some(path) = chosen.and_then(|path| std::path::absolute(path).ok()) {
            app.act(Action::Look(path));
        }
        Ok(Box::new(app) as Box<dyn eframe::App>)
    };
    eframe::run_native("Claviger", options, Box::new(start))
}
