//! The window: which page is shown, what is at work, and what comes of it.

use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use eframe::egui::{self, CentralPanel, Panel, ScrollArea, ThemePreference, Ui};
use serde_json::Value;

use crate::change::Change;
use crate::chooser::Chooser;
use crate::create::{self, Create};
use crate::desktop::{self, Desktop};
use crate::draw::{self, Action};
use crate::form::Input;
use crate::header::{header, show};
use crate::home::{self, AtHand, Home, Why};
use crate::measure::{self, Measure};
use crate::open::{self, Open, Verdict, Volume};
use crate::program::{CANCELLED, Call, Done, Job, Programs};
use crate::steps::Work;
use crate::texts::Texts;

/// How often the first page looks whether the list of mounts is another one.
const GLANCE: Duration = Duration::from_secs(1);

/// How often it asks what is mounted if it is not: when somebody works in the window, and when not.
const REFRESH: [Duration; 2] = [Duration::from_secs(4), Duration::from_secs(30)];

/// What the kernel has mounted.
const MOUNTS: &str = "/proc/self/mountinfo";

/// How long a window that is closed waits for what it has begun.
const FAREWELL: Duration = Duration::from_secs(10);

/// Where things are.
#[derive(Clone)]
pub struct Places {
    pub home: PathBuf,
    pub favourites: PathBuf,
    pub system: PathBuf,
    pub udev: PathBuf,
}

impl Places {
    pub fn usual() -> Self {
        let path = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let home = path("HOME").unwrap_or_else(|| "/".into());
        let favourites =
            path("XDG_CONFIG_HOME").unwrap_or_else(|| home.join(".config")).join("claviger/favourites.toml");
        Self { home, favourites, system: "/sys".into(), udev: "/run/udev".into() }
    }
}

pub enum Page {
    Home,
    Open(Box<Open>),
    Create(Box<Create>),
    Change(Box<Change>),
    Measure(Box<Measure>),
}

/// What is done with what the work at hand comes to.
enum Then {
    /// It was looked at.
    Looked(AtHand),
    /// What its header says is known.
    Shown(AtHand, Verdict),
    /// The formats that can be made are known, and this was wanted.
    Formats(Action),
    Mounted,
    Unlocked,
    Explained,
    Recommended,
    /// A volume was made: whether it has a recovery key that is to be printed.
    Created(bool),
    Changed,
    /// What the header says after a change, what that came to, and whether it was cancelled.
    Refreshed(Done, bool),
    Measured,
    /// A run of the lab, and its folder.
    Lab(PathBuf),
    /// All that it says is what went wrong.
    Listed,
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
    chooser: Option<(Chooser, Option<usize>)>,
    listing: Option<Job>,
    listed: Option<Instant>,
    mounts: Vec<u8>,
    recent: Vec<AtHand>,
    formats: Value,
    focused: bool,
    styled: bool,
    /// Whether it was said that the favourites cannot be read.
    complained: bool,
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
            chooser: None,
            listing: None,
            listed: None,
            mounts: Vec::new(),
            recent: Vec::new(),
            formats: Value::Null,
            focused: false,
            styled: false,
            complained: false,
        }
    }

    /// Whether something is at work that a page waits for.
    pub fn at_work(&self) -> bool {
        self.work.is_some()
    }

    /// Draws everything, and does what is asked for.
    pub fn draw(&mut self, ui: &mut Ui) {
        if !self.styled {
            self.styled = true;
            ui.ctx().all_styles_mut(draw::style);
        }
        self.poll(ui.ctx());
        self.ask_desktop(ui.ctx());
        let dropped = ui.input(|input| input.raw.dropped_files.first().map(|file| file.path().to_owned()));
        let mut wanted = dropped.map(Action::Look);
        let texts = self.texts;
        let at = match &self.page {
            Page::Create(_) => Action::Create,
            Page::Measure(_) => Action::Measure,
            _ => Action::Home,
        };
        let busy = self.work.as_ref().is_some_and(|(work, then)| work.shows() && !matches!(then, Then::Measured));
        Panel::top("pages").show(ui, |ui| {
            ui.add_enabled_ui(!busy, |ui| wanted = wanted.take().or(draw::pages(ui, &at, texts)));
        });
        if let Some((work, _)) = self.work.as_ref().filter(|_| busy) {
            Panel::bottom("work").show(ui, |ui| {
                ui.add_space(4.0);
                wanted = wanted.take().or(draw::progress(ui, &work.title, work.progress().as_ref(), texts));
                ui.add_space(4.0);
            });
        }
        CentralPanel::default().show(ui, |ui| {
            ScrollArea::vertical().auto_shrink(false).show(ui, |ui| {
                if let Some(notice) = &self.notice {
                    wanted = wanted.take().or(draw::notice(ui, notice, texts));
                }
                ui.add_enabled_ui(!busy, |ui| wanted = wanted.take().or(self.page(ui)));
            });
        });
        if let Some(action) = wanted {
            self.act(action);
            ui.ctx().request_repaint();
        }
        if self.work.is_some() {
            ui.ctx().request_repaint_after(Duration::from_millis(100));
        } else if matches!(self.page, Page::Home) {
            ui.ctx().request_repaint_after(GLANCE);
        }
    }

    fn page(&mut self, ui: &mut Ui) -> Option<Action> {
        let texts = self.texts;
        let layout = self.desktop.wishes().layout;
        let layout = layout.as_deref();
        if let Some((chooser, _)) = &mut self.chooser {
            return draw::chooser(ui, chooser, &self.places.home, texts);
        }
        match &mut self.page {
            Page::Home => draw::home(ui, &self.home, texts),
            Page::Open(page) => draw::open(ui, page, layout, texts),
            Page::Create(page) => draw::create(ui, page, layout, texts),
            Page::Change(page) => draw::change(ui, page, layout, texts),
            Page::Measure(page) => draw::measure(ui, page, texts),
        }
    }

    /// Light or dark as the desktop has it, asked again whenever the window comes to the front.
    fn ask_desktop(&mut self, ctx: &egui::Context) {
        let focused = ctx.input(|input| input.focused);
        if focused && !self.focused {
            let told = ctx.clone();
            self.desktop.ask(move || told.request_repaint());
        }
        self.focused = focused;
        let theme = match self.desktop.wishes().dark {
            Some(true) => ThemePreference::Dark,
            Some(false) => ThemePreference::Light,
            None => ThemePreference::System,
        };
        if ctx.options(|options| options.theme_preference) != theme {
            ctx.set_theme(theme);
        }
    }

    /// Does what was asked for.
    pub fn act(&mut self, action: Action) {
        let (texts, home) = (self.texts, self.places.home.clone());
        match action {
            Action::Read => self.notice = None,
            Action::Cancel => self.cancel(),
            Action::Choose(field) => self.chooser = Some((Chooser::at(&home), field)),
            Action::Chosen(path) => self.chosen(path),
            _ if self.work.as_ref().is_some_and(|(_, then)| !matches!(then, Then::Measured)) => {}
            Action::Home => self.go(Page::Home),
            Action::Look(path) => self.look(AtHand::chosen(&path)),
            Action::AtHand(number) => {
                if let Some(at_hand) = self.home.at_hand.get(number).cloned() {
                    self.look(at_hand);
                }
            }
            Action::OpenFolder(dir) => {
                self.notice = desktop::open_folder(&dir).err().map(|e| format!("xdg-open {}: {e}", dir.display()));
            }
            Action::Lock(volume) => self.begin(texts.locking, [Call::new(["lock"]).with([volume])], Then::Listed),
            Action::Unlock(volume) => self.go(Page::Open(Box::new(Open::unlocking(&volume, texts)))),
            Action::Unmount(target) => {
                self.begin(texts.unmounting, [Call::new(["unmount"]).with([target])], Then::Listed);
            }
            Action::UnmountAll => self.begin(texts.unmounting, [Call::new(["unmount", "--all"])], Then::Listed),
            Action::Create | Action::Measure | Action::Change if self.formats.is_null() => {
                self.begin(texts.looking, [Call::new(["create", "--list"])], Then::Formats(action));
            }
            Action::Create => self.go(Page::Create(Box::new(Create::new(&self.formats)))),
            Action::Measure => {
                // Those of the window that two studies photographed.
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
                    match page.explain(&home) {
                        Ok(call) => self.begin(texts.explaining, [call], Then::Explained),
                        Err(lacking) => page.trouble = Some(lacking.sentence(texts)),
                    }
                }
            }
            Action::Recommend => {
                if let Page::Create(page) = &self.page {
                    let call = page.recommend();
                    self.begin(texts.choosing, [call], Then::Recommended);
                }
            }
            Action::Expert(format) => {
                if let Page::Create(page) = &mut self.page {
                    (page.expert, page.form, page.trouble) = (None, None, None);
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

    /// Shows another page. What was typed on the one before is forgotten with it.
    fn go(&mut self, page: Page) {
        if let Some((work, _)) = &mut self.work {
            work.cancel();
        }
        self.page = page;
        self.notice = None;
        self.listed = None;
    }

    fn begin(&mut self, title: &str, calls: impl IntoIterator<Item = Call>, then: Then) {
        self.notice = None;
        if let Some((before, _)) = &mut self.work {
            before.cancel();
        }
        self.work = Some((Work::new(title, calls, &self.programs), then));
    }

    fn look(&mut self, mut at_hand: AtHand) {
        self.chooser = None;
        // What a conversion was making is opened by what it is made of.
        if let Some(conversion) = crate::header::conversion(&at_hand.path, &self.places.home) {
            at_hand = AtHand { path: conversion.source, ..at_hand };
        }
        self.begin(self.texts.looking, [Call::new(["identify"]).with([&at_hand.path])], Then::Looked(at_hand));
    }

    /// Asks what its header says, if it may have one.
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

    fn chosen(&mut self, path: Option<PathBuf>) {
        let Some((_, field)) = self.chooser.take() else { return };
        let form = match &mut self.page {
            Page::Open(page) => Some(&mut page.form),
            Page::Create(page) => page.form.as_mut(),
            Page::Change(page) => page.form(),
            Page::Measure(page) => Some(&mut page.lab),
            Page::Home => None,
        };
        match (path, field, form) {
            (Some(path), None, _) => self.look(AtHand::chosen(&path)),
            (Some(path), Some(field), Some(form)) => match form.fields.get_mut(field).map(|field| &mut field.input) {
                Some(Input::Paths(paths)) => paths.push(path),
                Some(Input::Existing(text)) => *text = path.display().to_string(),
                _ => {}
            },
            _ => {}
        }
    }

    /// Does what the form of the page is for.
    fn carry_out(&mut self) {
        let (texts, home) = (self.texts, self.places.home.clone());
        match &mut self.page {
            Page::Open(page) => match page.call(&home) {
                Err(lacking) => page.trouble = Some(lacking.sentence(texts)),
                Ok(call) => {
                    page.trouble = None;
                    // A favourite's folder is made, as `claviger attach` does. If it cannot be, the program says so.
                    if let Some(dir) = &page.volume.at.dir {
                        let _ = fs::DirBuilder::new().recursive(true).mode(0o700).create(dir);
                    }
                    let then = if page.unlocks { Then::Unlocked } else { Then::Mounted };
                    self.begin(texts.mounting, [call], then);
                }
            },
            Page::Create(page) => match page.calls(&home) {
                Err(lacking) => page.trouble = Some(lacking.sentence(texts)),
                Ok(steps) => {
                    page.trouble = None;
                    let printed = page.recovers();
                    self.begin(texts.creating, steps, Then::Created(printed));
                }
            },
            Page::Change(page) => {
                page.result = None;
                let Some(form) = page.form() else { return };
                let (title, call) = (form.title, form.call(&home));
                match call {
                    Err(lacking) => page.result = Some((false, vec![lacking.sentence(texts)])),
                    Ok(call) => self.begin(title, [call], Then::Changed),
                }
            }
            Page::Measure(page) => match page.lab.call(&home) {
                Err(lacking) => page.trouble = Some(lacking.sentence(texts)),
                Ok(call) => {
                    (page.trouble, page.found) = (None, None);
                    // One at a time: they would measure each other.
                    page.stop();
                    let out = crate::form::absolute(page.lab.text(measure::OUT), &home);
                    self.begin(texts.running_lab, [call], Then::Lab(out));
                }
            },
            Page::Home => {}
        }
    }

    /// Takes what has been done meanwhile.
    fn poll(&mut self, ctx: &egui::Context) {
        if let Some((work, _)) = &mut self.work
            && let Some(done) = work.poll(&self.programs)
            && let Some((work, then)) = self.work.take()
        {
            self.finished(&done, work.is_cancelled(), then);
            self.listed = None;
            ctx.request_repaint();
        }
        if let Some(done) = self.listing.as_ref().and_then(Job::done) {
            self.listing = None;
            self.home.mounted = home::mounted(&done.out, self.texts);
            self.home.at_hand = self.at_hand();
            ctx.request_repaint();
        }
        if !matches!(self.page, Page::Home) || self.listing.is_some() || self.work.is_some() {
            return;
        }
        // Most of what changes is seen there, without a process for it.
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
            // Once: it is looked at every few seconds.
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
        if let Then::Changed = then
            && let Page::Change(page) = &self.page
        {
            let call = show(&page.volume.at.path, &page.volume.at.options);
            return self.begin(texts.looking, [call], Then::Refreshed(done.clone(), cancelled));
        }
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
                    page.explained = Some(open::explained(done));
                }
            }
            Then::Recommended if done.ok() => {
                if let Page::Create(page) = &mut self.page {
                    page.take(&done.out, &home, texts);
                }
            }
            Then::Created(printed) => {
                if let Page::Create(page) = &mut self.page {
                    match failure {
                        Some(failure) => page.trouble = Some(failure),
                        None => {
                            if let Some(path) = done.out["path"].as_str() {
                                let options = open::opened_with(&done.out);
                                self.remember(AtHand { options, ..AtHand::chosen(Path::new(path)) });
                            }
                            self.go(Page::Home);
                            let print = if printed { texts.print_recovery } else { "" };
                            self.notice = Some(format!("{} {print}", texts.created));
                        }
                    }
                }
            }
            Then::Refreshed(before, cancelled) => {
                if let Page::Change(page) = &mut self.page {
                    page.finished(&before, header(&done.out, texts), &create::choices(&self.formats), &home, texts);
                    if cancelled {
                        page.result = Some((false, vec![texts.cancelled.to_owned()]));
                    }
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
            Then::Looked(_) | Then::Formats(_) | Then::Recommended | Then::Changed | Then::Listed => {
                self.notice = failure;
            }
        }
    }

    /// The next time it is at hand.
    fn remember(&mut self, at: AtHand) {
        self.recent.retain(|recent| (&recent.path, &recent.options) != (&at.path, &at.options));
        self.recent.insert(0, at);
    }
}

/// What is at work ends with the window: who makes a volume removes what is half made, and is given the time for it.
impl Drop for App {
    fn drop(&mut self) {
        let Some((work, _)) = &mut self.work else { return };
        work.cancel();
        let begin = Instant::now();
        while work.poll(&self.programs).is_none() && begin.elapsed() < FAREWELL {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl eframe::App for App {
    fn ui(&mut self, ui: &mut Ui, _: &mut eframe::Frame) {
        self.draw(ui);
    }
}
