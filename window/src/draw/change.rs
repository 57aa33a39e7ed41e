//! What a volume's header says, and what can be changed of it.

use eframe::egui::{Button, RichText, Ui};

use super::form::form;
use super::{Action, Foot};
use crate::change::Change;
use crate::header::Keyslot;
use crate::icons::Icon;
use crate::parts::{self, card, dim, section};
use crate::texts::Texts;
use crate::theme::{self, Palette};

pub fn change_foot(page: &Change, texts: &'static Texts) -> Foot {
    let form = page.forms.get(page.shown);
    let failed = page.result.as_ref().filter(|(good, _)| !good).map(|(_, lines)| lines.join("\n"));
    Foot {
        back: Some((texts.back, Action::Home)),
        primary: form.map(|form| (form.button, Action::Go)),
        trouble: failed,
        ..Foot::default()
    }
}

pub fn change(ui: &mut Ui, page: &mut Change, layout: Option<&str>, texts: &Texts) -> Option<Action> {
    let palette = Palette::of(ui);
    let mut wanted = None;
    parts::heading(ui, texts.change_title);
    ui.label(RichText::new(&page.volume.at.name).font(theme::body_bold()));
    dim(ui, &format!("{} {}", page.volume.verdict.sentence, page.volume.at.path.display()));
    if let Some((true, lines)) = &page.result {
        let note = parts::note(ui, Icon::Check, palette.ok, &lines.join("\n"), |ui| ui.min_rect());
        if std::mem::take(&mut page.reveal) {
            ui.scroll_to_rect(note, Some(eframe::egui::Align::Center));
        }
    }
    if let Some(header) = &page.volume.header {
        wanted = keyslots(ui, &header.keyslots, texts);
    }
    section(ui, texts.what_to_change);
    if page.volume.backs_up_header() {
        dim(ui, texts.backup_first);
    }
    let mut shown = page.shown;
    ui.horizontal_wrapped(|ui| {
        for (number, form) in page.forms.iter().enumerate() {
            if ui.add(Button::new(form.title).selected(number == shown)).clicked() {
                shown = number;
            }
        }
    });
    if shown != page.shown {
        (page.shown, page.result) = (shown, None);
    }
    if let Some(asked) = page.forms.get_mut(page.shown) {
        ui.add_space(4.0);
        card(ui, |ui| wanted = wanted.take().or(form(ui, asked, layout, texts, &|_| true)));
    }
    wanted
}

/// What opens the volume, a row for each.
fn keyslots(ui: &mut Ui, all: &[Keyslot], texts: &Texts) -> Option<Action> {
    let mut wanted = None;
    if all.is_empty() {
        return None;
    }
    section(ui, texts.keyslots);
    card(ui, |ui| {
        for (number, slot) in all.iter().enumerate() {
            if number > 0 {
                parts::between_rows(ui);
            }
            wanted = wanted.take().or(keyslot(ui, slot, all.len() > 1, texts));
        }
    });
    wanted
}

fn keyslot(ui: &mut Ui, slot: &Keyslot, removable: bool, texts: &Texts) -> Option<Action> {
    let mut wanted = None;
    let name = format!("{} {}", texts.keyslot, slot.number);
    // The only one is not removed.
    let buttons = [(texts.change_it, false), (texts.remove_it, true)];
    let buttons: Vec<_> = buttons.into_iter().filter(|(_, remove)| removable || !remove).collect();
    let width: f32 = buttons.iter().map(|(verb, _)| parts::button_width(ui, verb, false) + 8.0).sum();
    let left = ui.available_width() - width;
    ui.horizontal_wrapped(|ui| {
        ui.vertical(|ui| {
            ui.set_width(if left < 180.0 { ui.available_width() } else { left });
            ui.spacing_mut().item_spacing.y = 2.0;
            ui.label(RichText::new(format!("{name}: {}", slot.kind)).font(theme::body_bold()));
            for line in [&slot.derivation, &slot.remarks] {
                if !line.is_empty() {
                    dim(ui, line);
                }
            }
        });
        for (verb, remove) in &buttons {
            let button = ui.button(*verb);
            parts::about(&button, &name);
            if button.clicked() {
                wanted = Some(Action::Keyslot(slot.number.clone(), *remove));
            }
        }
    });
    wanted
}
