//! A new volume: four steps, or all choices at once.

use eframe::egui::{ComboBox, RichText, Stroke, Ui, vec2};

use super::form::{caption, form};
use super::{Action, Foot};
use crate::create::{self, Create, STEPS};
use crate::parts::{self, card, chip, dim, radio_card, section, sentence};
use crate::texts::Texts;
use crate::theme::{self, GRID, Palette};

pub fn create_foot(page: &Create, texts: &'static Texts) -> Foot {
    let trouble = page.trouble.clone();
    if page.expert.is_some() {
        let side = vec![(texts.guide, Action::Expert(None))];
        return Foot { side, primary: Some((texts.create, Action::Go)), trouble, ..Foot::default() };
    }
    let side = vec![(texts.experts, Action::Expert(Some(page.usual())))];
    let back = (page.step > 0).then_some((texts.back, Action::Previous));
    let last = page.step + 1 == STEPS;
    let primary = if last { (texts.create, Action::Go) } else { (texts.next, Action::Next) };
    Foot { side, back, primary: Some(primary), why_not: None, trouble }
}

pub fn create(ui: &mut Ui, page: &mut Create, layout: Option<&str>, texts: &Texts) -> Option<Action> {
    parts::heading(ui, texts.create_title);
    if let Some(at) = page.expert {
        return expert(ui, page, at, layout, texts);
    }
    steps(ui, page.step, texts);
    let step = page.step;
    match step {
        0 => questions(ui, page, texts),
        3 => review(ui, page, texts),
        _ => {
            if step == 1 {
                recommended(ui, page, texts);
            }
            let asked = page.form.as_mut()?;
            let action = card(ui, |ui| form(ui, asked, layout, texts, &|field| create::step_of(field) == step));
            // Enter in the password goes on.
            action.map(|action| if action == Action::Go { Action::Next } else { action })
        }
    }
}

/// All options of a format on one page.
fn expert(ui: &mut Ui, page: &mut Create, at: usize, layout: Option<&str>, texts: &Texts) -> Option<Action> {
    let mut wanted = None;
    dim(ui, texts.expert_title);
    section(ui, texts.format);
    ui.horizontal_wrapped(|ui| {
        for (number, choices) in page.all.iter().enumerate() {
            if ui.radio(number == at, &choices.format).clicked() {
                wanted = Some(Action::Expert(Some(number)));
            }
        }
    });
    if let Some(asked) = &mut page.form {
        ui.add_space(4.0);
        card(ui, |ui| wanted = wanted.take().or(form(ui, asked, layout, texts, &|_| true)));
    }
    wanted
}

/// Which of the four steps is shown.
fn steps(ui: &mut Ui, at: usize, texts: &Texts) {
    let palette = Palette::of(ui);
    let names: [&str; STEPS] = [texts.step_purpose, texts.step_place, texts.step_password, texts.step_review];
    let narrow = ui.available_width() < 480.0;
    ui.horizontal_top(|ui| {
        let width = (ui.available_width() - 3.0 * GRID) / STEPS as f32;
        for (number, name) in names.into_iter().enumerate() {
            ui.vertical(|ui| {
                ui.set_width(width);
                let (rect, _) = ui.allocate_exact_size(vec2(width, 4.0), eframe::egui::Sense::hover());
                let color = if number <= at { palette.accent } else { palette.track };
                ui.painter().hline(rect.x_range(), rect.center().y, Stroke::new(3.0, color));
                if narrow {
                    return;
                }
                let text = RichText::new(format!("{} {name}", number + 1));
                let text = match number == at {
                    true => text.font(theme::small_bold()).color(palette.link),
                    false => text.small().color(palette.dim),
                };
                ui.add(eframe::egui::Label::new(text).wrap());
            });
        }
    });
    if narrow {
        let text = format!("{} {}", at + 1, names[at]);
        ui.label(RichText::new(text).font(theme::small_bold()).color(palette.link));
    }
    ui.add_space(4.0);
}

/// What it is for, and against whom.
fn questions(ui: &mut Ui, page: &mut Create, texts: &Texts) -> Option<Action> {
    section(ui, texts.what_for);
    // In the order of `create::PURPOSES`; the encrypted folder comes last.
    let purposes: [(&str, &str); create::PURPOSES.len() + 1] = [
        (texts.few_files, texts.few_files_more),
        (texts.external, texts.external_more),
        (texts.laptop, texts.laptop_more),
        (texts.desktop, texts.desktop_more),
        (texts.folder_instead, texts.folder_more),
    ];
    for (number, (name, more)) in purposes.into_iter().enumerate() {
        if radio_card(ui, page.purpose == number, name, more).clicked() {
            page.purpose = number;
        }
    }
    if page.purpose == create::A_FOLDER {
        return None;
    }
    section(ui, texts.shared_with);
    ui.horizontal_wrapped(|ui| {
        for (on, name) in page.shared.iter_mut().zip(["Windows", "macOS"]) {
            chip(ui, on, name);
        }
    });
    ui.add_space(GRID);
    let name = caption(ui, texts.against);
    let threats: [&str; create::THREATS.len()] =
        [texts.theft, texts.repair, texts.coercion, texts.evil_maid, texts.cloud];
    let chosen = ComboBox::from_id_salt("threats").width(320.0_f32.min(ui.available_width()));
    let chosen = chosen.selected_text(threats[page.threat]).show_ui(ui, |ui| {
        for (number, name) in threats.into_iter().enumerate() {
            ui.selectable_value(&mut page.threat, number, name);
        }
    });
    chosen.response.labelled_by(name.id);
    None
}

/// What fits the answers, and why.
fn recommended(ui: &mut Ui, page: &Create, texts: &Texts) {
    let Some(it) = &page.recommended else { return };
    card(ui, |ui| {
        ui.label(RichText::new(format!("{}: {}", texts.recommended, it.format)).font(theme::body_bold()));
        dim(ui, &it.title);
        ui.collapsing(texts.reasons, |ui| {
            it.reasons.iter().chain(&it.remarks).for_each(|reason| sentence(ui, reason));
            if !it.against.is_empty() {
                ui.label(texts.speaks_against);
                it.against.iter().for_each(|reason| sentence(ui, reason));
            }
        });
    });
}

/// Everything once more, before it is done.
fn review(ui: &mut Ui, page: &Create, texts: &Texts) -> Option<Action> {
    section(ui, texts.review_title);
    card(ui, |ui| {
        for (number, (name, value)) in page.review(texts).into_iter().enumerate() {
            if number > 0 {
                parts::between_rows(ui);
            }
            ui.horizontal_wrapped(|ui| {
                ui.label(RichText::new(name).color(Palette::of(ui).dim));
                ui.label(RichText::new(value).font(theme::body_bold()));
            });
        }
    });
    dim(ui, texts.review_explanation);
    None
}
