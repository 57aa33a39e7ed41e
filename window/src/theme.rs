//! The look of the window: the colours of both themes as data, the grid, the text sizes, and the toolkit's settings.

use std::collections::BTreeMap;
use std::sync::Arc;

use eframe::egui::style::{ScrollStyle, Selection, WidgetVisuals};
use eframe::egui::{
    Color32, Context, CornerRadius, FontData, FontDefinitions, FontFamily, FontId, FontTweak, Margin, Shadow, Stroke,
    Style, TextStyle, Theme, Ui, epaint::text::VariationCoords, vec2,
};

/// The grid: distances are multiples of it.
pub const GRID: f32 = 8.0;
/// The column of navigation, and what is left of it in a narrow window.
pub const COLUMN: f32 = 200.0;
pub const NARROW_COLUMN: f32 = 56.0;
/// A window narrower than this has the narrow column.
pub const NARROW: f32 = 600.0;
/// Corners of cards, and of what lies in them.
pub const CARD_CORNER: u8 = 12;
pub const CORNER: u8 = 8;
/// Heights of buttons and of fields.
pub const BUTTON_HEIGHT: f32 = 32.0;
pub const FIELD_HEIGHT: f32 = 36.0;
/// The longest line that reads well.
pub const LINE: f32 = 720.0;
/// The ring around what has the keyboard.
pub const FOCUS: f32 = 2.0;

const BODY: f32 = 14.0;
const SMALL: f32 = 12.5;
const HEADING: f32 = 22.0;
const MONOSPACE: f32 = 13.0;

/// The colours of one theme.
#[derive(Clone, Copy, Debug)]
pub struct Palette {
    /// The background.
    pub page: Color32,
    pub card: Color32,
    /// Edges of cards: an ornament.
    pub line: Color32,
    /// Edges of fields, buttons, boxes and circles: without them nobody would see a control.
    pub edge: Color32,
    pub text: Color32,
    /// Secondary text.
    pub dim: Color32,
    /// The filling of the most important controls.
    pub accent: Color32,
    /// Text on that.
    pub on_accent: Color32,
    /// Text in the accent's colour.
    pub link: Color32,
    /// The background of the chosen item, and of icons.
    pub tint: Color32,
    /// The background of a button under the pointer.
    pub hover: Color32,
    pub ok: Color32,
    pub warning: Color32,
    pub danger: Color32,
    /// The empty part of a bar.
    pub track: Color32,
}

const fn rgb(hex: u32) -> Color32 {
    Color32::from_rgb((hex >> 16) as u8, (hex >> 8) as u8, hex as u8)
}

pub const LIGHT: Palette = Palette {
    page: rgb(0xf6f7f9),
    card: rgb(0xffffff),
    line: rgb(0xe3e6ea),
    edge: rgb(0x828a97),
    text: rgb(0x1c2430),
    dim: rgb(0x5d6877),
    accent: rgb(0x1f6feb),
    on_accent: rgb(0xffffff),
    link: rgb(0x1a5fcc),
    tint: rgb(0xe8f0fe),
    hover: rgb(0xeef1f5),
    ok: rgb(0x1a7f4b),
    warning: rgb(0x9a6700),
    danger: rgb(0xc0352b),
    track: rgb(0xe3e6ea),
};

pub const DARK: Palette = Palette {
    page: rgb(0x16181c),
    card: rgb(0x1f2227),
    line: rgb(0x33383f),
    edge: rgb(0x7a828e),
    text: rgb(0xe8ebef),
    dim: rgb(0xa3acb8),
    accent: rgb(0x5b9bff),
    on_accent: rgb(0x0b1220),
    link: rgb(0x6ea6ff),
    tint: rgb(0x22304a),
    hover: rgb(0x292d34),
    ok: rgb(0x4cc38a),
    warning: rgb(0xe3b341),
    danger: rgb(0xff7b72),
    track: rgb(0x33383f),
};

impl Palette {
    /// The one that this is drawn in.
    pub fn of(ui: &Ui) -> &'static Self {
        if ui.visuals().dark_mode { &DARK } else { &LIGHT }
    }
}

/// The desktop's own font in two weights; nothing where it was not found.
#[derive(Clone, Default)]
pub struct Fonts {
    pub regular: Option<FontFile>,
    pub bold: Option<FontFile>,
}

/// A font, and which one of its file.
#[derive(Clone)]
pub struct FontFile {
    pub bytes: Arc<Vec<u8>>,
    pub index: u32,
}

/// The heavier weight, for headings and names.
pub fn bold(size: f32) -> FontId {
    FontId::new(size, FontFamily::Name("bold".into()))
}

pub fn small_bold() -> FontId {
    bold(SMALL)
}

pub fn body_bold() -> FontId {
    bold(BODY)
}

/// Sets the toolkit's fonts, sizes and colours, from the next frame on.
pub fn install(ctx: &Context, fonts: &Fonts) {
    ctx.set_fonts(definitions(fonts));
    for (theme, palette) in [(Theme::Light, &LIGHT), (Theme::Dark, &DARK)] {
        ctx.style_mut_of(theme, |style| dress(style, palette));
    }
}

fn definitions(fonts: &Fonts) -> FontDefinitions {
    let mut all = FontDefinitions::default();
    let usual = all.families.get(&FontFamily::Proportional).cloned().unwrap_or_default();
    let mut add = |name: &str, weight: f32, file: Option<&FontFile>| {
        let mut names = usual.clone();
        if let Some(FontFile { bytes, index }) = file {
            // A variable font has all weights in one file.
            let tweak = FontTweak {
                coords: VariationCoords::new([(u32::from_be_bytes(*b"wght"), weight)]),
                ..FontTweak::default()
            };
            let data = FontData { font: bytes.clone(), index: *index, tweak };
            all.font_data.insert(name.to_owned(), Arc::new(data));
            names.insert(0, name.to_owned());
        }
        names
    };
    let regular = add("desktop", 400.0, fonts.regular.as_ref());
    let heavy = add("desktop bold", 700.0, fonts.bold.as_ref());
    all.families.insert(FontFamily::Proportional, regular);
    all.families.insert(FontFamily::Name("bold".into()), heavy);
    all
}

fn dress(style: &mut Style, palette: &Palette) {
    style.text_styles = BTreeMap::from([
        (TextStyle::Small, FontId::proportional(SMALL)),
        (TextStyle::Body, FontId::proportional(BODY)),
        (TextStyle::Button, FontId::proportional(BODY)),
        (TextStyle::Monospace, FontId::monospace(MONOSPACE)),
        (TextStyle::Heading, bold(HEADING)),
    ]);
    let spacing = &mut style.spacing;
    spacing.item_spacing = vec2(GRID, GRID);
    spacing.button_padding = vec2(12.0, 6.0);
    spacing.interact_size = vec2(40.0, BUTTON_HEIGHT);
    spacing.icon_width = 18.0;
    spacing.icon_width_inner = 10.0;
    spacing.icon_spacing = GRID;
    spacing.combo_width = 240.0;
    spacing.menu_margin = Margin::same(6);
    spacing.tooltip_width = 320.0;
    spacing.scroll = ScrollStyle { bar_width: 8.0, dormant_handle_opacity: 0.5, ..ScrollStyle::floating() };
    let visuals = &mut style.visuals;
    let widget = |fill: Color32, edge: Stroke| WidgetVisuals {
        bg_fill: fill,
        weak_bg_fill: fill,
        bg_stroke: edge,
        corner_radius: CornerRadius::same(CORNER),
        fg_stroke: Stroke::new(1.5, palette.text),
        expansion: 0.0,
    };
    let edge = Stroke::new(1.0, palette.edge);
    let ring = Stroke::new(FOCUS, palette.accent);
    visuals.widgets.noninteractive = widget(palette.card, Stroke::new(1.0, palette.line));
    visuals.widgets.inactive = widget(palette.card, edge);
    visuals.widgets.hovered = widget(palette.hover, edge);
    // What has the keyboard, too.
    visuals.widgets.active = widget(palette.hover, ring);
    visuals.widgets.open = widget(palette.hover, edge);
    visuals.selection = Selection { bg_fill: palette.tint, stroke: Stroke::new(FOCUS, palette.link) };
    visuals.weak_text_color = Some(palette.dim);
    visuals.hyperlink_color = palette.link;
    visuals.warn_fg_color = palette.warning;
    visuals.error_fg_color = palette.danger;
    visuals.panel_fill = palette.page;
    visuals.window_fill = palette.card;
    visuals.window_stroke = Stroke::new(1.0, palette.line);
    visuals.window_corner_radius = CornerRadius::same(CARD_CORNER);
    visuals.menu_corner_radius = CornerRadius::same(CORNER);
    visuals.popup_shadow = Shadow { offset: [0, 4], blur: 16, spread: 0, color: Color32::from_black_alpha(40) };
    visuals.extreme_bg_color = palette.card;
    visuals.text_edit_bg_color = Some(palette.card);
    visuals.code_bg_color = palette.hover;
    visuals.faint_bg_color = palette.hover;
    visuals.striped = false;
    visuals.disabled_alpha = 0.6;
}

#[cfg(test)]
#[path = "../tests/values/theme.rs"]
mod tests;
