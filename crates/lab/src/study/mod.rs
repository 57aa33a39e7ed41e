//! Studies that are repeated: which workloads on which facilities, and which of a document's tables the figures belong in.
//!
//! A study is data: `data/studies/*.toml` come with the program, and users write their own. It stands whole in the plan of its
//! run, so that a stored run needs no file to be reported. What can be measured is the catalogue's; a study only names it, and
//! can therefore make nobody run a command.

mod tables;

use std::collections::BTreeMap;
use std::path::Path;

use claviger_engine::store::files;
use claviger_engine::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

pub use tables::{Cell, Conclusion as Judged, Filled, Here, conclusions, filled};

use crate::facility::{Catalogue, Kind};
use crate::published::{self, Figure};
use crate::recommend::Answers;
use crate::run::Level;
use crate::statistics::median;
use crate::transfer::SECTOR;
use crate::workloads::{self, filesystems::FILESYSTEMS};

/// The studies that come with this program: their names and texts.
const STUDIES: &[(&str, &str)] = &[
    ("rantanen2013", include_str!("../../data/studies/rantanen2013.toml")),
    ("bsi2010", include_str!("../../data/studies/bsi2010.toml")),
    ("zhan2010", include_str!("../../data/studies/zhan2010.toml")),
    ("linux2013", include_str!("../../data/studies/linux2013.toml")),
    ("tresorsgx", include_str!("../../data/studies/tresorsgx.toml")),
];

/// The longest file of a study, in bytes.
const FILE_MAX: u64 = 1 << 20;

/// The longest text in one, in bytes.
const TEXT_MAX: usize = 4000;

/// Media of a run, at most.
pub(crate) const MOST_MEDIA: usize = 16;

/// Repetitions within a pass, at most.
const MOST_REPETITIONS: usize = 1000;

/// A study, and how it is repeated.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Study {
    /// Its name on the command line.
    pub name: String,
    /// Its title for people.
    pub title: String,
    /// What is repeated, and what is not, in whole sentences.
    pub about: String,
    /// Name of its published figures; nothing where it has none.
    pub published: Option<String>,
    /// Names of facilities. A workload may have others of its own.
    pub facilities: Vec<String>,
    /// In the size of the study: hours.
    pub thorough: Extent,
    /// At a tenth of it.
    pub standard: Extent,
    /// A smoke test of minutes.
    pub quick: Extent,
    /// What is done.
    #[serde(rename = "workload")]
    pub workloads: Vec<Work>,
    /// Its tables.
    #[serde(rename = "table")]
    pub tables: Vec<Table>,
    /// What it concluded.
    #[serde(default, rename = "conclusion")]
    pub conclusions: Vec<Conclusion>,
}

/// How much of a study is done.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Extent {
    /// Share of the sizes of its data.
    pub scale: f64,
    /// Passes of everything: at least, where there is a `most`.
    pub repeats: usize,
    /// Passes of anything at most: what is not steady after `repeats` is done again until then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub most: Option<usize>,
    /// Relative standard deviation at which a figure is steady: 0.03 is 3 %. Without it, that of any run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steady: Option<f64>,
    /// Bytes of each volume.
    pub volume: u64,
}

/// A workload of a study.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Work {
    /// Name of the workload.
    pub name: String,
    /// How the study did it.
    #[serde(default)]
    pub parameters: Parameters,
    /// Names of the only facilities that it is done with. Without any, it is done with those of the study.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub facilities: Vec<String>,
}

/// What a study sets in a workload. Each workload says which of these it takes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Parameters {
    /// Bytes that are moved, at full scale.
    pub size: Option<u64>,
    /// Bytes of a request. One that is larger than what is moved is all of it.
    pub blocks: Vec<usize>,
    /// Seconds after which it ends even so.
    pub seconds: Option<f64>,
    /// How often it is done in a pass.
    pub repetitions: Option<usize>,
    /// What is written, each of these in turn.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub data: Vec<Content>,
    /// Bytes of the files that it is done with, at full scale.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<u64>,
    /// How many files, or trees of files, there are. Without files, Bonnie++ leaves out what it does with them; others have one at least.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// Whether characters are written and read one by one, too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub characters: Option<bool>,
    /// Clients at a time.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub clients: Vec<u32>,
    /// Threads, each of these in turn; 0 is one for each processor.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub threads: Vec<u32>,
    /// File systems that it is done on, each of these in turn. Without any, the usual one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub filesystems: Vec<Kind>,
    /// Whether each write is flushed before the next.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub synchronous: Option<bool>,
    /// Whether what is unpacked is compressed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compressed: Option<bool>,
}

/// What is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Content {
    /// Data that cannot be compressed.
    Random,
    /// Zeros.
    Zeros,
}

/// A table or figure of a study.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Table {
    /// As it is numbered there: `Table 8`, `Kuvio 2`. Empty for one that the study does not have.
    #[serde(default)]
    pub number: String,
    /// What it shows.
    pub title: String,
    /// What differs in method, in whole sentences.
    pub differs: String,
    /// Whether it is drawn too.
    #[serde(default)]
    pub chart: bool,
    /// Which of the run's media it is of, counted from 1; the first, where it says nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub medium: Option<usize>,
    /// Where all of its published figures stand.
    #[serde(default)]
    pub published: Selector,
    /// What is measured. Without any, the study's figures of this number are not known, and only `differs` is told.
    #[serde(default, rename = "row")]
    pub rows: Vec<Row>,
    /// With what.
    #[serde(default, rename = "column")]
    pub columns: Vec<Column>,
    /// Or, in the place of figures, who asks which facility to take.
    #[serde(default, rename = "scenario", skip_serializing_if = "Vec::is_empty")]
    pub scenarios: Vec<Scenario>,
}

/// Somebody for whom a study names a facility.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Who.
    pub title: String,
    /// What they say when they are asked.
    pub answers: Answers,
}

/// What is measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Row {
    /// For people.
    pub title: String,
    /// The workload; nothing where only the study has figures.
    pub workload: Option<String>,
    /// Its operation.
    #[serde(default)]
    pub operation: String,
    /// Its series.
    #[serde(default)]
    pub series: String,
    /// The place on its axis. Without one, the operation has to have one place only.
    pub x: Option<f64>,
    /// What of it is shown.
    #[serde(default)]
    pub show: Show,
    /// Which published figures belong here; nothing where the study has none.
    pub published: Option<Selector>,
    /// Places on the axis, for each of which there is such a row: `{}` in its title and in what selects its published
    /// figures is the place's title. A study that was read has none left.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub at: Vec<Place>,
}

/// A place on an axis.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Place {
    /// In the unit of the axis, such as bytes.
    pub x: f64,
    /// For people, as the study has it.
    pub title: String,
    /// What else selects its published figures.
    #[serde(default)]
    pub published: Selector,
}

/// What is shown of a figure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Show {
    /// The figure itself.
    #[default]
    Figure,
    /// Seconds that the processors were busy per 10^9 bytes.
    Processor,
}

/// A facility of a table, or whatever else its columns differ in: it may say any part of what a row does not say.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Column {
    /// For people.
    pub title: String,
    /// The facility; nothing where only the study has figures.
    pub facility: Option<String>,
    /// Which of the run's media, where it is not that of the table.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub medium: Option<usize>,
    /// The workload, where rows name none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workload: Option<String>,
    /// Its operation, where rows name none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub operation: String,
    /// Its series, where rows name none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub series: String,
    /// Which published figures belong here; nothing where the study has none.
    pub published: Option<Selector>,
    /// Title of the column without encryption that the study's losses are against.
    pub against: Option<String>,
}

/// Which published figures are meant: each of these columns has exactly this text. Names are those of [`Figure`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Selector(BTreeMap<String, String>);

/// Something that a study concluded.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Conclusion {
    /// What it says, in a sentence of our own.
    pub text: String,
    /// Where it says so.
    pub source: String,
    /// What has to hold for it to be true here. Without any, it cannot be said, and `unless` says why.
    #[serde(default, rename = "check")]
    pub checks: Vec<Check>,
    /// Why it cannot be judged here at all, in a whole sentence.
    pub unless: Option<String>,
}

/// One figure as a share of another, and what it has to be.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Check {
    /// Name of the workload.
    pub workload: String,
    /// Its operation.
    pub operation: String,
    /// Its series.
    #[serde(default)]
    pub series: String,
    /// The place on its axis, as of a [`Row`].
    pub x: Option<f64>,
    /// Name of the facility.
    pub facility: String,
    /// Name of the facility that it is compared with; nothing for the same.
    pub against: Option<String>,
    /// The operation that it is compared with; nothing for the same.
    pub against_operation: Option<String>,
    /// The series that it is compared with; nothing for the same.
    pub against_series: Option<String>,
    /// The place on the axis that it is compared with; nothing for the same.
    pub against_x: Option<f64>,
    /// The share is at least this.
    pub at_least: Option<f64>,
    /// The share is at most this.
    pub at_most: Option<f64>,
}

/// What a row and a column of a table together are a figure of.
#[derive(Clone, Copy, Debug)]
struct Meant<'a> {
    workload: &'a str,
    operation: &'a str,
    series: &'a str,
    x: Option<f64>,
    facility: &'a str,
    /// Counted from 0.
    medium: usize,
}

impl<'a> Meant<'a> {
    /// Nothing where only the study has a figure.
    fn of(table: &'a Table, row: &'a Row, column: &'a Column) -> Option<Self> {
        let either = |row: &'a String, column: &'a String| if row.is_empty() { column } else { row };
        Some(Self {
            workload: row.workload.as_ref().or(column.workload.as_ref())?,
            operation: either(&row.operation, &column.operation),
            series: either(&row.series, &column.series),
            x: row.x,
            facility: column.facility.as_ref()?,
            medium: column.medium_in(table),
        })
    }
}

impl Column {
    /// Its medium, counted from 0.
    fn medium_in(&self, table: &Table) -> usize {
        self.medium.or(table.medium).unwrap_or(1).saturating_sub(1)
    }
}

/// The names of the studies that come with this program.
pub fn names() -> impl Iterator<Item = &'static str> {
    STUDIES.iter().map(|(name, _)| *name)
}

/// The study of this name, or the one in this file.
///
/// # Errors
/// `Misuse` where there is neither, and for a file that is no study; `Io`.
pub fn find(name: &str, catalogue: &Catalogue) -> Result<Study> {
    let built_in = STUDIES.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
    let path = Path::new(name);
    let text = match built_in {
        Some((_, text)) => (*text).to_owned(),
        None if path.is_file() => read(path)?,
        None => {
            let hint = format!("The studies are: {}. Or name a file.", names().collect::<Vec<_>>().join(", "));
            return Err(Error::misuse(format!("there is no study called {name}")).hint(hint));
        }
    };
    parse(&text, catalogue).map_err(|e| e.at(path))
}

fn parse(text: &str, catalogue: &Catalogue) -> Result<Study> {
    let mut study: Study = toml::from_str(text).map_err(|e| Error::misuse(e.to_string()))?;
    for table in &mut study.tables {
        table.rows = table.rows.iter().flat_map(Row::at_each_place).collect();
    }
    study.check()?;
    study.check_names(catalogue)?;
    Ok(study)
}

fn read(path: &Path) -> Result<String> {
    let file = files::open_regular(path)?;
    let bytes = file.map(|file| files::read_at_most(&file, FILE_MAX)).transpose()?.flatten();
    let text = bytes.and_then(|bytes| String::from_utf8(bytes).ok());
    text.ok_or_else(|| {
        Error::misuse(format!("not a text of at most {FILE_MAX} bytes, as a study's file must be")).at(path)
    })
}

impl Study {
    /// How much of it is done at this level.
    pub fn extent(&self, level: Level) -> Extent {
        match level {
            Level::Quick => self.quick,
            Level::Standard => self.standard,
            Level::Thorough => self.thorough,
        }
    }

    /// What it asks of a workload.
    pub fn parameters(&self, workload: &str) -> Option<&Parameters> {
        self.workloads.iter().find(|work| work.name == workload).map(|work| &work.parameters)
    }

    /// Checks its numbers and texts: a stored run is untrusted.
    ///
    /// # Errors
    /// `Malformed`.
    pub(crate) fn check(&self) -> Result<()> {
        let wrong = |what: String| Err(ErrorKind::Malformed { field: "study", offset: 0, what }.into());
        let json = serde_json::to_value(self).map_err(|e| Error::misuse(e.to_string()))?;
        let mut texts = Vec::new();
        strings(&json, &mut texts);
        if let Some(text) = texts.iter().find(|text| text.len() > TEXT_MAX || text.contains(char::is_control)) {
            return wrong(format!(
                "{:?}: a text that is too long, or not one line",
                text.chars().take(80).collect::<String>()
            ));
        }
        for Extent { scale, repeats, most, steady, .. } in [self.quick, self.standard, self.thorough] {
            let most = most.is_none_or(|most| (repeats..=MOST_REPETITIONS).contains(&most));
            let steady = steady.is_none_or(|steady| steady > 0.0 && steady <= 1.0);
            if !(scale > 0.0 && scale <= 10.0 && (1..=MOST_REPETITIONS).contains(&repeats) && most && steady) {
                return wrong(format!("a scale of {scale}, or {repeats} repeats, or when they end"));
            }
        }
        for Work { name, parameters, .. } in &self.workloads {
            let Parameters {
                size,
                blocks,
                seconds,
                repetitions,
                data: _,
                files,
                count,
                characters: _,
                clients,
                threads,
                filesystems: _,
                synchronous: _,
                compressed: _,
            } = parameters;
            let sizes = blocks.iter().all(|block| *block > 0 && block.is_multiple_of(SECTOR) && *block <= 1 << 30);
            let seconds = seconds.is_none_or(|s| s > 0.0 && s <= 86400.0);
            let times = repetitions.is_none_or(|n| (1..=MOST_REPETITIONS).contains(&n));
            let files = files.iter().chain(size).all(|size| (1..=1 << 50).contains(size))
                && count.is_none_or(|count| count <= 1 << 20)
                && clients.iter().all(|clients| (1..=10_000).contains(clients))
                && threads.iter().all(|threads| *threads <= 4096);
            if !(sizes && seconds && times && files) {
                return wrong(format!("{name} has a parameter that makes no sense"));
            }
        }
        let media = self.tables.iter().flat_map(|t| t.columns.iter().map(|c| c.medium).chain([t.medium])).flatten();
        if let Some(medium) = media.into_iter().find(|medium| !(1..=MOST_MEDIA).contains(medium)) {
            return wrong(format!("a medium number {medium}: they count from 1 to {MOST_MEDIA}"));
        }
        let numbers = self.tables.iter().flat_map(|t| &t.rows).filter_map(|row| row.x);
        let bounds =
            self.conclusions.iter().flat_map(|c| &c.checks).flat_map(|c| [c.x, c.against_x, c.at_least, c.at_most]);
        let bounds = bounds.flatten();
        match numbers.chain(bounds).find(|number| !number.is_finite()) {
            Some(number) => wrong(format!("{number} is no number")),
            None => Ok(()),
        }
    }

    /// Checks that what it names is there: facilities, workloads, their parameters, and published figures.
    fn check_names(&self, catalogue: &Catalogue) -> Result<()> {
        let named = self.tables.iter().flat_map(|t| &t.columns).filter_map(|column| column.facility.as_ref());
        let checked = self.conclusions.iter().flat_map(|c| &c.checks);
        let checked_facilities =
            checked.clone().flat_map(|check| [Some(&check.facility), check.against.as_ref()]).flatten();
        let measured = |name: &String| {
            let of_it =
                |own: &String| own == name || catalogue.find(own).is_ok_and(|f| f.baseline.as_ref() == Some(name));
            self.all_facilities().any(of_it)
        };
        for name in self.all_facilities().chain(named).chain(checked_facilities) {
            catalogue.find(name)?;
            if !measured(name) {
                let what = format!("a table or conclusion names {name}, which the study does not measure");
                return Err(Error::misuse(what));
            }
        }
        for Work { name, parameters, .. } in &self.workloads {
            let found = workloads::all().find(|workload| workload.name() == name);
            let workload = found.ok_or_else(|| Error::misuse(format!("there is no workload called {name}")))?;
            if let Some(other) = parameters.given().find(|given| !workload.parameters().contains(given)) {
                return Err(Error::misuse(format!("the workload {name} has no parameter {other}")));
            }
        }
        let rows = self.tables.iter().flat_map(|t| &t.rows).filter_map(|row| row.workload.as_ref());
        let columns = self.tables.iter().flat_map(|t| &t.columns).filter_map(|column| column.workload.as_ref());
        for name in rows.chain(columns).chain(checked.map(|check| &check.workload)) {
            if self.parameters(name).is_none() {
                return Err(Error::misuse(format!("a table or conclusion names {name}, which the study does not do")));
            }
        }
        self.tables.iter().try_for_each(|table| self.check_published(table))
    }

    /// Names of all facilities, some of them perhaps more than once.
    pub fn all_facilities(&self) -> impl Iterator<Item = &String> {
        self.facilities.iter().chain(self.workloads.iter().flat_map(|work| &work.facilities))
    }

    /// Whether the workload is done with this facility. One that the study does not know is somebody's wish.
    pub fn does(&self, workload: &str, facility: &str) -> bool {
        let among = |names: &[String]| names.iter().any(|name| name.eq_ignore_ascii_case(facility));
        match self.workloads.iter().find(|work| work.name == workload) {
            Some(work) if !work.facilities.is_empty() => among(&work.facilities),
            _ => among(&self.facilities) || !self.workloads.iter().any(|work| among(&work.facilities)),
        }
    }

    /// Checks that each published figure that a table names is there, and that losses are against a column of it.
    fn check_published(&self, table: &Table) -> Result<()> {
        if let Some(name) = self.published.as_ref().filter(|name| published::study(name).is_none()) {
            return Err(Error::misuse(format!("there are no published figures of {name}")));
        }
        for column in &table.columns {
            let there = |title: &String| table.columns.iter().any(|c| c.title == *title && c.published.is_some());
            if column.against.as_ref().is_some_and(|title| !there(title)) {
                return Err(Error::misuse(format!(
                    "{}: what {} is against is not published",
                    table.title, column.title
                )));
            }
            for row in &table.rows {
                if row.published.is_some() && column.published.is_some() && self.published(table, row, column).is_none()
                {
                    let what = format!(
                        "{}: {} with {} is not published, or not clearly",
                        table.title, row.title, column.title
                    );
                    return Err(Error::misuse(what).hint("`claviger lab published` shows the figures."));
                }
            }
        }
        Ok(())
    }

    /// The published figure of a row and a column: where there are repetitions, their median.
    fn published(&self, table: &Table, row: &Row, column: &Column) -> Option<Figure> {
        let selectors = [&table.published, column.published.as_ref()?, row.published.as_ref()?];
        let study = self.published.as_ref()?;
        let all = published::all().iter().filter(|f| f.study == *study && selectors.iter().all(|s| s.finds(f)));
        let found: Vec<&Figure> = all.collect();
        let first = *found.first()?;
        let same = |f: &&Figure| Figure { run: String::new(), value: 0.0, note: String::new(), ..(*f).clone() };
        let values: Vec<f64> = found.iter().map(|f| f.value).collect();
        found.iter().all(|f| same(f) == same(&first)).then(|| Figure { value: median(&values), ..first.clone() })
    }
}

impl Parameters {
    /// The names of those that are set.
    fn given(&self) -> impl Iterator<Item = &'static str> {
        let Self { size, blocks, seconds, repetitions, data, files, count, characters, clients, threads, .. } = self;
        let Self { filesystems, synchronous, compressed, .. } = self;
        let all = [
            ("size", size.is_some()),
            ("blocks", !blocks.is_empty()),
            ("seconds", seconds.is_some()),
            ("repetitions", repetitions.is_some()),
            ("data", !data.is_empty()),
            ("files", !files.is_empty()),
            ("count", count.is_some()),
            ("characters", characters.is_some()),
            ("clients", !clients.is_empty()),
            ("threads", !threads.is_empty()),
            (FILESYSTEMS, !filesystems.is_empty()),
            ("synchronous", synchronous.is_some()),
            ("compressed", compressed.is_some()),
        ];
        all.into_iter().filter(|(_, given)| *given).map(|(name, _)| name)
    }
}

impl Row {
    /// One for each of its places, or itself where it has none.
    fn at_each_place(&self) -> Vec<Self> {
        let of = |Place { x, title, published: more }: &Place| {
            let published = self.published.as_ref().map(|Selector(texts)| {
                let filled = texts.iter().map(|(name, text)| (name.clone(), text.replace("{}", title)));
                Selector(filled.chain(more.0.clone()).collect())
            });
            let title = self.title.replace("{}", title);
            Self { title, x: Some(*x), published, at: Vec::new(), ..self.clone() }
        };
        if self.at.is_empty() { vec![self.clone()] } else { self.at.iter().map(of).collect() }
    }
}

impl Selector {
    fn finds(&self, figure: &Figure) -> bool {
        self.0.iter().all(|(name, text)| figure.column(name) == Some(text.as_str()))
    }
}

/// Every text in it.
fn strings<'a>(value: &'a serde_json::Value, texts: &mut Vec<&'a str>) {
    match value {
        serde_json::Value::String(text) => texts.push(text),
        serde_json::Value::Array(all) => all.iter().for_each(|one| strings(one, texts)),
        serde_json::Value::Object(all) => all.values().for_each(|one| strings(one, texts)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn catalogue() -> Catalogue {
        Catalogue::load(None).expect("sound files")
    }

    #[test]
    fn every_study_names_what_is_there() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("data/studies");
        assert_eq!(fs::read_dir(folder).expect("a folder").count(), STUDIES.len(), "each file is in the table");
        for (name, text) in STUDIES {
            let study = parse(text, &catalogue()).expect(name);
            assert_eq!(study.name, *name);
            assert!(
                study.tables.iter().all(|t| t.differs.ends_with('.')),
                "{name}: what differs is said at each table"
            );
            let published = study.tables.iter().flat_map(|t| t.rows.iter().map(move |row| (t, row)));
            let cells = published.flat_map(|(t, row)| t.columns.iter().map(move |column| (t, row, column)));
            assert!(cells.filter_map(|(t, row, column)| study.published(t, row, column)).count() > 0, "{name}");
            assert!(study.conclusions.iter().all(|c| c.checks.is_empty() == c.unless.is_some()), "{name}");
        }
    }

    #[test]
    fn what_is_wrong_in_a_file_is_told() {
        let (_, text) = STUDIES.iter().find(|(name, _)| *name == "tresorsgx").expect("there");
        for (sound, broken, words) in [
            ("\"plain\"", "\"plane\"", "no facility called plane"),
            ("name = \"hdparm-like\"", "name = \"hdparm-lik\"", "no workload called hdparm-lik"),
            ("size = 104857600", "sise = 104857600", "sise"),
            ("name = \"requests\"", "name = \"requests\"\nparameters = { size = 1 }", "no parameter size"),
            ("direction = \"write\"", "direction = \"up\"", "is not published"),
            ("published = \"tresorsgx2016\"", "published = \"nothing\"", "no published figures of nothing"),
            ("against = \"without encryption\"", "against = \"nothing\"", "is against is not published"),
            ("blocks = [104857600]", "blocks = [100]", "makes no sense"),
            ("[[table]]", "[[table]]\nmedium = 0", "count from 1"),
            ("repeats = 24", "repeats = 0", "0 repeats"),
            ("title = \"", "title = \"\\u001b", "not one line"),
        ] {
            assert!(text.contains(sound), "{sound}");
            let error = parse(&text.replacen(sound, broken, 1), &catalogue()).expect_err(broken).to_string();
            assert!(error.contains(words), "{broken}: {error}");
        }
    }

    #[test]
    fn repetitions_come_to_their_median() {
        let study = find("TresorSGX", &catalogue()).expect("there");
        let select = |facility: &str, metric: Option<&str>| {
            let mut table = study.tables[0].clone();
            let more = [("table", Some("Full Results")), ("metric", metric)];
            table.published.0.extend(more.into_iter().filter_map(|(name, text)| Some((name.into(), text?.into()))));
            let column = table.columns.iter().find(|c| c.title == facility).expect("a column").clone();
            study.published(&table, &table.rows[0], &column).map(|f| f.value)
        };
        assert_eq!(select("without encryption", Some("throughput")), Some(107.0));
        assert_eq!(select("the kernel", Some("throughput")), Some(104.5));
        assert_eq!(select("the kernel", None), None, "times and rates are there: it is not clear which is meant");
    }
}
