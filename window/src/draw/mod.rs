//! Draws the pages and reports the user's requests. It decides nothing.

mod change;
mod chooser;
mod create;
mod form;
mod home;
mod measure;
mod open;
mod recovery;

use std::path::PathBuf;

use eframe::egui::{Button, Frame, Id, Margin, RichText, ScrollArea, Stroke, Ui, UiBuilder};

use crate::icons::Icon;
use crate::parts;
use crate::program::Progress;
use crate::texts::Texts;
use crate::theme::{self, GRID, Palette};

pub use change::{change, change_foot};
pub use chooser::{chooser, chooser_foot};
pub use create::{create, create_foot};
pub use home::{home, home_foot};
pub use measure::{measure, measure_foot};
pub use open::{open, open_foot};
pub use recovery::{recovery, recovery_foot};

/// A request of the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    Home,
    Create,
    Measure,
    /// Identify this file, folder or device.
    Look(PathBuf),
    /// Show the available volume of this number.
    AtHand(usize),
    OpenFolder(PathBuf),
    Lock(PathBuf),
    Unlock(PathBuf),
    Unmount(PathBuf),
    UnmountAll,
    /// Choose a file to open, or for the field of this number: in the desktop's dialog, or on a page of the window.
    Choose(Option<usize>),
    Browse(Option<usize>),
    /// The form is filled in.
    Go,
    /// The next step of a volume that is made, or the one before.
    Next,
    Previous,
    Explain,
    /// Open it with capital and small letters of the password swapped.
    SwapCase,
    Verify,
    Change,
    /// Change this keyslot, or remove it.
    Keyslot(String, bool),
    /// Show the partition of this number.
    Partition(u64),
    /// Resume the lab's run in this folder.
    Resume(PathBuf),
    /// All choices of the format of this number, or the guide again.
    Expert(Option<usize>),
    BeginMeasuring,
    /// A file was chosen, or the choice was cancelled.
    Chosen(Option<PathBuf>),
    Cancel,
    /// The message has been read.
    Read,
    /// The page that was left while something was at work on it.
    Return,
}

/// The bar at the end of a page, which never scrolls away.
#[derive(Default)]
pub struct Foot {
    /// The secondary buttons, at the left.
    pub side: Vec<(&'static str, Action)>,
    pub back: Option<(&'static str, Action)>,
    /// What the page is for.
    pub primary: Option<(&'static str, Action)>,
    /// Why that cannot be done now.
    pub why_not: Option<&'static str>,
    /// What went wrong.
    pub trouble: Option<String>,
}

/// Work in progress.
#[derive(Default)]
pub struct Meanwhile<'a> {
    pub notice: Option<&'a str>,
    /// The title of the current work, and its progress.
    pub work: Option<(&'a str, Option<Progress>)>,
}

/// Work that was started on another page.
pub struct Left<'a> {
    pub title: &'a str,
    pub share: Option<f32>,
    pub done: bool,
}

/// The column of navigation. `busy` says why other pages are blocked.
pub fn column(ui: &mut Ui, at: &Action, left: Option<&Left<'_>>, busy: bool, texts: &Texts) -> Option<Action> {
    let narrow = ui.available_width() < theme::COLUMN - 40.0;
    let mut wanted = None;
    if !narrow {
        ui.add_space(4.0);
        ui.horizontal(|ui| {
            ui.add_space(GRID);
            ui.label(RichText::new("Claviger").font(theme::bold(16.0)));
        });
        ui.add_space(GRID);
    }
    ui.spacing_mut().item_spacing.y = 4.0;
    let all = [
        (Icon::Volumes, texts.volumes, Action::Home),
        (Icon::New, texts.create_page, Action::Create),
        (Icon::Measure, texts.measure_page, Action::Measure),
    ];
    ui.add_enabled_ui(!busy, |ui| {
        for (icon, name, page) in all {
            let place = parts::place(ui, icon, name, *at == page, narrow).on_disabled_hover_text(texts.busy);
            if place.clicked() {
                wanted = Some(page);
            }
        }
        if let Some(Left { title, share, done }) = left {
            ui.add_space(2.0 * GRID);
            let icon = if *done { Icon::Check } else { Icon::Task };
            if parts::place(ui, icon, title, false, narrow).on_hover_text(texts.go_back_to_it).clicked() {
                wanted = Some(Action::Return);
            }
            if !done {
                parts::bar(ui, *share, 4.0);
            }
        }
    });
    wanted
}

/// The bar at the end of a page: the message, the progress, and the buttons.
pub fn bar(ui: &mut Ui, foot: &Foot, meanwhile: &Meanwhile<'_>, texts: &Texts) -> Option<Action> {
    let palette = Palette::of(ui);
    let mut wanted = None;
    let narrow = ui.available_width() < 420.0;
    let side = if narrow { 12 } else { 24 };
    let (top, mut most) = (ui.max_rect().top(), 160.0);
    if narrow {
        most = 72.0;
    }
    ui.painter().hline(ui.max_rect().x_range(), top, Stroke::new(1.0, palette.line));
    Frame::new().inner_margin(Margin::symmetric(side, 12)).show(ui, |ui| {
        ui.set_width(ui.available_width());
        if meanwhile.notice.is_some() || foot.trouble.is_some() {
            ScrollArea::vertical().id_salt("said").max_height(most).auto_shrink([false, true]).show(ui, |ui| {
                if let Some(text) = meanwhile.notice {
                    let read = parts::note(ui, Icon::Check, palette.link, text, |ui| ui.button(texts.close).clicked());
                    wanted = read.then_some(Action::Read);
                }
                if let Some(text) = &foot.trouble {
                    parts::note(ui, Icon::Warning, palette.danger, text, |_| ());
                }
            });
        }
        if let Some((title, progress)) = &meanwhile.work {
            wanted = wanted.take().or(progress_of(ui, title, progress.as_ref(), texts));
        }
        wanted = wanted.take().or(buttons(ui, foot, meanwhile.work.is_some(), texts));
    });
    wanted
}

fn buttons(ui: &mut Ui, foot: &Foot, busy: bool, texts: &Texts) -> Option<Action> {
    let gap = ui.spacing().item_spacing.x;
    let plain = foot.side.iter().chain(&foot.back).map(|(name, _)| parts::button_width(ui, name, false) + gap);
    let plain: f32 = plain.sum();
    let primary = foot.primary.as_ref().map_or(0.0, |(name, _)| parts::button_width(ui, name, true));
    let spare = ui.available_width() - plain - primary;
    // Each by its name, so that the keyboard stays with it when another one comes or goes.
    let side = |ui: &mut Ui| {
        let mut wanted = None;
        for (name, action) in &foot.side {
            wanted = wanted.or(plain_button(ui, name, action, busy, texts));
        }
        wanted
    };
    let main = |ui: &mut Ui| {
        let mut wanted = None;
        if let Some((name, action)) = &foot.back {
            wanted = plain_button(ui, name, action, busy, texts);
        }
        if let Some((name, action)) = &foot.primary {
            let enabled = !busy && foot.why_not.is_none();
            let button = named(ui, name, |ui| parts::primary(ui, name, enabled));
            let button = button.on_disabled_hover_text(foot.why_not.unwrap_or(texts.busy));
            wanted = wanted.or(button.clicked().then(|| action.clone()));
        }
        wanted
    };
    if spare >= 0.0 || foot.side.is_empty() {
        let drawn = ui.horizontal(|ui| {
            let wanted = side(ui);
            ui.add_space(spare.max(0.0));
            wanted.or(main(ui))
        });
        return drawn.inner;
    }
    // In rows, as many as it takes.
    let (mut wanted, mut first) = (None, 0);
    while first < foot.side.len() {
        let mut left = ui.available_width();
        let fits = foot.side[first..].iter().take_while(|(name, _)| {
            left -= parts::button_width(ui, name, false) + gap;
            left + gap >= 0.0
        });
        let row = fits.count().max(1);
        ui.horizontal(|ui| {
            for (name, action) in &foot.side[first..first + row] {
                wanted = wanted.take().or(plain_button(ui, name, action, busy, texts));
            }
        });
        first += row;
    }
    let back = foot.back.iter().map(|(name, _)| parts::button_width(ui, name, false) + gap).sum::<f32>();
    let spare = ui.available_width() - back - primary;
    let drawn = ui.horizontal(|ui| {
        ui.add_space(spare.max(0.0));
        main(ui)
    });
    wanted.or(drawn.inner)
}

/// Identified by its name alone, even if its neighbours change.
fn named<R>(ui: &mut Ui, name: &str, add: impl FnOnce(&mut Ui) -> R) -> R {
    ui.scope_builder(UiBuilder::new().scope_id(Id::unique(("bar", name))), add).inner
}

fn plain_button(ui: &mut Ui, name: &str, action: &Action, busy: bool, texts: &Texts) -> Option<Action> {
    let button = named(ui, name, |ui| ui.add_enabled(!busy, Button::new(name)));
    button.on_disabled_hover_text(texts.busy).clicked().then(|| action.clone())
}

/// What takes a while.
fn progress_of(ui: &mut Ui, title: &str, progress: Option<&Progress>, texts: &Texts) -> Option<Action> {
    let share = progress.and_then(Progress::share);
    let mut said = title.to_owned();
    match (share, progress) {
        (Some(share), _) => said += &format!(": {:.0} %", share * 100.0),
        (None, Some(progress)) => said += &format!(": {}", progress.what),
        (None, None) => {}
    }
    if let Some(seconds) = progress.and_then(|progress| progress.left) {
        let time = if seconds < 120 {
            format!("{seconds} {}", texts.seconds)
        } else {
            format!("{} {}", seconds / 60, texts.minutes)
        };
        said += &format!(", {}", texts.left.replace("{}", &time));
    }
    let cancel = ui.horizontal(|ui| {
        let width = ui.available_width() - parts::button_width(ui, texts.cancel, false) - ui.spacing().item_spacing.x;
        ui.vertical(|ui| {
            ui.set_width(width.max(80.0));
            ui.spacing_mut().item_spacing.y = 4.0;
            ui.label(&said);
            parts::bar(ui, share, 6.0);
        });
        ui.button(texts.cancel).clicked()
    });
    cancel.inner.then_some(Action::Cancel)
}
