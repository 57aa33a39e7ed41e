//! Draws the pages, and says what was asked for. It decides nothing.

use std::path::{Path, PathBuf};

use eframe::egui::{self, Color32, ComboBox, ProgressBar, RichText, ScrollArea, TextEdit, TextStyle, Ui};

use crate::chooser::Chooser;
use crate::create::Create;
use crate::form::{Form, Input};
use crate::header::Keyslot;
use crate::home::{Home, Mounted, State, Why};
use crate::measure::{BUFFERS, Measure, Row};
use crate::open::{Explained, Open};
use crate::program::Progress;
use crate::secret_field::SecretField;
use crate::texts::Texts;
use crate::{change::Change, create};

/// What somebody wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    Home,
    Create,
    Measure,
    /// Look at this file, folder or device.
    Look(PathBuf),
    /// Look at the volume at hand of this number.
    AtHand(usize),
    OpenFolder(PathBuf),
    Lock(PathBuf),
    Unlock(PathBuf),
    Unmount(PathBuf),
    UnmountAll,
    /// Choose something to look at, or for the field of this number.
    Choose(Option<usize>),
    /// The form is filled in.
    Go,
    Explain,
    Change,
    /// Change this keyslot, or remove it.
    Keyslot(String, bool),
    /// Look at the partition of this number.
    Partition(u64),
    /// Go on with the run of the lab in this folder.
    Resume(PathBuf),
    /// What fits the answers.
    Recommend,
    /// All choices of the format of this number, or the guide again.
    Expert(Option<usize>),
    BeginMeasuring,
    /// Something was chosen, or nothing is to be.
    Chosen(Option<PathBuf>),
    Cancel,
    /// What was said has been read.
    Read,
}

/// Larger than the toolkit has it, with room between, and with texts that are as easy to read as buttons.
pub fn style(style: &mut egui::Style) {
    for (text, size) in
        [(TextStyle::Body, 15.0), (TextStyle::Button, 15.0), (TextStyle::Monospace, 14.0), (TextStyle::Heading, 19.0)]
    {
        style.text_styles.entry(text).and_modify(|font| font.size = size);
    }
    style.spacing.item_spacing = egui::vec2(8.0, 7.0);
    style.spacing.button_padding = egui::vec2(9.0, 4.0);
    style.visuals.widgets.noninteractive.fg_stroke.color =
        if style.visuals.dark_mode { Color32::from_gray(215) } else { Color32::from_gray(30) };
}

/// The pages' names, and how to get there.
pub fn pages(ui: &mut Ui, at: &Action, texts: &Texts) -> Option<Action> {
    let mut wanted = None;
    ui.horizontal_wrapped(|ui| {
        let all =
            [(texts.volumes, Action::Home), (texts.create_page, Action::Create), (texts.measure_page, Action::Measure)];
        for (name, page) in all {
            if ui.selectable_label(*at == page, RichText::new(name).heading()).clicked() {
                wanted = Some(page);
            }
        }
    });
    wanted
}

/// What takes a while.
pub fn progress(ui: &mut Ui, title: &str, progress: Option<&Progress>, texts: &Texts) -> Option<Action> {
    let share = progress.and_then(Progress::share);
    let mut told = title.to_owned();
    if let Some(progress) = progress.filter(|progress| progress.share().is_none()) {
        told += &format!(": {}", progress.what);
    }
    if let Some(seconds) = progress.and_then(|progress| progress.left) {
        let time = if seconds < 120 {
            format!("{seconds} {}", texts.seconds)
        } else {
            format!("{} {}", seconds / 60, texts.minutes)
        };
        told += &format!(", {}", texts.left.replace("{}", &time));
    }
    ui.label(&told);
    ui.horizontal(|ui| {
        let cancel = ui.button(texts.cancel).clicked();
        match share {
            Some(share) => ui.add(ProgressBar::new(share).text(format!("{title}: {:.0} %", share * 100.0))),
            None => ui.spinner(),
        };
        cancel.then_some(Action::Cancel)
    })
    .inner
}

/// Something that is said, until it has been read.
pub fn notice(ui: &mut Ui, text: &str, texts: &Texts) -> Option<Action> {
    let read = ui.group(|ui| {
        ui.set_width(ui.available_width());
        ui.label(text);
        ui.button(texts.close).clicked()
    });
    read.inner.then_some(Action::Read)
}

/// Something that went wrong, which screen readers tell at once.
fn trouble(ui: &mut Ui, text: &str) {
    let label = ui.colored_label(ui.visuals().error_fg_color, text);
    label.ctx.accesskit_node_builder(label.id, |node| node.set_live(egui::accesskit::Live::Polite));
}

fn heading(ui: &mut Ui, text: &str) {
    ui.add_space(8.0);
    ui.label(RichText::new(text).heading());
}

pub fn home(ui: &mut Ui, home: &Home, texts: &Texts) -> Option<Action> {
    let mut wanted = None;
    heading(ui, texts.mounted);
    if home.mounted.is_empty() {
        ui.label(texts.nothing_mounted);
    }
    for mounted in &home.mounted {
        ui.group(|ui| {
            ui.set_width(ui.available_width());
            wanted = wanted.take().or(one_mounted(ui, mounted, texts));
        });
    }
    if home.mounted.len() > 1 && ui.button(texts.unmount_all).clicked() {
        wanted = Some(Action::UnmountAll);
    }
    heading(ui, texts.at_hand);
    if home.at_hand.is_empty() {
        ui.label(texts.nothing_at_hand);
    }
    for (number, volume) in home.at_hand.iter().enumerate() {
        let why = match volume.why {
            Why::Favourite => texts.favourite,
            Why::Recent => texts.recent,
            Why::Drive => texts.drive,
        };
        if ui.button(format!("{} ({why})", volume.name)).on_hover_text(volume.path.display().to_string()).clicked() {
            wanted = Some(Action::AtHand(number));
        }
    }
    ui.add_space(12.0);
    ui.label(texts.drop_here);
    if ui.button(texts.choose).clicked() {
        wanted = Some(Action::Choose(None));
    }
    wanted
}

fn one_mounted(ui: &mut Ui, mounted: &Mounted, texts: &Texts) -> Option<Action> {
    let mut wanted = None;
    let state = if mounted.state == State::Locked { format!(" ({})", texts.locked) } else { String::new() };
    ui.label(RichText::new(format!("{}{state}", mounted.volume)).strong());
    ui.label(&mounted.facts);
    ui.label(mounted.dir.as_deref().unwrap_or_default());
    if let Some(trouble) = &mounted.trouble {
        ui.colored_label(ui.visuals().warn_fg_color, trouble);
    }
    let dir = mounted.dir.as_ref().map(PathBuf::from);
    let volume = PathBuf::from(&mounted.volume);
    let target = dir.clone().unwrap_or(volume.clone());
    let mut button = |ui: &mut Ui, name: &str, action: Action| {
        // Several volumes have the same buttons.
        let button = ui.button(name);
        button.ctx.accesskit_node_builder(button.id, |node| node.set_description(mounted.volume.clone()));
        if button.clicked() {
            wanted = Some(action);
        }
    };
    ui.horizontal_wrapped(|ui| match mounted.state {
        State::Open => {
            if let Some(dir) = dir {
                button(ui, texts.open_folder, Action::OpenFolder(dir));
            }
            button(ui, texts.unmount, Action::Unmount(target));
            button(ui, texts.lock, Action::Lock(volume));
        }
        State::Locked => button(ui, texts.unlock, Action::Unlock(volume)),
        State::Silent => button(ui, texts.unmount, Action::Unmount(target)),
        State::Dead => button(ui, texts.clean_up, Action::Unmount(target)),
    });
    wanted
}

pub fn open(ui: &mut Ui, open: &mut Open, layout: Option<&str>, texts: &'static Texts) -> Option<Action> {
    let mut wanted = ui.button(texts.back).clicked().then_some(Action::Home);
    heading(ui, open.form.title);
    ui.label(RichText::new(open.volume.at.path.display().to_string()).strong());
    ui.label(&open.volume.verdict.sentence);
    for partition in &open.volume.verdict.partitions {
        if ui.button(&partition.name).clicked() {
            wanted = Some(Action::Partition(partition.number));
        }
    }
    let half_way = open.volume.half_way(texts);
    if let Some(text) = half_way {
        ui.colored_label(ui.visuals().warn_fg_color, text);
        // In a partition of a disk it goes on where the partition is a device of its own.
        if open.volume.changes_in_place() && ui.button(texts.go_on).clicked() {
            wanted = Some(Action::Change);
        }
    }
    if open.volume.verdict.format.is_some() {
        wanted = wanted.or(form(ui, &mut open.form, layout, texts));
    }
    if let Some(text) = &open.trouble {
        trouble(ui, text);
    }
    ui.horizontal_wrapped(|ui| {
        if !open.unlocks && ui.button(texts.why_not).clicked() {
            wanted = Some(Action::Explain);
        }
        if !open.unlocks && open.volume.changes() && ui.button(texts.change_it).clicked() {
            wanted = Some(Action::Change);
        }
    });
    if let Some(told) = &open.explained {
        explained(ui, told, texts);
    }
    wanted
}

fn explained(ui: &mut Ui, told: &Explained, texts: &Texts) {
    heading(ui, texts.findings);
    told.findings.iter().for_each(|finding| sentence(ui, finding));
    for (what, command) in &told.advice {
        ui.add_space(4.0);
        ui.label(what);
        if let Some(command) = command {
            ui.code(command);
        }
    }
}

fn sentence(ui: &mut Ui, text: &str) {
    ui.label(format!("• {text}"));
}

/// The questions of a form, those that few need apart, and its button.
pub fn form(ui: &mut Ui, form: &mut Form, layout: Option<&str>, texts: &Texts) -> Option<Action> {
    let mut wanted = None;
    if !form.explanation.is_empty() {
        ui.label(form.explanation);
    }
    for number in 0..form.fields.len() {
        if !form.fields[number].more {
            wanted = wanted.or(field(ui, form, number, layout, texts));
        }
    }
    if form.fields.iter().any(|field| field.more) {
        ui.collapsing(texts.more, |ui| {
            for number in 0..form.fields.len() {
                if form.fields[number].more {
                    wanted = wanted.take().or(field(ui, form, number, layout, texts));
                }
            }
        });
    }
    if let Some((warning, agreed)) = &mut form.warning {
        ui.colored_label(ui.visuals().warn_fg_color, *warning);
        ui.checkbox(agreed, texts.understood);
    }
    ui.add_space(4.0);
    if ui.button(RichText::new(form.button).strong()).clicked() {
        wanted = Some(Action::Go);
    }
    wanted
}

fn field(ui: &mut Ui, form: &mut Form, number: usize, layout: Option<&str>, texts: &Texts) -> Option<Action> {
    let field = &mut form.fields[number];
    let label = field.label;
    let mut wanted = None;
    ui.add_space(2.0);
    match &mut field.input {
        Input::Text(text) | Input::New(text) => text_field(ui, label, text),
        Input::Existing(text) => {
            text_field(ui, label, text);
            let button = ui.button(texts.choose);
            button.ctx.accesskit_node_builder(button.id, |node| node.set_description(label));
            wanted = button.clicked().then_some(Action::Choose(Some(number)));
        }
        Input::Paths(paths) => {
            ui.label(label);
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
            let name = ui.label(label);
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
            let enter = secret.draw(ui, label, texts);
            layout_hint(ui, layout, texts);
            wanted = enter.then_some(Action::Go);
        }
        Input::NewSecret(secret, again) => {
            secret.draw(ui, label, texts);
            layout_hint(ui, layout, texts);
            again.shown = secret.shown;
            SecretField::draw(again, ui, texts.again, texts);
            secret.shown = again.shown;
        }
    }
    wanted
}

fn layout_hint(ui: &mut Ui, layout: Option<&str>, texts: &Texts) {
    if let Some(layout) = layout {
        ui.weak(format!("{} {layout}", texts.layout));
    }
}

fn text_field(ui: &mut Ui, label: &str, text: &mut String) {
    let name = ui.label(label);
    let width = ui.available_width().min(480.0);
    ui.add(TextEdit::singleline(text).desired_width(width)).labelled_by(name.id);
}

pub fn create(ui: &mut Ui, page: &mut Create, layout: Option<&str>, texts: &Texts) -> Option<Action> {
    let mut wanted = None;
    ui.horizontal_wrapped(|ui| {
        if ui.selectable_label(page.expert.is_none(), texts.guide).clicked() {
            wanted = Some(Action::Expert(None));
        }
        if ui.selectable_label(page.expert.is_some(), texts.experts).clicked() {
            wanted = Some(Action::Expert(Some(0)));
        }
    });
    if let Some(at) = page.expert {
        heading(ui, texts.format);
        ui.horizontal_wrapped(|ui| {
            for (number, choices) in page.all.iter().enumerate() {
                if ui.radio(number == at, &choices.format).clicked() {
                    wanted = Some(Action::Expert(Some(number)));
                }
            }
        });
    } else {
        wanted = wanted.or(questions(ui, page, texts));
    }
    if let Some(asked) = &mut page.form {
        heading(ui, asked.title);
        wanted = wanted.or(form(ui, asked, layout, texts));
    }
    if let Some(text) = &page.trouble {
        trouble(ui, text);
    }
    wanted
}

/// The first question, and what fits the answers.
fn questions(ui: &mut Ui, page: &mut Create, texts: &Texts) -> Option<Action> {
    heading(ui, texts.what_for);
    // In the order of `create::PURPOSES`, and so on.
    let purposes: [&str; create::PURPOSES.len()] = [texts.few_files, texts.external, texts.laptop, texts.desktop];
    for (number, name) in purposes.into_iter().enumerate() {
        ui.radio_value(&mut page.purpose, number, name);
    }
    ui.label(texts.shared_with);
    for (on, name) in page.shared.iter_mut().zip(["Windows", "macOS"]) {
        ui.checkbox(on, name);
    }
    ui.label(texts.against);
    let threats: [&str; create::THREATS.len()] =
        [texts.theft, texts.repair, texts.coercion, texts.evil_maid, texts.cloud];
    for (number, name) in threats.into_iter().enumerate() {
        ui.radio_value(&mut page.threat, number, name);
    }
    let mut wanted = ui.button(texts.what_fits).clicked().then_some(Action::Recommend);
    let folder = page.all.iter().position(|choices| choices.format == create::FOLDER);
    if ui.button(texts.folder_instead).clicked() {
        wanted = Some(Action::Expert(folder));
    }
    if let Some(it) = &page.recommended {
        heading(ui, &format!("{}: {}", texts.recommended, it.format));
        ui.label(&it.title);
        it.reasons.iter().chain(&it.remarks).for_each(|reason| sentence(ui, reason));
        if !it.against.is_empty() {
            ui.label(texts.speaks_against);
            it.against.iter().for_each(|reason| sentence(ui, reason));
        }
    }
    wanted
}

pub fn change(ui: &mut Ui, page: &mut Change, layout: Option<&str>, texts: &Texts) -> Option<Action> {
    let mut wanted = ui.button(texts.back).clicked().then_some(Action::Home);
    heading(ui, texts.change_title);
    ui.label(RichText::new(page.volume.at.path.display().to_string()).strong());
    ui.label(&page.volume.verdict.sentence);
    if let Some(header) = &page.volume.header {
        wanted = wanted.or(keyslots(ui, &header.keyslots, texts));
        ui.separator();
    }
    let mut shown = page.shown;
    ui.horizontal_wrapped(|ui| {
        for (number, form) in page.forms.iter().enumerate() {
            ui.selectable_value(&mut shown, number, form.title);
        }
    });
    if shown != page.shown {
        page.shown = shown;
        page.result = None;
    }
    ui.separator();
    if let Some(asked) = page.forms.get_mut(page.shown) {
        wanted = wanted.or(form(ui, asked, layout, texts));
    }
    if let Some((good, lines)) = &page.result {
        let color = if *good { ui.visuals().text_color() } else { ui.visuals().error_fg_color };
        for line in lines {
            ui.colored_label(color, line);
        }
    }
    wanted
}

/// What opens the volume, a row for each.
fn keyslots(ui: &mut Ui, all: &[Keyslot], texts: &Texts) -> Option<Action> {
    let mut wanted = None;
    if all.is_empty() {
        return None;
    }
    heading(ui, texts.keyslots);
    let titles = [texts.keyslot, texts.kind, texts.derivation, texts.remarks].map(str::to_owned);
    table(ui, "keyslots", &titles, all, |ui, slot| {
        for text in [&slot.number, &slot.kind, &slot.derivation, &slot.remarks] {
            ui.label(text);
        }
        let number = slot.number.clone();
        // The only one is not removed.
        let buttons = [(texts.change, Some(false)), (texts.remove, (all.len() > 1).then_some(true))];
        for (name, remove) in buttons.into_iter().filter_map(|(name, remove)| Some((name, remove?))) {
            let button = ui.button(format!("{name}: {number}"));
            if button.clicked() {
                wanted = Some(Action::Keyslot(number.clone(), remove));
            }
        }
    });
    wanted
}

/// A table, which may be wider than the window.
fn table<R>(ui: &mut Ui, id: &str, titles: &[String], rows: &[R], mut draw: impl FnMut(&mut Ui, &R)) {
    ScrollArea::horizontal().id_salt(id).show(ui, |ui| {
        egui::Grid::new(id).striped(true).show(ui, |ui| {
            titles.iter().for_each(|title| drop(ui.strong(title)));
            ui.end_row();
            for row in rows {
                draw(ui, row);
                ui.end_row();
            }
        });
    });
}

pub fn measure(ui: &mut Ui, page: &mut Measure, texts: &Texts) -> Option<Action> {
    let mut wanted = bars(ui, page, texts);
    if let Some(text) = &page.trouble {
        trouble(ui, text);
    }
    ui.separator();
    heading(ui, texts.lab_title);
    if let Some(run) = &page.interrupted {
        ui.label(format!("{} {}", texts.lab_interrupted, run.display()));
        if ui.button(texts.go_on).clicked() {
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
    wanted.or(form(ui, &mut page.lab, None, texts))
}

/// How fast each cipher is.
fn bars(ui: &mut Ui, page: &mut Measure, texts: &Texts) -> Option<Action> {
    heading(ui, texts.measure_page);
    ui.label(texts.measure_explanation);
    let name = ui.label(texts.buffer);
    let chosen = ComboBox::from_id_salt(texts.buffer).selected_text(BUFFERS[page.buffer]).show_ui(ui, |ui| {
        for (number, size) in BUFFERS.into_iter().enumerate() {
            ui.selectable_value(&mut page.buffer, number, size);
        }
    });
    chosen.response.labelled_by(name.id);
    ui.checkbox(&mut page.aes, texts.aes_instructions);
    let mut wanted = None;
    match page.at {
        None => wanted = ui.button(RichText::new(texts.measure).strong()).clicked().then_some(Action::BeginMeasuring),
        Some(at) => {
            ui.horizontal_wrapped(|ui| {
                wanted = ui.button(texts.cancel).clicked().then_some(Action::Cancel);
                let cipher = page.ciphers.get(at).map_or("", String::as_str);
                ui.label(format!("{} {}/{}: {cipher}", texts.measuring, at + 1, page.ciphers.len()));
            });
        }
    }
    for row in &page.rows {
        let text = format!("{}: {} ({})", row.cipher, Row::speed(row.mean), row.kernel);
        let both = format!(
            "{} {}, {} {}",
            texts.encryption,
            Row::speed(row.encrypt),
            texts.decryption,
            Row::speed(row.decrypt)
        );
        let bar = ProgressBar::new(page.share(row)).text(text).desired_width(ui.available_width());
        ui.add(bar).on_hover_text(both);
    }
    wanted
}

pub fn chooser(ui: &mut Ui, chooser: &mut Chooser, home: &Path, texts: &Texts) -> Option<Action> {
    let mut wanted = ui.button(texts.back).clicked().then_some(Action::Chosen(None));
    heading(ui, texts.choose_title);
    let mut go = None;
    ui.horizontal_wrapped(|ui| {
        let up = chooser.parent().map(|parent| (texts.up, parent));
        let places = [(texts.home_folder, home.to_owned()), (texts.devices, "/dev".into())];
        for (name, place) in up.into_iter().chain(places) {
            if ui.button(name).clicked() {
                go = Some(place);
            }
        }
    });
    text_field(ui, texts.path, &mut chooser.text);
    chooser.look();
    let chosen = chooser.chosen();
    if ui.add_enabled(chosen.is_some(), egui::Button::new(RichText::new(texts.take).strong())).clicked() {
        wanted = Some(Action::Chosen(chosen));
    }
    ScrollArea::vertical().id_salt("entries").max_height(ui.available_height().max(200.0)).show(ui, |ui| {
        ui.set_width(ui.available_width());
        for entry in &chooser.entries {
            let name = if entry.folder { format!("{}/", entry.name) } else { entry.name.clone() };
            if ui.selectable_label(false, name).clicked() {
                match entry.folder {
                    true => go = Some(entry.path.clone()),
                    false => wanted = Some(Action::Chosen(Some(entry.path.clone()))),
                }
            }
        }
    });
    if let Some(place) = go {
        chooser.go(&place);
    }
    wanted
}
