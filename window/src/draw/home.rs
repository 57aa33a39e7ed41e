//! The first page.

use std::path::PathBuf;

use eframe::egui::{Align, Button, Color32, Response, RichText, Ui, vec2};

use super::{Action, Foot};
use crate::home::{AtHand, Home, Kind, Mounted, State, Why};
use crate::icons::Icon;
use crate::parts::{self, between_rows, card, dim, section};
use crate::texts::Texts;
use crate::theme::{self, GRID, Palette};

/// What a row shows.
struct Row<'a> {
    kind: Kind,
    name: &'a str,
    pill: Option<(&'a str, Color32)>,
    facts: String,
    trouble: Option<&'a str>,
    /// What the buttons are about.
    about: &'a str,
    buttons: Vec<(&'a str, Action)>,
    /// The rest, behind one more button.
    more: Vec<(&'a str, Action)>,
}

pub fn home_foot(home: &Home, texts: &'static Texts) -> Foot {
    let unmount_all = (home.mounted.len() > 1).then_some((texts.unmount_all, Action::UnmountAll));
    // The desktop's dialog shows files alone.
    let side = unmount_all.into_iter().chain([(texts.folder_or_device, Action::Browse(None))]).collect();
    Foot { side, primary: Some((texts.open_other, Action::Choose(None))), ..Foot::default() }
}

pub fn home(ui: &mut Ui, home: &Home, texts: &Texts) -> Option<Action> {
    let mut wanted = None;
    parts::heading(ui, texts.volumes);
    section(ui, texts.mounted);
    card(ui, |ui| {
        if home.mounted.is_empty() {
            dim(ui, texts.nothing_mounted);
        }
        for (number, mounted) in home.mounted.iter().enumerate() {
            if number > 0 {
                between_rows(ui);
            }
            wanted = wanted.take().or(row(ui, &one_mounted(ui, mounted, home, texts), texts));
        }
    });
    section(ui, texts.at_hand);
    card(ui, |ui| {
        if home.at_hand.is_empty() {
            dim(ui, texts.nothing_at_hand);
        }
        for (number, volume) in home.at_hand.iter().enumerate() {
            if number > 0 {
                between_rows(ui);
            }
            let path = volume.path.display().to_string();
            wanted = wanted.take().or(row(ui, &one_at_hand(ui, number, volume, &path, texts), texts));
        }
    });
    ui.add_space(GRID);
    let height = 56.0;
    let (rect, _) = ui.allocate_exact_size(vec2(ui.available_width(), height), eframe::egui::Sense::hover());
    parts::dashes(ui, rect);
    let text = RichText::new(texts.drop_here).color(Palette::of(ui).dim);
    ui.place(rect.shrink(GRID), eframe::egui::Label::new(text).wrap().halign(Align::Center));
    wanted
}

fn one_mounted<'a>(ui: &Ui, mounted: &'a Mounted, home: &Home, texts: &'a Texts) -> Row<'a> {
    let palette = Palette::of(ui);
    let dir = mounted.dir.as_ref().map(PathBuf::from);
    let volume = PathBuf::from(&mounted.volume);
    let target = dir.clone().unwrap_or(volume.clone());
    let unmount = Action::Unmount(target);
    let (mut buttons, mut more) = (Vec::new(), Vec::new());
    match mounted.state {
        State::Open => {
            buttons.extend(dir.map(|dir| (texts.open_folder, Action::OpenFolder(dir))));
            buttons.push((texts.unmount, unmount));
            if mounted.lockable {
                more.push((texts.lock, Action::Lock(volume)));
            }
        }
        State::Locked => buttons.push((texts.unlock, Action::Unlock(volume))),
        State::Silent => buttons.push((texts.unmount, unmount)),
        State::Dead => buttons.push((texts.clean_up, unmount)),
    }
    let pill = match (mounted.state, &mounted.trouble) {
        (State::Locked, _) => (texts.locked, palette.warning),
        (State::Open, None) if mounted.dir.is_some() => (texts.is_mounted, palette.ok),
        (State::Open, None) => (texts.is_served, palette.ok),
        _ => (texts.needs_attention, palette.warning),
    };
    Row {
        kind: mounted.kind,
        name: mounted.name(),
        pill: Some(pill),
        facts: mounted.facts(home.usage.of(mounted), texts),
        trouble: mounted.trouble.as_deref(),
        about: &mounted.volume,
        buttons,
        more,
    }
}

fn one_at_hand<'a>(ui: &Ui, number: usize, volume: &'a AtHand, path: &'a str, texts: &'a Texts) -> Row<'a> {
    let why = match volume.why {
        Why::Favourite => Some(texts.favourite),
        Why::Recent => Some(texts.recent),
        // Its icon and facts say so.
        Why::Drive => None,
    };
    let facts =
        [volume.facts.as_str(), path].into_iter().filter(|fact| !fact.is_empty()).collect::<Vec<_>>().join(" · ");
    Row {
        kind: volume.kind,
        name: &volume.name,
        pill: why.map(|why| (why, Palette::of(ui).dim)),
        facts,
        trouble: None,
        about: &volume.name,
        buttons: vec![(texts.open_it, Action::AtHand(number))],
        more: Vec::new(),
    }
}

fn icon(kind: Kind) -> Icon {
    match kind {
        Kind::Container => Icon::Container,
        Kind::Disk => Icon::Disk,
        Kind::Stick => Icon::Stick,
        Kind::Folder => Icon::Folder,
        Kind::Network => Icon::Network,
    }
}

fn row(ui: &mut Ui, row: &Row<'_>, texts: &Texts) -> Option<Action> {
    let palette = Palette::of(ui);
    let gap = ui.spacing().item_spacing.x;
    let buttons: f32 = row.buttons.iter().map(|(name, _)| parts::button_width(ui, name, false) + gap).sum();
    let buttons = buttons + if row.more.is_empty() { 0.0 } else { parts::MENU_WIDTH + gap };
    let (left, beside) = (ui.available_width() - 36.0 - 1.5 * GRID, 200.0);
    let stacked = left - buttons < beside;
    let mut wanted = None;
    let text = |ui: &mut Ui, width: f32| {
        ui.vertical(|ui| {
            ui.set_width(width);
            ui.spacing_mut().item_spacing.y = 2.0;
            ui.horizontal_wrapped(|ui| {
                ui.label(RichText::new(row.name).font(theme::body_bold()));
                if let Some((text, color)) = row.pill {
                    parts::pill(ui, text, color);
                }
            });
            dim(ui, &row.facts);
            if let Some(trouble) = row.trouble {
                parts::announced(ui, trouble, palette.warning);
            }
        });
    };
    ui.horizontal_top(|ui| {
        icon(row.kind).draw_in_square(ui, palette.tint, palette.link);
        ui.add_space(4.0);
        text(ui, if stacked { left - gap } else { left - buttons });
        if !stacked {
            wanted = ui.horizontal(|ui| row_buttons(ui, row, texts)).inner;
        }
    });
    if stacked {
        ui.horizontal_wrapped(|ui| wanted = row_buttons(ui, row, texts));
    }
    wanted
}

fn row_buttons(ui: &mut Ui, row: &Row<'_>, texts: &Texts) -> Option<Action> {
    let mut wanted = None;
    let mut take = |button: &Response, action: &Action| {
        parts::about(button, row.about);
        if button.clicked() {
            wanted = Some(action.clone());
        }
    };
    for (name, action) in &row.buttons {
        take(&ui.button(*name), action);
    }
    if !row.more.is_empty() {
        let button = parts::menu(ui, texts.more_actions, |ui| {
            for (name, action) in &row.more {
                take(&ui.add(Button::new(*name)), action);
            }
        });
        parts::about(&button, row.about);
    }
    wanted
}
