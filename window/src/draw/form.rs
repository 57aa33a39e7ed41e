//! The questions of a form, each with its error.

use claviger_crypto::password_strength::{PasswordStrength, StrengthVerdict};
use eframe::egui::{self, Button, CollapsingHeader, ComboBox, Margin, Response, RichText, TextEdit, Ui};

use super::Action;
use crate::form::{Field, Form, Input};
use crate::icons::Icon;
use crate::parts::{self, dim};
use crate::secret_field::SecretField;
use crate::strength;
use crate::texts::Texts;
use crate::theme::{self, FIELD_HEIGHT, LINE, Palette};

/// The visible questions. Those that few people need take one more click, on a button elsewhere.
pub fn form(
    ui: &mut Ui,
    form: &mut Form,
    layout: Option<&str>,
    texts: &Texts,
    wanted: &dyn Fn(&Field) -> bool,
) -> Option<Action> {
    let mut action = None;
    if !form.explanation.is_empty() {
        dim(ui, form.explanation);
    }
    let numbers: Vec<usize> = (0..form.fields.len()).filter(|number| wanted(&form.fields[*number])).collect();
    let (more, first): (Vec<usize>, Vec<usize>) = numbers.into_iter().partition(|number| form.fields[*number].more);
    for number in first {
        action = action.or(field(ui, form, number, layout, texts));
    }
    if !more.is_empty() {
        let lacks = form.reveal && more.iter().any(|number| form.complaint(*number, texts).is_some());
        CollapsingHeader::new(texts.more).open(lacks.then_some(true)).show(ui, |ui| {
            for number in more {
                action = action.take().or(field(ui, form, number, layout, texts));
            }
        });
    }
    if let Some((warning, agreed)) = form.warning {
        let palette = Palette::of(ui);
        let mut agrees = agreed;
        let asked =
            parts::note(ui, Icon::Warning, palette.warning, warning, |ui| ui.checkbox(&mut agrees, texts.understood));
        form.warning = Some((warning, agrees));
        if let Some(complaint) = form.asks_for_consent(texts) {
            let reveals = std::mem::take(&mut form.reveal);
            complain(ui, &complaint, reveals);
            if reveals {
                asked.request_focus();
            }
        }
    }
    action
}

fn field(ui: &mut Ui, form: &mut Form, number: usize, layout: Option<&str>, texts: &Texts) -> Option<Action> {
    let complaint = form.complaint(number, texts);
    let reveals = complaint.is_some() && std::mem::take(&mut form.reveal);
    let per_second = form.guesses_per_second();
    let field = &mut form.fields[number];
    let (label, hint) = (field.label, field.hint.clone());
    let mut wanted = None;
    ui.add_space(4.0);
    match &mut field.input {
        Input::Text(text) => {
            let drawn = text_field(ui, label, text, 240.0);
            if reveals {
                drawn.request_focus();
            }
        }
        Input::New(text) | Input::Existing(text) | Input::Folder(text) => {
            let (drawn, chooses) = path_field(ui, label, text, texts);
            if reveals {
                drawn.request_focus();
            }
            wanted = chooses.then_some(Action::Choose(Some(number)));
        }
        Input::Paths(paths) => {
            caption(ui, label);
            let mut gone = None;
            for (at, path) in paths.iter().enumerate() {
                ui.horizontal_wrapped(|ui| {
                    ui.label(path.display().to_string());
                    gone = gone.or(ui.button(texts.remove).clicked().then_some(at));
                });
            }
            gone.map(|at| paths.remove(at));
            wanted = ui.button(format!("{}: {}", texts.add, label)).clicked().then_some(Action::Choose(Some(number)));
        }
        Input::Choice(at, all) => {
            let name = caption(ui, label);
            let shown = all.get(*at).map_or("", |(_, shown)| shown.as_str()).to_owned();
            let chosen = ComboBox::from_id_salt((label, number)).selected_text(shown).show_ui(ui, |ui| {
                for (number, (_, shown)) in all.iter().enumerate() {
                    ui.selectable_value(at, number, shown);
                }
            });
            chosen.response.labelled_by(name.id);
        }
        Input::Check(on) => {
            ui.checkbox(on, label);
        }
        Input::Secret(secret) => {
            secret.focus |= reveals;
            let enter = secret.draw(ui, label, texts);
            layout_hint(ui, layout, texts);
            wanted = enter.then_some(Action::Go);
        }
        Input::NewSecret(secret, again) => {
            // Either the first password is missing, or the second one differs.
            let first = secret.is_empty();
            secret.focus |= reveals && first;
            again.focus |= reveals && !first;
            secret.draw(ui, label, texts);
            if let Some(strength) = per_second.and_then(|per_second| secret.strength(per_second)) {
                strength_line(ui, &strength, texts);
            }
            layout_hint(ui, layout, texts);
            again.shown = secret.shown;
            let enter = SecretField::draw(again, ui, texts.again, texts);
            secret.shown = again.shown;
            wanted = enter.then_some(Action::Go);
        }
    }
    if let Some(hint) = hint {
        dim(ui, &hint);
    }
    if let Some(complaint) = complaint {
        complain(ui, &complaint, reveals);
    }
    wanted
}

/// What is missing, at its field; the page goes there.
fn complain(ui: &mut Ui, text: &str, reveals: bool) {
    let complaint = parts::announced(ui, text, Palette::of(ui).danger);
    if reveals {
        complaint.scroll_to_me(Some(egui::Align::Center));
    }
}

/// The name of a field, above it.
pub fn caption(ui: &mut Ui, label: &str) -> Response {
    ui.label(RichText::new(label).font(theme::small_bold()))
}

/// How strong a new password is. It is not announced at each key press: screen readers find it below the field.
fn strength_line(ui: &mut Ui, strength: &PasswordStrength, texts: &Texts) {
    let line = strength::line(strength, texts);
    if strength.verdict > StrengthVerdict::Weak {
        dim(ui, &line);
        return;
    }
    let palette = Palette::of(ui);
    ui.horizontal_wrapped(|ui| {
        Icon::Warning.draw(ui, 16.0, palette.warning);
        ui.colored_label(palette.warning, line);
    });
}

fn layout_hint(ui: &mut Ui, layout: Option<&str>, texts: &Texts) {
    if let Some(layout) = layout {
        dim(ui, &format!("{} {layout}", texts.layout));
    }
}

pub fn text_field(ui: &mut Ui, label: &str, text: &mut String, width: f32) -> Response {
    let name = caption(ui, label);
    edit(ui, text, width).labelled_by(name.id)
}

fn edit(ui: &mut Ui, text: &mut String, width: f32) -> Response {
    let width = ui.available_width().min(width);
    let edit = TextEdit::singleline(text).desired_width(width).margin(Margin::symmetric(10, 8));
    ui.add(edit.min_size(egui::vec2(width, FIELD_HEIGHT)).align(egui::Align2::LEFT_CENTER))
}

/// A path that is typed or chosen.
fn path_field(ui: &mut Ui, label: &str, text: &mut String, texts: &Texts) -> (Response, bool) {
    let name = caption(ui, label);
    let button = parts::button_width(ui, texts.choose, false) + ui.spacing().item_spacing.x;
    let width = ui.available_width().min(LINE) - button;
    // In a narrow window below it.
    let drawn = ui.horizontal_wrapped(|ui| {
        let width = if width < 160.0 { ui.available_width() } else { width };
        let drawn = edit(ui, text, width).labelled_by(name.id);
        let button = ui.add(Button::new(texts.choose).min_size(egui::vec2(0.0, FIELD_HEIGHT)));
        parts::about(&button, label);
        (drawn, button.clicked())
    });
    drawn.inner
}
