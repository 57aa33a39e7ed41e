//! Choosing a file, a folder or a device.

use std::path::Path;

use eframe::egui::{Button, Ui, vec2};

use super::form::text_field;
use super::{Action, Foot};
use crate::chooser::Chooser;
use crate::icons::Icon;
use crate::parts::{self, card, dim};
use crate::texts::Texts;
use crate::theme::LINE;

pub fn chooser_foot(chooser: &Chooser, texts: &'static Texts) -> Foot {
    let chosen = chooser.chosen();
    Foot {
        back: Some((texts.back, Action::Chosen(None))),
        why_not: chosen.is_none().then_some(texts.nothing_there),
        primary: Some((texts.take, Action::Chosen(chosen))),
        ..Foot::default()
    }
}

pub fn chooser(ui: &mut Ui, chooser: &mut Chooser, home: &Path, texts: &Texts) -> Option<Action> {
    let (mut wanted, mut go) = (None, None);
    parts::heading(ui, texts.choose_title);
    dim(ui, texts.choose_explanation);
    ui.horizontal_wrapped(|ui| {
        let up = chooser.parent().map(|parent| (Icon::Up, texts.up, parent));
        let places = [(Icon::House, texts.home_folder, home.to_owned()), (Icon::Disk, texts.devices, "/dev".into())];
        for (icon, name, place) in up.into_iter().chain(places) {
            if ui.add(Button::new((icon.atom(16.0), name))).clicked() {
                go = Some(place);
            }
        }
    });
    text_field(ui, texts.path, &mut chooser.text, LINE);
    chooser.look();
    ui.add_space(4.0);
    card(ui, |ui| {
        ui.spacing_mut().item_spacing.y = 0.0;
        if chooser.entries.is_empty() {
            dim(ui, texts.empty_folder);
        }
        for entry in &chooser.entries {
            let name = if entry.folder { format!("{}/", entry.name) } else { entry.name.clone() };
            let icon = if entry.folder { Icon::Folder } else { Icon::File };
            let button = Button::new((icon.atom(16.0), name)).frame_when_inactive(false).truncate();
            if ui.add(button.min_size(vec2(ui.available_width(), 0.0))).clicked() {
                match entry.folder {
                    true => go = Some(entry.path.clone()),
                    false => wanted = Some(Action::Chosen(Some(entry.path.clone()))),
                }
            }
        }
    });
    if let Some(place) = go {
        chooser.go(&place);
    }
    wanted
}
