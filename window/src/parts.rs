//! The parts of pages: cards, rows, notes, and a few widgets that the toolkit lacks.

use eframe::egui::{
    self, Align, Button, Color32, CornerRadius, Frame, Layout, Margin, Rect, Response, RichText, Role, Sense, Stroke,
    StrokeKind, TextStyle, TextWrapMode, Ui, Vec2, WidgetInfo, WidgetText, pos2, vec2,
};

use crate::icons::Icon;
use crate::theme::{self, BUTTON_HEIGHT, CARD_CORNER, CORNER, FOCUS, GRID, Palette};

/// The page's name; each page has one.
pub fn heading(ui: &mut Ui, text: &str) {
    ui.label(RichText::new(text).heading());
    ui.add_space(2.0);
}

/// The name of a part of the page.
pub fn section(ui: &mut Ui, text: &str) {
    ui.add_space(1.5 * GRID);
    ui.label(RichText::new(text).font(theme::small_bold()).color(Palette::of(ui).dim));
}

/// Secondary text.
pub fn dim(ui: &mut Ui, text: &str) -> Response {
    ui.label(RichText::new(text).small().color(Palette::of(ui).dim))
}

pub fn card<R>(ui: &mut Ui, add: impl FnOnce(&mut Ui) -> R) -> R {
    let palette = Palette::of(ui);
    let frame = Frame::new()
        .fill(palette.card)
        .stroke(Stroke::new(1.0, palette.line))
        .corner_radius(CornerRadius::same(CARD_CORNER))
        .inner_margin(Margin::same(16));
    let shown = frame.show(ui, |ui| {
        ui.set_width(ui.available_width());
        add(ui)
    });
    shown.inner
}

/// The line between two rows of a card.
pub fn between_rows(ui: &mut Ui) {
    ui.add_space(4.0);
    let (rect, _) = ui.allocate_exact_size(vec2(ui.available_width(), 1.0), Sense::hover());
    ui.painter().hline(rect.x_range().expand(16.0), rect.center().y, Stroke::new(1.0, Palette::of(ui).line));
    ui.add_space(4.0);
}

/// A state, in a word or two.
pub fn pill(ui: &mut Ui, text: &str, color: Color32) {
    let rich = RichText::new(text).small().color(color);
    let galley = WidgetText::from(rich).into_galley(ui, Some(TextWrapMode::Extend), f32::INFINITY, TextStyle::Small);
    let (rect, response) = ui.allocate_exact_size(galley.size() + vec2(16.0, 4.0), Sense::hover());
    response.widget_info(|| WidgetInfo::labeled(Role::Label, true, text));
    ui.painter().rect_stroke(rect, rect.height() / 2.0, Stroke::new(1.0, color), StrokeKind::Inside);
    ui.painter().galley(rect.min + vec2(8.0, 2.0), galley, color);
}

/// An important message in a coloured box. Screen readers announce it at once.
pub fn note<R>(ui: &mut Ui, icon: Icon, color: Color32, text: &str, more: impl FnOnce(&mut Ui) -> R) -> R {
    let frame = Frame::new()
        .fill(Palette::of(ui).card)
        .stroke(Stroke::new(1.0, color))
        .corner_radius(CornerRadius::same(CORNER))
        .inner_margin(Margin::symmetric(12, 8));
    let shown = frame.show(ui, |ui| {
        ui.set_width(ui.available_width());
        ui.horizontal_top(|ui| {
            icon.draw(ui, 18.0, color);
            ui.vertical(|ui| {
                announced(ui, text, color);
                more(ui)
            })
            .inner
        })
        .inner
    });
    shown.inner
}

/// A text that screen readers announce at once.
pub fn announced(ui: &mut Ui, text: &str, color: Color32) -> Response {
    let label = ui.colored_label(color, text);
    label.ctx.accesskit_node_builder(label.id, |node| node.set_live(egui::accesskit::Live::Polite));
    label
}

pub fn sentence(ui: &mut Ui, text: &str) {
    ui.label(format!("• {text}"));
}

/// The button that the page is for.
pub fn primary(ui: &mut Ui, text: &str, enabled: bool) -> Response {
    let palette = Palette::of(ui);
    let focused = ui.memory(|memory| memory.has_focus(ui.next_auto_id()));
    let ring = if focused { Stroke::new(FOCUS, palette.on_accent) } else { Stroke::new(1.0, palette.accent) };
    let text = RichText::new(text).font(theme::body_bold()).color(palette.on_accent);
    ui.add_enabled(enabled, Button::new(text).fill(palette.accent).stroke(ring).wrap_mode(TextWrapMode::Extend))
}

/// One of several buttons with the same name: screen readers also get its subject.
pub fn about(button: &Response, what: &str) {
    button.ctx.accesskit_node_builder(button.id, |node| node.set_description(what));
}

/// How wide a button with this text becomes.
pub fn button_width(ui: &Ui, text: &str, bold: bool) -> f32 {
    let text = RichText::new(text);
    let text = if bold { text.font(theme::body_bold()) } else { text };
    let galley = WidgetText::from(text).into_galley(ui, Some(TextWrapMode::Extend), f32::INFINITY, TextStyle::Button);
    galley.size().x + 2.0 * ui.spacing().button_padding.x
}

/// How wide a button with three dots is.
pub const MENU_WIDTH: f32 = 40.0;

/// A button that shows a few further ones.
pub fn menu(ui: &mut Ui, name: &str, add: impl FnOnce(&mut Ui)) -> Response {
    let button = Button::new(Icon::Dots.atom(16.0)).min_size(vec2(MENU_WIDTH, BUTTON_HEIGHT));
    let (response, _) = egui::containers::menu::MenuButton::from_button(button).ui(ui, add);
    response.widget_info(|| WidgetInfo::labeled(Role::Button, ui.is_enabled(), name));
    response.on_hover_text(name)
}

/// One of several choices, as a card with a circle.
pub fn radio_card(ui: &mut Ui, chosen: bool, title: &str, explanation: &str) -> Response {
    let palette = Palette::of(ui);
    let (width, left, pad) = (ui.available_width(), 44.0, 12.0);
    let lay = |ui: &Ui, text: RichText, style: TextStyle| {
        WidgetText::from(text).into_galley(ui, Some(TextWrapMode::Wrap), width - left - pad, style)
    };
    let title_text = lay(ui, RichText::new(title).font(theme::body_bold()).color(palette.text), TextStyle::Body);
    let below = (!explanation.is_empty())
        .then(|| lay(ui, RichText::new(explanation).small().color(palette.dim), TextStyle::Small));
    let height = title_text.size().y + below.as_ref().map_or(0.0, |below| below.size().y + 2.0) + 2.0 * pad;
    let (rect, response) = ui.allocate_exact_size(vec2(width, height), Sense::click());
    response.widget_info(|| WidgetInfo::selected(Role::RadioButton, ui.is_enabled(), chosen, title));
    if !explanation.is_empty() {
        about(&response, explanation);
    }
    let edge = match (chosen || response.has_focus(), response.hovered()) {
        (true, _) => Stroke::new(FOCUS, palette.accent),
        (_, true) => Stroke::new(1.0, palette.edge),
        _ => Stroke::new(1.0, palette.line),
    };
    let fill = if response.has_focus() { palette.hover } else { palette.card };
    ui.painter().rect(rect, f32::from(CARD_CORNER), fill, edge, StrokeKind::Inside);
    circle(ui, pos2(rect.left() + 24.0, rect.center().y), chosen);
    let mut at = rect.left_top() + vec2(left, pad);
    let title_height = title_text.size().y;
    ui.painter().galley(at, title_text, palette.text);
    at.y += title_height + 2.0;
    if let Some(below) = below {
        ui.painter().galley(at, below, palette.dim);
    }
    response
}

fn circle(ui: &Ui, center: egui::Pos2, chosen: bool) {
    let palette = Palette::of(ui);
    if chosen {
        ui.painter().circle_filled(center, 9.0, palette.accent);
        ui.painter().circle_filled(center, 3.5, palette.on_accent);
    } else {
        ui.painter().circle(center, 8.5, palette.card, Stroke::new(1.5, palette.edge));
    }
}

/// Something that can be switched on, as a button with a tick.
pub fn chip(ui: &mut Ui, on: &mut bool, text: &str) -> Response {
    let button = if *on { Button::new((Icon::Check.atom(16.0), text)) } else { Button::new(text) };
    let response = ui.add(button.selected(*on));
    *on ^= response.clicked();
    response
}

/// A place in the column of navigation.
pub fn place(ui: &mut Ui, icon: Icon, name: &str, here: bool, narrow: bool) -> Response {
    let palette = Palette::of(ui);
    let (rect, response) = ui.allocate_exact_size(vec2(ui.available_width(), 40.0), Sense::click());
    response.widget_info(|| WidgetInfo::selected(Role::Button, ui.is_enabled(), here, name));
    let (color, font) = match here {
        true => (palette.link, theme::body_bold()),
        false => (palette.text, egui::FontId::proportional(14.0)),
    };
    let below = if here {
        palette.tint
    } else if response.hovered() {
        palette.hover
    } else {
        Color32::TRANSPARENT
    };
    let ring = if response.has_focus() { Stroke::new(FOCUS, palette.accent) } else { Stroke::NONE };
    ui.painter().rect(rect, f32::from(CORNER), below, ring, StrokeKind::Inside);
    let middle = if narrow { rect.center() } else { pos2(rect.left() + 20.0, rect.center().y) };
    icon.paint(ui.painter(), Rect::from_center_size(middle, Vec2::splat(18.0)), color);
    if narrow {
        return response.on_hover_text(name);
    }
    let at = pos2(rect.left() + 40.0, rect.center().y);
    ui.painter().with_clip_rect(rect).text(at, egui::Align2::LEFT_CENTER, name, font, color);
    response
}

/// The progress of work, or just that it continues.
pub fn bar(ui: &mut Ui, share: Option<f32>, height: f32) -> Response {
    let palette = Palette::of(ui);
    let (rect, response) = ui.allocate_exact_size(vec2(ui.available_width(), height), Sense::hover());
    let round = height / 2.0;
    ui.painter().rect_filled(rect, round.min(4.0), palette.track);
    let done = match share {
        Some(share) => rect.with_max_x(rect.left() + (rect.width() * share.clamp(0.0, 1.0)).max(2.0)),
        None => {
            let at = (ui.input(|input| input.time) * 0.6).fract() as f32;
            let from = rect.left() + rect.width() * 0.75 * (1.0 - (2.0 * at - 1.0).abs());
            Rect::from_x_y_ranges(from..=from + rect.width() * 0.25, rect.y_range())
        }
    };
    ui.painter().rect_filled(done, round.min(4.0), palette.accent);
    response
}

/// The edge of a drop area.
pub fn dashes(ui: &Ui, rect: Rect) {
    let stroke = Stroke::new(1.5, Palette::of(ui).edge);
    let (a, b, c, d) = (rect.left_top(), rect.right_top(), rect.right_bottom(), rect.left_bottom());
    ui.painter().extend(egui::Shape::dashed_line(&[a, b, c, d, a], stroke, 6.0, 5.0));
}

/// At the right end of the line.
pub fn at_right<R>(ui: &mut Ui, add: impl FnOnce(&mut Ui) -> R) -> R {
    ui.with_layout(Layout::right_to_left(Align::Center), add).inner
}
