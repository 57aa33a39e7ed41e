//! The window: the page that is shown, the work in progress, and its results.

use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use eframe::egui::{
    self, CentralPanel, Event, Frame, Margin, Panel, Rect, ScrollArea, Stroke, ThemePreference, Ui, UiBuilder, pos2,
};
use serde_json::Value;

use crate::change::Change;
use crate::chooser::Chooser;
use crate::create::{self, Create};
use crate::desktop::{self, Desktop};
use crate::draw::{self, Action, Foot, Left, Meanwhile};
use crate::form::{Form, Input};
use crate::header::{header, show};
use crate::home::{self, AtHand, Home, Why};
use crate::measure::{self, Measure};
use crate::open::{self, Open, Verdict, Volume};
use crate::portal::{self, Choice, Chosen, Dialog};
use crate::program::{CANCELLED, Call, Done, Job, Programs, Progress};
use crate::recovery::Recovery;
use crate::secret_field::SecretField;
use crate::steps::Work;
use crate::texts::Texts;
use crate::theme::{self, COLUMN, Fonts, NARROW, NARROW_COLUMN, Palette};

/// How often the first page checks whether the list of mounts has changed.
const GLANCE: Duration = Duration::from_secs(1);

/// How often it asks what is mounted if the list has not changed: while the window is in use, and otherwise.
const REFRESH: [Duration; 2] = [Duration::from_secs(4), Duration::from_secs(30)];

/// The kernel's list of mounts.
const MOUNTS: &str = "/proc/self/mountinfo";

/// How long a closed window waits for its unfinished work.
const FAREWELL: Duration = Duration::from_secs(10);

/// Where things are.
#[derive(Clone)]
pub struct Places {
    pub home: PathBuf,
    pub favourites: PathBuf,
    pub system: PathBuf,
    pub udev: PathBuf,
    /// The address of the session bus with the desktop's portal.
    pub bus: Option<String>,
}

impl Places {
    pub fn usual() -> Self {
        let path = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let home = path("HOME").unwrap_or_else(|| "/".into());
        let favourites =
            path("XDG_CONFIG_HOME").unwrap_or_else(|| home.join(".config")).join("claviger/favourites.toml");
        Self { home, favourites, system: "/sys".into(), udev: "/run/udev".into(), bus: portal::session_bus() }
    }
}

pub enum Page {
    Home,
    Open(Box<Open>),
    Create(Box<Create>),
    Change(Box<Change>),
    Measure(Box<Measure>),
    Recovery(Box<Recovery>),
}

/// What to do with the result of the current work.
enum Then {
    /// It was identified.
    Looked(AtHand),
    /// Its header was read.
    Shown(AtHand, Verdict),
    /// The formats that can be created, needed for this action.
    Formats(Action),
    Mounted,
    Unlocked,
    /// The sentence for people about it.
    Unmounted(String),
    Explained,
    Verified,
    Recommended,
    /// A volume was created, with a recovery key in this file.
    Created(Option<PathBuf>),
    /// A volume was changed, and perhaps has a new recovery key in this file.
    Changed(Option<PathBuf>),
    /// The header after a change, the result of the change, whether it was cancelled, and the file of a new recovery key.
    Refreshed(Done, bool, Option<PathBuf>),
    Measured,
    /// A run of the lab, and its folder.
    Lab(PathBuf),
    /// Only a failure matters.
    Listed,
}

impl Then {
    /// Whether it may take so long that people want to see other pages in the meantime.
    fn is_long(&self) -> bool {
        let opens = matches!(self, Self::Mounted | Self::Unlocked | Self::Unmounted(_));
        let examines = matches!(self, Self::Explained | Self::Verified);
        opens || examines || matches!(self, Self::Created(_) | Self::Changed(_) | Self::Refreshed(..) | Self::Lab(_))
    }

    /// Reports its success on this page to people who have left the page, if the list of volumes does not.
    fn news(&self, page: &Page, done: &Done, texts: &Texts) -> Option<String> {
        match (self, page) {
            (Self::Mounted, Page::Open(page)) => {
                let dir = done.out["dir"].as_str()?;
                Some(texts.mounted_at.replace("{name}", &page.volume.at.name).replace("{dir}", dir))
            }
            (Self::Unlocked, Page::Open(page)) => Some(texts.unlocked.replace("{}", &page.volume.at.name)),
            (Self::Unmounted(sentence), _) => Some(sentence.clone()),
            _ => None,
        }
    }
}

/// A page that was left while something was at work on it.
struct LeftPage {
    page: Page,
    title: String,
    /// Nothing once it is done.
    work: Option<(Work, Then)>,
    /// The message to show when the user returns.
    notice: Option<String>,
}

/// A file, folder or device is being chosen: for the field of this number, or to open it.
struct Choosing {
    field: Option<usize>,
    /// The field's name. Behind a dialog, the page may get another form.
    label: &'static str,
    by: By,
}

enum By {
    Desktop(Dialog),
    Window(Chooser),
}

pub struct App {
    programs: Programs,
    texts: &'static Texts,
    places: Places,
    desktop: Desktop,
    pub home: Home,
    pub page: Page,
    pub notice: Option<String>,
    work: Option<(Work, Then)>,
    left: Option<LeftPage>,
    choosing: Option<Choosing>,
    listing: Option<Job>,
    listed: Option<Instant>,
    mounts: Vec<u8>,
    recent: Vec<AtHand>,
    formats: Value,
    focused: bool,
    fonts: Fonts,
    styled: bool,
    /// The height of the bar at the end of the page, as drawn.
    bar: f32,
    /// Whether the user knows that the favourites cannot be read.
    complained: bool,
    /// A folder that no program opened.
    unopened: Arc<Mutex<Option<PathBuf>>>,
}

impl App {
    pub fn new(programs: Programs, texts: &'static Texts, places: Places) -> Self {
        Self {
            programs,
            texts,
            places,
            desktop: Desktop::default(),
            home: Home::default(),
            page: Page::Home,
            notice: None,
            work: None,
            left: None,
            choosing: None,
            listing: None,
            listed: None,
            mounts: Vec::new(),
            recent: Vec::new(),
            formats: Value::Null,
            focused: false,
            fonts: Fonts::default(),
            styled: false,
            bar: 64.0,
            complained: false,
            unopened: Arc::default(),
        }
    }

    /// The same with the desktop's fonts.
    #[must_use]
    pub fn with_fonts(mut self, fonts: Fonts) -> Self {
        self.fonts = fonts;
        self
    }

    /// Whether something is at work that a page waits for.
    pub fn at_work(&self) -> bool {
        self.work.is_some()
    }

    /// Whether work on another page is done, and the user has not returned there.
    pub fn has_finished_elsewhere(&self) -> bool {
        self.left.as_ref().is_some_and(|left| left.work.is_none())
    }

    /// Draws everything, and carries out the user's requests.
    pub fn draw(&mut self, ui: &mut Ui) {
        if !std::mem::replace(&mut self.styled, true) {
            // Fonts are available from the next frame on.
            theme::install(ui.ctx(), &self.fonts);
            self.ask_desktop(ui.ctx());
            return ui.ctx().request_repaint();
        }
        self.poll(ui.ctx());
        self.ask_desktop(ui.ctx());
        let dropped = ui.input(|input| input.raw.dropped_files.first().map(|file| file.path().to_owned()));
        let mut wanted = dropped.map(Action::Look);
        if ui.input(|input| input.events.iter().any(types)) {
            self.forget_failure();
        }
        let busy = self.work.as_ref().is_some_and(|(work, then)| work.shows() && !matches!(then, Then::Measured));
        let width = if ui.available_width() < NARROW { NARROW_COLUMN } else { COLUMN };
        let margin = if width < COLUMN { 8 } else { 12 };
        let page = Frame::new().fill(Palette::of(ui).page);
        let line = Stroke::new(1.0, Palette::of(ui).line);
        let column = Panel::left("column").exact_size(width).resizable(false).show_separator_line(false);
        let shown = column.frame(page.inner_margin(Margin::same(margin))).show(ui, |ui| {
            wanted = wanted.take().or(self.column(ui, busy && !self.leaves()));
        });
        let rect = shown.response.rect;
        CentralPanel::default().frame(page).show(ui, |ui| {
            wanted = wanted.take().or(self.page_and_bar(ui, busy));
        });
        ui.painter().vline(rect.right(), rect.y_range(), line);
        if let Some(action) = wanted {
            self.act(action);
            ui.ctx().request_repaint();
        }
        if self.work.is_some() || self.left.as_ref().is_some_and(|left| left.work.is_some()) {
            ui.ctx().request_repaint_after(Duration::from_millis(100));
        } else if matches!(self.page, Page::Home) {
            ui.ctx().request_repaint_after(GLANCE);
        }
    }

    /// What failed is no longer true of the answers once they change.
    fn forget_failure(&mut self) {
        match &mut self.page {
            Page::Open(page) => page.trouble = None,
            Page::Create(page) => page.trouble = None,
            Page::Change(page) => drop(page.result.take_if(|(good, _)| !*good)),
            Page::Home | Page::Measure(_) | Page::Recovery(_) => {}
        }
    }

    fn column(&self, ui: &mut Ui, busy: bool) -> Option<Action> {
        let at = match &self.page {
            Page::Create(_) => Action::Create,
            Page::Measure(_) => Action::Measure,
            _ => Action::Home,
        };
        let left = self.left.as_ref().map(|LeftPage { title, work, .. }| Left {
            title,
            share: work.as_ref().and_then(|(work, _)| work.progress()).as_ref().and_then(Progress::share),
            done: work.is_none(),
        });
        draw::column(ui, &at, left.as_ref(), busy, self.texts)
    }

    /// The page scrolls, and the bar stays. It is drawn after the page, so that the keyboard reaches it last.
    fn page_and_bar(&mut self, ui: &mut Ui, busy: bool) -> Option<Action> {
        let mut wanted = None;
        let whole = ui.available_rect_before_wrap();
        let border = (whole.bottom() - self.bar).max(whole.top() + 40.0);
        let above = Rect::from_min_max(whole.min, pos2(whole.right(), border));
        let margin = if whole.width() < 420.0 { 12 } else { 24 };
        ui.scope_builder(UiBuilder::new().max_rect(above), |ui| {
            ui.set_clip_rect(above.intersect(ui.clip_rect()));
            ScrollArea::vertical().auto_shrink(false).show(ui, |ui| {
                Frame::new().inner_margin(Margin::symmetric(margin, if margin > 12 { 24 } else { 12 })).show(
                    ui,
                    |ui| {
                        ui.set_width(ui.available_width());
                        ui.add_enabled_ui(!busy, |ui| wanted = self.page(ui));
                    },
                );
            });
        });
        let foot = self.foot();
        let work = self.work.as_ref().filter(|_| busy).map(|(work, _)| (work.title.as_str(), work.progress()));
        let meanwhile = Meanwhile { notice: self.notice.as_deref(), work };
        let below = Rect::from_min_max(pos2(whole.left(), border), whole.max);
        let drawn = ui.scope_builder(UiBuilder::new().max_rect(below), |ui| {
            ui.set_clip_rect(whole);
            wanted = wanted.take().or(draw::bar(ui, &foot, &meanwhile, self.texts));
            ui.min_rect().height()
        });
        if (drawn.inner - self.bar).abs() > 0.5 {
            self.bar = drawn.inner;
            ui.ctx().request_repaint();
        }
        wanted
    }

    fn foot(&self) -> Foot {
        let texts = self.texts;
        if let Some(Choosing { by: By::Window(chooser), .. }) = &self.choosing {
            return draw::chooser_foot(chooser, texts);
        }
        match &self.page {
            Page::Home => draw::home_foot(&self.home, texts),
            Page::Open(page) => draw::open_foot(page, texts),
            Page::Create(page) => draw::create_foot(page, texts),
            Page::Change(page) => draw::change_foot(page, texts),
            Page::Measure(page) => draw::measure_foot(page, texts),
            Page::Recovery(_) => draw::recovery_foot(texts),
        }
    }

    fn page(&mut self, ui: &mut Ui) -> Option<Action> {
        let texts = self.texts;
        let layout = self.desktop.wishes().layout;
        let layout = layout.as_deref();
        if let Some(Choosing { by: By::Window(chooser), .. }) = &mut self.choosing {
            return draw::chooser(ui, chooser, &self.places.home, texts);
        }
        match &mut self.page {
            Page::Home => draw::home(ui, &self.home, texts),
            Page::Open(page) => draw::open(ui, page, layout, texts),
            Page::Create(page) => {
                page.look_at_space(&self.places.home, texts);
                draw::create(ui, page, layout, texts)
            }
            Page::Change(page) => draw::change(ui, page, layout, texts),
            Page::Measure(page) => draw::measure(ui, page, texts),
            Page::Recovery(page) => draw::recovery(ui, page, texts),
        }
    }

    /// Light or dark, like the desktop; asked again whenever the window comes to the front.
    fn ask_desktop(&mut self, ctx: &egui::Context) {
        let focused = ctx.input(|input| input.focused);
        if focused && !self.focused {
            let context = ctx.clone();
            self.desktop.ask(self.places.bus.clone(), move || context.request_repaint());
        }
        self.focused = focused;
        // Without a preference, it is light.
        let dark = self.desktop.wishes().dark == Some(true);
        let theme = if dark { ThemePreference::Dark } else { ThemePreference::Light };
        if ctx.options(|options| options.theme_preference) != theme {
            ctx.set_theme(theme);
        }
    }

    /// Carries out a request.
    pub fn act(&mut self, action: Action) {
        let (texts, home) = (self.texts, self.places.home.clone());
        match action {
            Action::Read => self.notice = None,
            Action::Cancel => self.cancel(),
            Action::Choose(field) => self.choose(field),
            Action::Browse(field) => {
                let label = self.label(field);
                self.choosing = Some(Choosing { field, label, by: By::Window(Chooser::at(&home)) });
            }
            Action::Chosen(path) => self.chosen(path.into_iter().collect()),
            Action::Home | Action::Create | Action::Measure if self.leaves() => {
                self.leave();
                self.act(action);
            }
            _ if self.work.as_ref().is_some_and(|(_, then)| !matches!(then, Then::Measured)) => {}
            Action::Return => self.come_back(),
            Action::Home => self.go(Page::Home),
            Action::Look(path) => self.look(AtHand::chosen(&path)),
            Action::AtHand(number) => {
                if let Some(at_hand) = self.home.at_hand.get(number).cloned() {
                    self.look(at_hand);
                }
            }
            Action::OpenFolder(dir) => {
                let (unopened, wake) = (Arc::clone(&self.unopened), self.programs.wake());
                self.notice = None;
                desktop::open_folder(&dir.clone(), move || {
                    *unopened.lock().unwrap_or_else(PoisonError::into_inner) = Some(dir);
                    wake();
                });
            }
            Action::Lock(volume) => self.begin(texts.locking, [Call::new(["lock"]).with([volume])], Then::Listed),
            Action::Unlock(volume) => self.go(Page::Open(Box::new(Open::unlocking(&volume, texts)))),
            Action::Unmount(target) => {
                let then = Then::Unmounted(texts.unmounted.replace("{}", &target.display().to_string()));
                self.begin(texts.unmounting, [Call::new(["unmount"]).with([target])], then);
            }
            Action::UnmountAll => {
                let then = Then::Unmounted(texts.all_unmounted.to_owned());
                self.begin(texts.unmounting, [Call::new(["unmount", "--all"])], then);
            }
            Action::Create | Action::Measure | Action::Change if self.formats.is_null() => {
                self.begin(texts.looking, [Call::new(["create", "--list"])], Then::Formats(action));
            }
            Action::Create => self.go(Page::Create(Box::new(Create::new(&self.formats)))),
            Action::Measure => {
                // The ciphers of the TrueCrypt window that two studies photographed.
                let known = create::choices(&self.formats).into_iter().find(|choices| choices.format == "TrueCrypt");
                let ciphers = known.map(|choices| choices.ciphers).unwrap_or_default();
                self.go(Page::Measure(Box::new(Measure::new(ciphers, &home, texts))));
            }
            Action::Change => {
                if let Page::Open(page) = &self.page {
                    let change = Change::new(page.volume.clone(), &create::choices(&self.formats), &home, texts);
                    self.go(Page::Change(Box::new(change)));
                }
            }
            Action::Keyslot(number, remove) => {
                if let Page::Change(page) = &mut self.page {
                    page.keyslot(&number, remove);
                }
            }
            Action::Partition(number) => {
                if let Page::Open(page) = &self.page {
                    let (mut at, verdict) = (page.volume.at.clone(), page.volume.verdict.clone());
                    at.name = format!("{}, {} {number}", at.name, texts.partition);
                    at.options.push(format!("--partition={number}"));
                    self.found(at, verdict);
                }
            }
            Action::Resume(run) => {
                let call = Call::new(["lab", "run", "--resume"]).with([&run]);
                self.begin(texts.running_lab, [call], Then::Lab(run));
            }
            Action::Explain => {
                if let Page::Open(page) = &mut self.page {
                    let told = page.explain(&home);
                    if let Some(call) = page.form.noted(told) {
                        self.begin(texts.explaining, [call], Then::Explained);
                    }
                }
            }
            Action::SwapCase => {
                if let Page::Open(page) = &mut self.page {
                    page.form.secret_mut("--password-fd").map(SecretField::swap_case);
                    self.carry_out();
                }
            }
            Action::Verify => {
                if let Page::Open(page) = &mut self.page {
                    let checked = page.verify(&home);
                    if let Some(call) = page.form.noted(checked) {
                        self.begin(texts.verifying, [call], Then::Verified);
                    }
                }
            }
            Action::Next => self.next(),
            Action::Previous => {
                if let Page::Create(page) = &mut self.page {
                    (page.step, page.trouble) = (page.step.saturating_sub(1), None);
                }
            }
            Action::Expert(format) => {
                if let Page::Create(page) = &mut self.page {
                    (page.step, page.expert, page.form, page.trouble) = (0, None, None, None);
                    if let Some(format) = format {
                        page.choose(format, &home, texts);
                    }
                }
            }
            Action::BeginMeasuring => {
                if let Page::Measure(page) = &mut self.page
                    && let Some(call) = page.begin()
                {
                    self.begin(texts.measuring, [call], Then::Measured);
                }
            }
            Action::Go => self.carry_out(),
        }
    }

    /// Shows another page. Input on the previous page is forgotten.
    fn go(&mut self, page: Page) {
        if let Some((work, _)) = &mut self.work {
            work.cancel();
        }
        self.page = page;
        self.notice = None;
        self.choosing = None;
        self.listed = None;
    }

    /// Continues with the next step of creating a volume.
    fn next(&mut self) {
        let (texts, home) = (self.texts, self.places.home.clone());
        let Page::Create(page) = &mut self.page else { return };
        page.trouble = None;
        match page.step {
            0 if page.is_answered() => page.step = 1,
            0 if page.purpose == create::A_FOLDER => {
                page.take_folder(&home, texts);
                page.step = 1;
            }
            0 => {
                let call = page.recommend();
                self.begin(texts.choosing, [call], Then::Recommended);
            }
            _ => page.go_on(&home),
        }
    }

    /// Whether the page can be left while something is at work on it.
    fn leaves(&self) -> bool {
        let alone = self.left.as_ref().is_none_or(|left| left.work.is_none());
        alone && self.work.as_ref().is_some_and(|(_, then)| then.is_long())
    }

    fn leave(&mut self) {
        let page = std::mem::replace(&mut self.page, Page::Home);
        let work = self.work.take();
        let title = work.as_ref().map(|(work, _)| work.title.clone()).unwrap_or_default();
        self.left = Some(LeftPage { page, title, work, notice: None });
    }

    /// Shows the page that was left.
    fn come_back(&mut self) {
        if let Some(LeftPage { page, work, notice, .. }) = self.left.take() {
            self.go(page);
            (self.work, self.notice) = (work, notice);
        }
    }

    /// Takes the result of work on a page in the background, and reports it if nothing shows it.
    fn poll_left(&mut self) {
        let Some(left) = &mut self.left else { return };
        let Some(done) = left.work.as_mut().and_then(|(work, _)| work.poll(&self.programs)) else { return };
        let Some((work, then)) = left.work.take() else { return };
        let Some(mut left) = self.left.take() else { return };
        let succeeds = done.ok() && !work.is_cancelled();
        let news = succeeds.then(|| then.news(&left.page, &done, self.texts)).flatten();
        // As if the page were shown.
        std::mem::swap(&mut self.page, &mut left.page);
        let (front, notice, choosing) = (self.work.take(), self.notice.take(), self.choosing.take());
        self.finished(&done, work.is_cancelled(), then);
        std::mem::swap(&mut self.page, &mut left.page);
        self.choosing = choosing;
        left.work = std::mem::replace(&mut self.work, front);
        left.notice = std::mem::replace(&mut self.notice, notice);
        if matches!(left.page, Page::Home) {
            let news = [news, left.notice].into_iter().flatten().collect::<Vec<_>>().join("\n");
            self.notice = Some(news).filter(|news| !news.is_empty()).or(self.notice.take());
        } else {
            self.left = Some(left);
        }
    }

    fn begin(&mut self, title: &str, calls: impl IntoIterator<Item = Call>, then: Then) {
        self.notice = None;
        if let Some((before, _)) = &mut self.work {
            before.cancel();
        }
        self.work = Some((Work::new(title, calls, &self.programs), then));
    }

    fn look(&mut self, mut at_hand: AtHand) {
        self.choosing = None;
        // The unfinished copy of a conversion is opened through its source.
        if let Some(conversion) = crate::header::conversion(&at_hand.path, &self.places.home) {
            at_hand = AtHand { path: conversion.source, ..at_hand };
        }
        self.begin(self.texts.looking, [Call::new(["identify"]).with([&at_hand.path])], Then::Looked(at_hand));
    }

    /// Reads its header, if it may have one.
    fn found(&mut self, at_hand: AtHand, verdict: Verdict) {
        let verdict = verdict.of(&at_hand.options, self.texts);
        if verdict.format.is_some() && !verdict.folder {
            let call = show(&at_hand.path, &at_hand.options);
            return self.begin(self.texts.looking, [call], Then::Shown(at_hand, verdict));
        }
        let volume = Volume::new(at_hand, verdict, None, &self.places.home, self.texts);
        self.go(Page::Open(Box::new(Open::new(volume, self.texts))));
    }

    fn cancel(&mut self) {
        if let Page::Measure(page) = &mut self.page {
            page.stop();
        }
        if let Some((work, _)) = &mut self.work {
            work.cancel();
        }
    }

    /// Chooses in the desktop's dialog, if there is a session bus.
    fn choose(&mut self, field: Option<usize>) {
        let Some(bus) = self.places.bus.clone() else { return self.act(Action::Browse(field)) };
        let (label, home) = (self.label(field), self.places.home.clone());
        let choice = Choice::of(field.and_then(|number| self.form()?.fields.get(number)), &home);
        let by = By::Desktop(Dialog::open(bus, label, choice, self.programs.wake()));
        self.choosing = Some(Choosing { field, label, by });
    }

    fn label(&mut self, field: Option<usize>) -> &'static str {
        let open = self.texts.open_other;
        field.and_then(|number| self.form()?.fields.get(number)).map_or(open, |field| field.label)
    }

    /// Takes what was chosen in the desktop's dialog.
    fn poll_dialog(&mut self) {
        let Some(Choosing { field, by: By::Desktop(dialog), .. }) = &self.choosing else { return };
        // Opening another volume would end the page's work.
        if field.is_none() && self.work.is_some() {
            return;
        }
        let (field, Some(chosen)) = (*field, dialog.chosen()) else { return };
        match chosen {
            Chosen::Paths(paths) => self.chosen(paths),
            Chosen::NoDialog => self.act(Action::Browse(field)),
            Chosen::Cancelled => self.choosing = None,
            Chosen::Foreign(uri) => {
                self.choosing = None;
                self.notice = Some(self.texts.not_local.replace("{}", &uri.escape_debug().to_string()));
            }
        }
    }

    fn form(&mut self) -> Option<&mut Form> {
        match &mut self.page {
            Page::Open(page) => Some(&mut page.form),
            Page::Create(page) => page.form.as_mut(),
            Page::Change(page) => page.form(),
            Page::Measure(page) => Some(&mut page.lab),
            Page::Home | Page::Recovery(_) => None,
        }
    }

    fn chosen(&mut self, chosen: Vec<PathBuf>) {
        let Some(Choosing { field, label, .. }) = self.choosing.take() else { return };
        let Some(path) = chosen.first().cloned() else { return };
        let Some(field) = field else { return self.look(AtHand::chosen(&path)) };
        let field = self.form().and_then(|form| form.fields.get_mut(field)).filter(|field| field.label == label);
        match field.map(|field| &mut field.input) {
            Some(Input::Paths(paths)) => paths.extend(chosen),
            Some(Input::Existing(text) | Input::Folder(text)) => *text = path.display().to_string(),
            // A new file in the folder that was chosen keeps its name.
            Some(Input::New(text)) => {
                let name = Path::new(text.trim()).file_name().map(ToOwned::to_owned).unwrap_or_default();
                let path = if path.is_dir() { path.join(name) } else { path };
                *text = path.display().to_string();
            }
            _ => {}
        }
    }

    /// Carries out the form of the page.
    fn carry_out(&mut self) {
        let (texts, home) = (self.texts, self.places.home.clone());
        match &mut self.page {
            Page::Open(page) => {
                page.trouble = None;
                let told = page.call(&home);
                let Some(call) = page.form.noted(told) else { return };
                // A favourite's folder is made, as `claviger attach` does. If it cannot be, the program says so.
                if let Some(dir) = &page.volume.at.dir {
                    let _ = fs::DirBuilder::new().recursive(true).mode(0o700).create(dir);
                }
                let then = if page.unlocks { Then::Unlocked } else { Then::Mounted };
                self.begin(texts.mounting, [call], then);
            }
            Page::Create(page) => {
                page.trouble = None;
                let told = page.calls(&home);
                let Some(steps) = page.form.as_mut().and_then(|form| form.noted(told)) else { return };
                let recovery = page.form.as_ref().and_then(|form| create::recovery_file(form, &home));
                self.begin(texts.creating, steps, Then::Created(recovery));
            }
            Page::Change(page) => {
                page.result = None;
                let Some(form) = page.form() else { return };
                let (title, told) = (form.title, form.call(&home));
                let recovery = create::recovery_file(form, &home);
                if let Some(call) = form.noted(told) {
                    self.begin(title, [call], Then::Changed(recovery));
                }
            }
            Page::Measure(page) => {
                page.trouble = None;
                let told = page.lab.call(&home);
                let Some(call) = page.lab.noted(told) else { return };
                page.found = None;
                // One at a time: parallel runs would distort each other's figures.
                page.stop();
                let out = crate::form::absolute(page.lab.text(measure::OUT), &home);
                self.begin(texts.running_lab, [call], Then::Lab(out));
            }
            Page::Home | Page::Recovery(_) => {}
        }
    }

    /// Takes results that have arrived.
    fn poll(&mut self, ctx: &egui::Context) {
        if let Some((work, _)) = &mut self.work
            && let Some(done) = work.poll(&self.programs)
            && let Some((work, then)) = self.work.take()
        {
            self.finished(&done, work.is_cancelled(), then);
            self.listed = None;
            ctx.request_repaint();
        }
        self.poll_left();
        self.poll_dialog();
        if let Some(dir) = self.unopened.lock().unwrap_or_else(PoisonError::into_inner).take() {
            self.notice = Some(self.texts.no_file_manager.replace("{}", &dir.display().to_string()));
        }
        if let Some(done) = self.listing.as_ref().and_then(Job::done) {
            self.listing = None;
            self.home.mounted = home::mounted(&done.out, self.texts);
            let context = ctx.clone();
            self.home.usage.ask(&self.home.mounted, move || context.request_repaint());
            self.home.at_hand = self.at_hand();
            ctx.request_repaint();
        }
        if !matches!(self.page, Page::Home) || self.listing.is_some() || self.work.is_some() {
            return;
        }
        // The mount table shows most changes, and reading it starts no process.
        let rest = REFRESH[usize::from(!self.focused)];
        let since = self.listed.map(|listed| listed.elapsed());
        if since.is_some_and(|since| since < GLANCE) {
            return;
        }
        let mounts = fs::read(MOUNTS).unwrap_or_default();
        if since.is_none_or(|since| since >= rest) || mounts != self.mounts {
            (self.listed, self.mounts) = (Some(Instant::now()), mounts);
            self.listing = Some(self.programs.start(Call::new(["list"])));
        }
    }

    /// Favourites, what was opened before, and drives, each once; and nothing that is open.
    fn at_hand(&mut self) -> Vec<AtHand> {
        let text = fs::read_to_string(&self.places.favourites).unwrap_or_default();
        let favourites = home::favourites(&text, &self.places.home).unwrap_or_else(|e| {
            // Complains only once: this runs every few seconds.
            if !std::mem::replace(&mut self.complained, true) {
                self.notice = Some(format!("{}: {e}", self.places.favourites.display()));
            }
            Vec::new()
        });
        let drives = home::drives(&self.places.system, &self.places.udev);
        let partition = |volume: &AtHand| crate::header::partition(&volume.options).next().cloned();
        let mut all: Vec<AtHand> = Vec::new();
        for volume in favourites.into_iter().chain(self.recent.iter().cloned()).chain(drives) {
            let open = self.home.mounted.iter().any(|mounted| Path::new(&mounted.volume) == volume.path);
            if !open && all.iter().all(|other| (&other.path, partition(other)) != (&volume.path, partition(&volume))) {
                all.push(volume);
            }
        }
        all
    }

    fn finished(&mut self, done: &Done, cancelled: bool, then: Then) {
        let (texts, home) = (self.texts, self.places.home.clone());
        let cancelled = cancelled || done.code == CANCELLED;
        let then = match (then, &self.page) {
            (Then::Changed(recovery), Page::Change(page)) => {
                let call = show(&page.volume.at.path, &page.volume.at.options);
                return self.begin(texts.looking, [call], Then::Refreshed(done.clone(), cancelled, recovery));
            }
            (then, _) => then,
        };
        if let (Page::Measure(page), Then::Lab(_)) = (&mut self.page, &then) {
            page.look_for_runs(&home);
        }
        if cancelled {
            self.notice = (!matches!(then, Then::Measured)).then(|| texts.cancelled.to_owned());
            return;
        }
        let failure = (!done.ok()).then(|| done.error.clone().unwrap_or_else(|| texts.failed.to_owned()));
        match then {
            Then::Looked(at_hand) if !done.out.is_null() => {
                self.found(at_hand, open::verdict(&done.out, texts));
            }
            Then::Shown(at_hand, verdict) => {
                let volume = Volume::new(at_hand, verdict, header(&done.out, texts), &home, texts);
                self.go(Page::Open(Box::new(Open::new(volume, texts))));
            }
            Then::Formats(action) if done.ok() => {
                self.formats = done.out.clone();
                self.act(action);
            }
            Then::Mounted => match (&mut self.page, done.ok()) {
                (Page::Open(page), false) => page.failed(done, texts),
                (Page::Open(page), true) => {
                    let at = page.volume.at.clone();
                    self.remember(AtHand { why: Why::Recent, ..at });
                    self.go(Page::Home);
                    self.notice = (!done.warnings.is_empty()).then(|| done.warnings.join("\n"));
                }
                _ => {}
            },
            Then::Unlocked => match (&mut self.page, done.ok()) {
                (Page::Open(page), false) => page.failed(done, texts),
                _ => self.go(Page::Home),
            },
            Then::Explained => {
                if let Page::Open(page) = &mut self.page {
                    page.trouble = None;
                    (page.explained, page.reveal) = (Some(open::explained(done)), true);
                }
            }
            Then::Verified => match &mut self.page {
                Page::Open(page) if done.out.is_null() => page.failed(done, texts),
                Page::Open(page) => {
                    page.trouble = None;
                    (page.explained, page.reveal) = (Some(open::verified(done, &page.volume, texts)), true);
                }
                _ => {}
            },
            Then::Recommended if done.ok() => {
                if let Page::Create(page) = &mut self.page {
                    page.take(&done.out, &home, texts);
                    page.step = usize::from(page.recommended.is_some());
                }
            }
            Then::Created(recovery) => {
                if let Page::Create(page) = &mut self.page {
                    match failure {
                        Some(failure) => page.trouble = Some(failure),
                        None => {
                            if let Some(path) = done.out["path"].as_str() {
                                let options = open::opened_with(&done.out);
                                self.remember(AtHand { options, ..AtHand::chosen(Path::new(path)) });
                            }
                            self.go(Page::Home);
                            let failed = self.show_recovery(recovery);
                            let said = [Some(format!("{} {}", texts.created, texts.created_next)), failed];
                            self.notice = Some(said.into_iter().flatten().collect::<Vec<_>>().join("\n"));
                        }
                    }
                }
            }
            Then::Refreshed(before, cancelled, recovery) => {
                if let Page::Change(page) = &mut self.page {
                    page.finished(&before, header(&done.out, texts), &create::choices(&self.formats), &home, texts);
                    if cancelled {
                        page.result = Some((false, vec![texts.cancelled.to_owned()]));
                    }
                    let failed = self.show_recovery(recovery.filter(|_| before.ok()));
                    let shown = matches!(self.page, Page::Recovery(_)) && !before.warnings.is_empty();
                    self.notice = failed.or(shown.then(|| before.warnings.join("\n")));
                }
            }
            Then::Measured => {
                if let Page::Measure(page) = &mut self.page
                    && let Some(call) = page.finished(done)
                {
                    self.begin(texts.measuring, [call], Then::Measured);
                }
            }
            Then::Lab(out) => {
                if let Page::Measure(page) = &mut self.page {
                    (page.trouble, page.found) = (failure, measure::found(&done.out, &out));
                }
            }
            Then::Looked(_)
            | Then::Formats(_)
            | Then::Recommended
            | Then::Changed(_)
            | Then::Unmounted(_)
            | Then::Listed => {
                self.notice = failure;
            }
        }
    }

    /// Shows a new recovery key. If that fails, its file is still there, and the sentence names it.
    fn show_recovery(&mut self, file: Option<PathBuf>) -> Option<String> {
        let file = file?;
        match Recovery::read(&file) {
            Ok(recovery) => {
                self.go(Page::Recovery(Box::new(recovery)));
                None
            }
            Err(e) => Some(format!("{}: {}: {e}", self.texts.recovery_title, file.display())),
        }
    }

    /// Keeps it at hand for the next time.
    fn remember(&mut self, at: AtHand) {
        self.recent.retain(|recent| (&recent.path, &recent.options) != (&at.path, &at.options));
        self.recent.insert(0, at);
    }
}

/// Whether something is typed by this.
fn types(event: &Event) -> bool {
    matches!(event, Event::Text(_) | Event::Paste(_) | Event::Ime(egui::ImeEvent::Commit(_)))
}

/// Unfinished work ends with the window. A program that is creating a volume gets time to remove the unfinished one.
impl Drop for App {
    fn drop(&mut self) {
        let begin = Instant::now();
        let left = self.left.take().and_then(|left| left.work);
        let mut all: Vec<Work> = self.work.take().into_iter().chain(left).map(|(work, _)| work).collect();
        all.iter_mut().for_each(Work::cancel);
        for work in &mut all {
            while work.poll(&self.programs).is_none() && begin.elapsed() < FAREWELL {
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }
}

impl eframe::App for App {
    fn ui(&mut self, ui: &mut Ui, _: &mut eframe::Frame) {
        self.draw(ui);
    }
}
