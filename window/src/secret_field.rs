//! A field for a password. What is typed goes character by character into locked memory, and is wiped from the events that brought it:
//! the toolkit's own fields keep strings, their history, and tell screen readers their value.

use claviger_crypto::Secret;
use claviger_crypto::password_strength::{PasswordStrength, guesses_log10};
use eframe::egui::{self, Button, Event, Key, Response, RichText, Role, Sense, Ui, WidgetInfo};

use crate::icons::Icon;
use crate::texts::Texts;
use crate::theme::{self, FIELD_HEIGHT, LINE, Palette};

/// The longest password, in bytes: as the program takes it from a terminal.
const MOST: usize = 1024;

/// A password that is being typed.
pub struct SecretField {
    bytes: Secret,
    len: usize,
    /// How many guesses it withstands, as a power of ten, once that was asked.
    guesses: Option<f64>,
    /// Whether the next key replaces it.
    selected: bool,
    /// Whether it is shown.
    pub shown: bool,
    /// Whether it gets the keyboard when it is next drawn.
    pub focus: bool,
}

impl Default for SecretField {
    fn default() -> Self {
        Self { bytes: Secret::zeroed(MOST), len: 0, guesses: None, selected: false, shown: false, focus: false }
    }
}

impl std::fmt::Debug for SecretField {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SecretField")
    }
}

impl SecretField {
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// A copy of it.
    pub fn secret(&self) -> Secret {
        Secret::copy_from(self.bytes())
    }

    pub fn same_as(&self, other: &Self) -> bool {
        self.secret().same_as(other.bytes())
    }

    /// Forgets it.
    pub fn clear(&mut self) {
        self.bytes.fill(0);
        (self.len, self.guesses, self.selected) = (0, None, false);
    }

    /// Selects it, with the keyboard in it: what is typed next replaces it.
    pub fn select(&mut self) {
        (self.selected, self.focus) = (!self.is_empty(), true);
    }

    /// Swaps capital and small letters, as Caps Lock does.
    pub fn swap_case(&mut self) {
        let typed = self.secret();
        self.clear();
        for character in std::str::from_utf8(&typed).unwrap_or_default().chars() {
            // What has no single other letter stays, as `claviger explain` has it.
            let swapped = match character.is_lowercase() {
                true => only(character.to_uppercase()),
                false => only(character.to_lowercase()),
            };
            self.put(swapped.unwrap_or(character));
        }
    }

    /// How strong it is if somebody makes `per_second` guesses; `None` while it is empty.
    pub fn strength(&mut self, per_second: f64) -> Option<PasswordStrength> {
        let Self { bytes, len, guesses, .. } = self;
        let guesses = guesses.get_or_insert_with(|| guesses_log10(&bytes[..*len]));
        (*len > 0).then(|| PasswordStrength::new(*guesses, per_second))
    }

    /// Whether it looks as if Caps Lock were on: letters, and all of them large.
    pub fn all_capitals(&self) -> bool {
        let letters = || self.bytes().iter().filter(|byte| byte.is_ascii_alphabetic());
        letters().count() > 3 && letters().all(u8::is_ascii_uppercase)
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// Takes as much as there is room for, without control characters: a line that is pasted may end with a newline.
    pub fn push(&mut self, text: &str) {
        for character in text.chars().filter(|character| !character.is_control()) {
            if self.selected {
                self.clear();
            }
            self.put(character);
        }
    }

    fn put(&mut self, character: char) {
        let mut room = [0; 4];
        let bytes = character.encode_utf8(&mut room).as_bytes();
        let end = self.len + bytes.len();
        if end <= MOST {
            self.bytes[self.len..end].copy_from_slice(bytes);
            (self.len, self.guesses) = (end, None);
        }
        claviger_crypto::secret::wipe_stack();
    }

    /// Removes the last character.
    fn pop(&mut self) {
        let start = self.bytes().iter().rposition(|byte| byte & 0xc0 != 0x80).unwrap_or(0);
        self.bytes[start..].fill(0);
        (self.len, self.guesses) = (start, None);
    }

    fn characters(&self) -> usize {
        self.bytes().iter().filter(|byte| *byte & 0xc0 != 0x80).count()
    }

    /// Draws it with its name, the button that shows it, and its hints. Returns whether Enter was pressed in it.
    pub fn draw(&mut self, ui: &mut Ui, label: &str, texts: &Texts) -> bool {
        let name = ui.label(RichText::new(label).font(theme::small_bold()));
        let mut enter = false;
        ui.horizontal_wrapped(|ui| {
            let field = self.field(ui, label, texts).labelled_by(name.id);
            enter = field.has_focus() && ui.input(|input| input.key_pressed(Key::Enter));
            let button = Button::new(texts.show).selected(self.shown).min_size(egui::vec2(0.0, FIELD_HEIGHT));
            let button = ui.add(button);
            crate::parts::about(&button, label);
            self.shown ^= button.clicked();
        });
        if self.all_capitals() {
            let palette = Palette::of(ui);
            ui.horizontal(|ui| {
                Icon::Warning.draw(ui, 16.0, palette.warning);
                ui.colored_label(palette.warning, texts.capitals);
            });
        }
        enter
    }

    fn field(&mut self, ui: &mut Ui, label: &str, texts: &Texts) -> Response {
        let button = crate::parts::button_width(ui, texts.show, false) + ui.spacing().item_spacing.x;
        let width = (ui.available_width().min(LINE) - button).max(120.0).min(ui.available_width());
        let size = egui::vec2(width, FIELD_HEIGHT);
        let (rect, response) = ui.allocate_exact_size(size, Sense::click());
        self.selected &= !response.clicked();
        if response.clicked() || std::mem::take(&mut self.focus) {
            response.request_focus();
        }
        if response.has_focus() {
            self.take_events(ui);
        }
        // Neither what it holds nor how long it is.
        response.widget_info(|| WidgetInfo::labeled(Role::PasswordInput, ui.is_enabled(), label));
        let visuals = ui.style().interact(&response);
        let stroke = visuals.bg_stroke;
        let painter = ui.painter().with_clip_rect(rect);
        painter.rect(rect, visuals.corner_radius, ui.visuals().extreme_bg_color, stroke, egui::StrokeKind::Inside);
        let (color, left) = (ui.visuals().text_color(), rect.left_center() + egui::vec2(10.0, 0.0));
        let behind = painter.add(egui::Shape::Noop);
        let end = match (self.shown, std::str::from_utf8(self.bytes())) {
            (true, Ok(text)) => letters(&painter, left, text, &egui::FontId::monospace(14.0), color),
            _ => {
                let dots = self.characters() as f32;
                let step = (rect.width() - 24.0).min(dots * 10.0) / dots.max(1.0);
                for dot in 0..self.characters() {
                    painter.circle_filled(left + egui::vec2(step * (dot as f32 + 0.5), 0.0), 3.0, color);
                }
                left.x + step * dots
            }
        };
        if self.selected {
            let selected =
                egui::Rect::from_x_y_ranges(left.x - 2.0..=end.min(rect.right() - 6.0) + 2.0, rect.y_range());
            let shape =
                egui::Shape::rect_filled(selected.shrink2(egui::vec2(0.0, 7.0)), 0.0, ui.visuals().selection.bg_fill);
            painter.set(behind, shape);
        }
        if response.has_focus() {
            let line = egui::Rangef::new(rect.top() + 8.0, rect.bottom() - 8.0);
            painter.vline(end.min(rect.right() - 4.0) + 2.0, line, (1.5, color));
        }
        response
    }

    /// Takes what was typed or pasted out of the events, of which the toolkit keeps two lists, and wipes it there.
    fn take_events(&mut self, ui: &Ui) {
        ui.input_mut(|input| {
            for event in &mut input.events {
                match event {
                    Event::Text(text) | Event::Paste(text) | Event::Ime(egui::ImeEvent::Commit(text)) => {
                        self.push(text);
                        wipe(text);
                    }
                    Event::Key { key: Key::Backspace, pressed: true, modifiers, .. } if modifiers.command => {
                        self.clear()
                    }
                    Event::Key { key: Key::Backspace | Key::Delete, pressed: true, .. } if self.selected => {
                        self.clear()
                    }
                    Event::Key { key: Key::Backspace, pressed: true, .. } => self.pop(),
                    Event::Key { key: Key::A, pressed: true, modifiers, .. } if modifiers.command => self.select(),
                    Event::Key { key: Key::ArrowLeft | Key::ArrowRight | Key::End, pressed: true, .. } => {
                        self.selected = false;
                    }
                    _ => {}
                }
            }
            for event in &mut input.raw.events {
                if let Event::Text(text) | Event::Paste(text) | Event::Ime(egui::ImeEvent::Commit(text)) = event {
                    wipe(text);
                }
            }
        });
    }
}

fn only(mut letters: impl Iterator<Item = char>) -> Option<char> {
    letters.next().filter(|_| letters.next().is_none())
}

/// Draws a secret, each letter by itself: a text that the toolkit lays out stays in its cache. Returns where it ends.
pub fn letters(
    painter: &egui::Painter,
    left: egui::Pos2,
    text: &str,
    font: &egui::FontId,
    color: egui::Color32,
) -> f32 {
    let mut x = left.x;
    for letter in text.chars() {
        let at = egui::pos2(x, left.y);
        x = painter.text(at, egui::Align2::LEFT_CENTER, letter, font.clone(), color).right();
    }
    x
}

/// Overwrites the bytes of a string, its spare room included.
fn wipe(text: &mut String) {
    drop(Secret::from_vec(std::mem::take(text).into_bytes()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_come_and_go_whole() {
        let mut field = SecretField::default();
        field.push("aß€𝄞\n");
        assert_eq!((field.bytes(), field.characters()), ("aß€𝄞".as_bytes(), 4));
        for left in ["aß€", "aß", "a", "", ""] {
            field.pop();
            assert_eq!(field.bytes(), left.as_bytes());
        }
        assert!(field.bytes.iter().all(|byte| *byte == 0), "what is deleted is wiped");
        field.push(&"€".repeat(MOST));
        assert_eq!((field.len, field.characters()), (MOST / 3 * 3, MOST / 3));
        field.clear();
        assert!(field.is_empty() && field.bytes.iter().all(|byte| *byte == 0));
    }

    #[test]
    fn the_strength_is_that_of_what_is_typed_now() {
        let mut field = SecretField::default();
        assert_eq!(field.strength(1.0), None);
        field.push("summer201");
        let before = field.strength(1.0).expect("it is typed");
        field.push("v8Kq2xTz0bLm4Rw7");
        let long = field.strength(1.0).expect("it is typed");
        assert!(before.verdict < long.verdict && field.strength(1e30).expect("it is typed").verdict < long.verdict);
        "v8Kq2xTz0bLm4Rw7".chars().for_each(|_| field.pop());
        assert_eq!(field.strength(1.0), Some(before));
        field.clear();
        assert_eq!(field.strength(1.0), None);
    }

    #[test]
    fn what_is_selected_is_replaced() {
        let mut field = SecretField::default();
        field.push("wrong");
        field.select();
        field.push("\n");
        assert_eq!(field.bytes(), b"wrong", "nothing was typed");
        field.push("ri");
        field.push("ght");
        assert_eq!(field.bytes(), b"right");
        field.clear();
        field.select();
        field.push("a");
        field.push("b");
        assert_eq!(field.bytes(), b"ab", "nothing was selected");
    }

    #[test]
    fn capitals_and_small_letters_are_swapped() {
        let mut field = SecretField::default();
        field.push("oPEN sÉSAME 1ß");
        field.swap_case();
        assert_eq!(field.bytes(), "Open Sésame 1ß".as_bytes());
    }

    #[test]
    fn capitals_are_noticed() {
        let capitals = |text| {
            let mut field = SecretField::default();
            field.push(text);
            field.all_capitals()
        };
        assert!(capitals("SESAME 1") && !capitals("SESAMe 1") && !capitals("ABC") && !capitals("1234"));
    }
}
