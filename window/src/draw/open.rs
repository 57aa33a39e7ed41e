//! The page of a volume that was chosen.

use eframe::egui::{Align, Ui};

use super::form::form;
use super::{Action, Foot};
use crate::icons::Icon;
use crate::open::{Explained, Open};
use crate::parts::{self, card, dim, section};
use crate::texts::Texts;
use crate::theme::Palette;

pub fn open_foot(open: &Open, texts: &'static Texts) -> Foot {
    let known = open.volume.verdict.format.is_some();
    let mut side = Vec::new();
    if !open.unlocks && (known || open.volume.verdict.partitions.is_empty()) {
        side.push((texts.why_not, Action::Explain));
    }
    if !open.unlocks && known {
        side.push((texts.verify, Action::Verify));
    }
    if !open.unlocks && open.volume.changes() {
        side.push((texts.change_it, Action::Change));
    }
    // If it is not a volume, offer to choose another.
    let primary = if known { (open.form.button, Action::Go) } else { (texts.open_other, Action::Choose(None)) };
    let back = Some((texts.back, Action::Home));
    Foot { side, back, primary: Some(primary), why_not: None, trouble: open.trouble.clone() }
}

pub fn open(ui: &mut Ui, open: &mut Open, layout: Option<&str>, texts: &'static Texts) -> Option<Action> {
    let palette = Palette::of(ui);
    let mut wanted = None;
    parts::heading(ui, &open.form.title.replace("{}", &open.volume.at.name));
    ui.label(&open.volume.verdict.sentence);
    dim(ui, &open.volume.at.path.display().to_string());
    if !open.volume.verdict.partitions.is_empty() {
        section(ui, texts.partitions);
        card(ui, |ui| {
            for partition in &open.volume.verdict.partitions {
                if ui.button(&partition.name).clicked() {
                    wanted = Some(Action::Partition(partition.number));
                }
            }
        });
    }
    if let Some(text) = open.volume.half_way(texts) {
        // A volume in a partition of a disk is resumed only if the partition is a device of its own.
        let whole = open.volume.changes_in_place();
        let goes_on =
            parts::note(ui, Icon::Warning, palette.warning, text, |ui| whole && ui.button(texts.go_on).clicked());
        if goes_on {
            wanted = Some(Action::Change);
        }
    }
    if open.volume.verdict.format.is_some() {
        ui.add_space(4.0);
        card(ui, |ui| wanted = wanted.take().or(form(ui, &mut open.form, layout, texts, &|_| true)));
    }
    if let Some(found) = &open.explained {
        wanted = wanted.or(explained(ui, found, std::mem::take(&mut open.reveal), texts));
    }
    wanted
}

fn explained(ui: &mut Ui, found: &Explained, reveals: bool, texts: &Texts) -> Option<Action> {
    let mut wanted = None;
    section(ui, texts.findings);
    let top = ui.cursor().top();
    card(ui, |ui| {
        found.findings.iter().for_each(|finding| parts::sentence(ui, finding));
        for (what, command) in &found.advice {
            ui.add_space(4.0);
            ui.label(what);
            if let Some(command) = command {
                ui.code(command);
            }
        }
        if found.caps_lock && ui.button(texts.swap_case).clicked() {
            wanted = Some(Action::SwapCase);
        }
    });
    if reveals {
        let rect =
            eframe::egui::Rect::from_min_max(eframe::egui::pos2(ui.min_rect().left(), top - 32.0), ui.min_rect().max);
        ui.scroll_to_rect(rect, Some(Align::Min));
    }
    wanted
}
