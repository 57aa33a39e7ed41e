//! A new recovery key, to be copied, scanned or printed.

use eframe::egui::{Color32, FontId, Rect, Role, Sense, Ui, WidgetInfo, pos2, vec2};

use super::{Action, Foot};
use crate::parts::{self, card, dim};
use crate::recovery::Recovery;
use crate::secret_field::letters;
use crate::texts::Texts;

/// The light modules around a code (ISO/IEC 18004, 6.3.8).
const QUIET: usize = 4;

/// The width of the code, in points.
const WIDTH: f32 = 240.0;

pub fn recovery_foot(texts: &'static Texts) -> Foot {
    Foot { primary: Some((texts.close, Action::Home)), ..Foot::default() }
}

pub fn recovery(ui: &mut Ui, page: &Recovery, texts: &Texts) -> Option<Action> {
    parts::heading(ui, texts.recovery_title);
    ui.label(texts.print_recovery);
    dim(ui, &page.file.display().to_string());
    ui.add_space(4.0);
    card(ui, |ui| {
        ui.horizontal_wrapped(|ui| {
            code(ui, page, texts);
            ui.add_space(12.0);
            text(ui, page, texts);
        });
    });
    None
}

/// Black on white in any theme, as readers expect it.
fn code(ui: &mut Ui, page: &Recovery, texts: &Texts) {
    let (rect, response) = ui.allocate_exact_size(vec2(WIDTH, WIDTH), Sense::hover());
    response.widget_info(|| WidgetInfo::labeled(Role::Image, true, texts.qr_code));
    ui.painter().rect_filled(rect, 0.0, Color32::WHITE);
    let size = WIDTH / (page.side + 2 * QUIET) as f32;
    for (y, x) in (0..page.side).flat_map(|y| (0..page.side).map(move |x| (y, x))) {
        if page.is_dark(x, y) {
            let at = rect.min + vec2((x + QUIET) as f32, (y + QUIET) as f32) * size;
            ui.painter().rect_filled(Rect::from_min_size(at, vec2(size, size)), 0.0, Color32::BLACK);
        }
    }
}

/// Screen readers announce only the title. The key itself is in the file.
fn text(ui: &mut Ui, page: &Recovery, texts: &Texts) {
    let (lines, height, font) = (page.lines().count(), 24.0, FontId::monospace(16.0));
    let (rect, response) = ui.allocate_exact_size(vec2(220.0, height * lines as f32), Sense::hover());
    response.widget_info(|| WidgetInfo::labeled(Role::Label, true, texts.recovery_title));
    let color = ui.visuals().text_color();
    for (number, line) in page.lines().enumerate() {
        let at = pos2(rect.left(), rect.top() + height * (number as f32 + 0.5));
        letters(ui.painter(), at, line, &font, color);
    }
}
