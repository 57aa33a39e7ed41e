//! How fast the ciphers are, and the lab.

use eframe::egui::{
    self, Align2, ComboBox, FontId, Grid, Rect, RichText, Role, ScrollArea, Sense, Ui, WidgetInfo, vec2,
};

use super::form::{caption, form};
use super::{Action, Foot};
use crate::icons::Icon;
use crate::measure::{BUFFERS, Measure, Row};
use crate::parts::{self, card, dim, section, sentence};
use crate::texts::Texts;
use crate::theme::{self, GRID, Palette};

pub fn measure_foot(page: &Measure, texts: &'static Texts) -> Foot {
    let primary = match page.at {
        Some(_) => (texts.cancel, Action::Cancel),
        None if page.rows.is_empty() => (texts.measure, Action::BeginMeasuring),
        None => (texts.measure_again, Action::BeginMeasuring),
    };
    Foot { primary: Some(primary), trouble: page.trouble.clone(), ..Foot::default() }
}

pub fn measure(ui: &mut Ui, page: &mut Measure, texts: &Texts) -> Option<Action> {
    parts::heading(ui, texts.measure_title);
    dim(ui, texts.measure_explanation);
    ui.horizontal_wrapped(|ui| {
        let name = caption(ui, texts.buffer);
        let chosen = ComboBox::from_id_salt(texts.buffer).width(110.0).selected_text(BUFFERS[page.buffer]);
        let chosen = chosen.show_ui(ui, |ui| {
            for (number, size) in BUFFERS.into_iter().enumerate() {
                ui.selectable_value(&mut page.buffer, number, size);
            }
        });
        chosen.response.labelled_by(name.id);
        ui.add_space(GRID);
        ui.checkbox(&mut page.aes, texts.aes_instructions);
    });
    section(ui, texts.ciphers);
    card(ui, |ui| bars(ui, page, texts));
    section(ui, texts.lab_title);
    lab(ui, page, texts)
}

/// A line for each cipher, its bar, and its speed.
fn bars(ui: &mut Ui, page: &Measure, texts: &Texts) {
    if page.rows.is_empty() && page.at.is_none() {
        dim(ui, texts.not_measured);
    }
    for row in &page.rows {
        let both = format!(
            "{} {}, {} {}",
            texts.encryption,
            Row::speed(row.encrypt),
            texts.decryption,
            Row::speed(row.decrypt)
        );
        bar(ui, row, page.share(row)).on_hover_text(both);
    }
    if let Some(at) = page.at {
        let cipher = page.ciphers.get(at).map_or("", String::as_str);
        ui.horizontal_wrapped(|ui| {
            ui.spinner();
            ui.label(format!("{} {}/{}: {cipher}", texts.measuring, at + 1, page.ciphers.len()));
        });
    }
}

fn bar(ui: &mut Ui, row: &Row, share: f32) -> egui::Response {
    let palette = Palette::of(ui);
    let narrow = ui.available_width() < 420.0;
    let height = if narrow { 44.0 } else { 24.0 };
    let (rect, response) = ui.allocate_exact_size(vec2(ui.available_width(), height), Sense::hover());
    let said = format!("{}: {} ({})", row.cipher, Row::speed(row.mean), row.kernel);
    response.widget_info(|| WidgetInfo::labeled(Role::ProgressIndicator, true, &said));
    let (names, speeds) = if narrow { (0.0, 0.0) } else { (230.0, 96.0) };
    let top = Rect::from_min_size(rect.min, vec2(rect.width(), 24.0));
    let font = FontId::proportional(14.0);
    let painter = ui.painter().with_clip_rect(rect);
    let name = painter.text(top.left_center(), Align2::LEFT_CENTER, &row.cipher, font, palette.text);
    // The way it is computed, where there is room for it.
    let kernel = painter.layout_no_wrap(row.kernel.clone(), FontId::proportional(12.5), palette.dim);
    if !narrow && name.width() + kernel.size().x + 3.0 * GRID < names {
        let at = name.right_center() + vec2(GRID, 1.0 - kernel.size().y / 2.0);
        painter.galley(at, kernel, palette.dim);
    }
    painter.text(top.right_center(), Align2::RIGHT_CENTER, Row::speed(row.mean), theme::body_bold(), palette.text);
    let track = if narrow {
        Rect::from_min_size(rect.min + vec2(0.0, 26.0), vec2(rect.width(), 12.0))
    } else {
        let from = rect.left() + names;
        Rect::from_x_y_ranges(from..=rect.right() - speeds, rect.center().y - 7.0..=rect.center().y + 7.0)
    };
    ui.painter().rect_filled(track, 4.0, palette.track);
    let reached = track.with_max_x(track.left() + (track.width() * share).max(3.0));
    ui.painter().rect_filled(reached, 4.0, palette.accent);
    response
}

/// What encryption costs whole programs.
fn lab(ui: &mut Ui, page: &mut Measure, texts: &Texts) -> Option<Action> {
    let palette = Palette::of(ui);
    let mut wanted = None;
    card(ui, |ui| {
        if let Some(run) = &page.interrupted {
            let text = format!("{} {}", texts.lab_interrupted, run.display());
            let goes_on = parts::note(ui, Icon::Warning, palette.warning, &text, |ui| ui.button(texts.go_on).clicked());
            if goes_on {
                wanted = Some(Action::Resume(run.clone()));
            }
        }
        if let Some(found) = &page.found {
            if ui.button(texts.open_report).clicked() {
                wanted = Some(Action::OpenFolder(found.page.clone()));
            }
            found.remarks.iter().for_each(|remark| sentence(ui, remark));
            let titles: Vec<_> = std::iter::once(String::new()).chain(found.facilities.iter().cloned()).collect();
            table(ui, "lab", &titles, &found.rows, |ui, (what, figures)| {
                ui.label(what);
                figures.iter().for_each(|figure| drop(ui.label(figure)));
            });
        }
        wanted = wanted.take().or(form(ui, &mut page.lab, None, texts, &|_| true));
        ui.add_space(4.0);
        if ui.button(page.lab.button).clicked() {
            wanted = Some(Action::Go);
        }
    });
    wanted
}

/// A table, which may be wider than the window.
fn table<R>(ui: &mut Ui, id: &str, titles: &[String], rows: &[R], mut draw: impl FnMut(&mut Ui, &R)) {
    ScrollArea::horizontal().id_salt(id).show(ui, |ui| {
        Grid::new(id).spacing(vec2(2.0 * GRID, 4.0)).show(ui, |ui| {
            titles.iter().for_each(|title| drop(ui.label(RichText::new(title).font(theme::small_bold()))));
            ui.end_row();
            for row in rows {
                draw(ui, row);
                ui.end_row();
            }
        });
    });
}
