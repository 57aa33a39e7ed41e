//! Studies that are repeated: which workloads on which facilities, and which of a document's tables the figures belong in.
//!
//! A study is data: `data/studies/*.toml` come with the program, and users write their own. It stands whole in the plan of its
//! run, so that a stored run needs no file to be reported. A study only names what the catalogue can measure, so it cannot make
//! anybody run a command.

use std::collections::BTreeMap;

use claviger_engine::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

use crate::model::answers::RecommendAnswers;
use crate::model::parameters::{Parameters, PlannedWork, SECTOR};
use crate::model::plan::{Level, MOST_MEDIA, PlannedStudy};
use crate::model::published::{self, Figure};
use crate::model::statistics::median;

/// The longest text in one, in bytes.
const TEXT_MAX: usize = 4000;

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
    /// Name of its published figures; `None` if it has none.
    pub published: Option<String>,
    /// How often the study repeated everything; `None` if its document does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub passes: Option<usize>,
    /// How it combined its repetitions.
    #[serde(default)]
    pub average: Average,
    /// Where its data were; `None` if that makes no difference to its conclusions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub medium: Option<StudyMedium>,
    /// Whether its data without encryption were on the bare medium, without a server.
    #[serde(default)]
    pub bare: bool,
    /// Names of facilities. A workload may have others of its own.
    pub facilities: Vec<String>,
    /// In the size of the study: hours.
    pub thorough: StudyExtent,
    /// At a tenth of it.
    pub standard: StudyExtent,
    /// A smoke test of minutes.
    pub quick: StudyExtent,
    /// The parts of its document that are repeated, in the document's order.
    #[serde(default, rename = "section", skip_serializing_if = "Vec::is_empty")]
    pub sections: Vec<StudySection>,
    /// What is done.
    #[serde(rename = "workload")]
    pub workloads: Vec<PlannedWork>,
    /// Its tables and figures, in its order.
    #[serde(rename = "table")]
    pub tables: Vec<StudyTable>,
    /// What it concluded.
    #[serde(default, rename = "conclusion")]
    pub conclusions: Vec<StudyConclusion>,
}

/// A part of a study's document, and what becomes of it here.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StudySection {
    /// Its tables and sections, as the published figures name them.
    pub of: Vec<String>,
    /// What it is about.
    pub about: String,
    /// Whether it is repeated.
    pub here: Repetition,
    /// How, or why not, in whole sentences.
    pub how: String,
}

/// Whether something of a study is repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Repetition {
    /// As the study did it.
    Same,
    /// With another program or in another way that measures the same.
    Alike,
    /// It cannot be had here.
    None,
}

/// What becomes of repetitions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Average {
    /// Their median.
    #[default]
    Median,
    /// Their mean.
    Mean,
}

/// Where data are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StudyMedium {
    /// On a RAM disk.
    Memory,
    /// On a disk, a stick or whatever else keeps them.
    Disk,
}

/// How much of a study is done.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct StudyExtent {
    /// Share of the sizes of its data.
    pub scale: f64,
    /// Passes of everything: at least, where there is a `most`.
    pub repeats: usize,
    /// Maximum number of passes. Work that is not steady after `repeats` is repeated up to this number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub most: Option<usize>,
    /// Relative standard deviation at which a figure is steady: 0.03 is 3 %. Without it, that of any run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steady: Option<f64>,
    /// Bytes of each volume.
    pub volume: u64,
}

/// A table or figure of a study.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct StudyTable {
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
    pub published: FigureSelector,
    /// What is measured. Without rows, the study's figures are not known, and only `differs` is shown.
    #[serde(default, rename = "row")]
    pub rows: Vec<StudyRow>,
    /// With what.
    #[serde(default, rename = "column")]
    pub columns: Vec<StudyColumn>,
    /// Instead of figures: people who ask which facility to use.
    #[serde(default, rename = "scenario", skip_serializing_if = "Vec::is_empty")]
    pub scenarios: Vec<Scenario>,
}

/// Somebody for whom a study names a facility.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Who asks, and for what.
    pub title: String,
    /// Their answers to the questions.
    pub answers: RecommendAnswers,
}

/// What is measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct StudyRow {
    /// For people.
    pub title: String,
    /// The workload; `None` if only the study has figures.
    pub workload: Option<String>,
    /// The operation of the workload.
    #[serde(default)]
    pub operation: String,
    /// The series of the operation; empty where it has none.
    #[serde(default)]
    pub series: String,
    /// The place on its axis. Without one, the operation has to have one place only.
    pub x: Option<f64>,
    /// The part of it that is shown.
    #[serde(default)]
    pub show: ShownPart,
    /// Which published figures belong here; `None` if the study has none.
    pub published: Option<FigureSelector>,
    /// Places on the axis. Each becomes a row, with the place's title instead of `{}` in the row's title and in its selector of
    /// published figures. After reading a study, the list is empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub at: Vec<AxisPlace>,
}

/// A place on an axis.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AxisPlace {
    /// In the unit of the axis, such as bytes.
    pub x: f64,
    /// For people, as the study has it.
    pub title: String,
    /// What else selects its published figures.
    #[serde(default)]
    pub published: FigureSelector,
}

/// What is shown of a figure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ShownPart {
    /// The figure itself.
    #[default]
    Figure,
    /// Seconds that the processors were busy per 10^9 bytes.
    Processor,
}

/// A facility of a table, or another difference between its columns. It may give anything that a row does not.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct StudyColumn {
    /// For people.
    pub title: String,
    /// The facility; `None` if only the study has figures.
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
    /// Which published figures belong here; `None` if the study has none.
    pub published: Option<FigureSelector>,
    /// Title of the unencrypted column with which the study's losses are compared.
    pub against: Option<String>,
}

/// Which published figures are meant: each of these columns has exactly this text. Names are those of [`Figure`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct FigureSelector(pub(crate) BTreeMap<String, String>);

/// Something that a study concluded.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct StudyConclusion {
    /// What it says, in a sentence of our own.
    pub text: String,
    /// Where it says so.
    pub source: String,
    /// The least share of the study's data that a run must have moved to judge it. Without it, that of the study's
    /// standard size; 0 where nothing is scaled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scale: Option<f64>,
    /// Where its data were, if not where those of the study were.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub medium: Option<StudyMedium>,
    /// What must hold here before the conclusion is judged.
    #[serde(default, rename = "premise", skip_serializing_if = "Vec::is_empty")]
    pub premises: Vec<ConclusionCheck>,
    /// What has to hold for it to be true here. Without any, it cannot be said, and `unless` says why.
    #[serde(default, rename = "check")]
    pub checks: Vec<ConclusionCheck>,
    /// Why it cannot be judged here at all, in a whole sentence.
    pub unless: Option<String>,
}

/// One figure as a share of another, and what it has to be.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct ConclusionCheck {
    /// Name of the workload.
    pub workload: String,
    /// The operation of the workload.
    pub operation: String,
    /// The series of the operation; empty where it has none.
    #[serde(default)]
    pub series: String,
    /// The place on its axis, as of a [`StudyRow`].
    pub x: Option<f64>,
    /// Name of the facility.
    pub facility: String,
    /// Which of the run's media, counted from 1; the first, where it says nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub medium: Option<usize>,
    /// Name of the facility that it is compared with; `None` for the same.
    pub against: Option<String>,
    /// Or facilities, the best of which it is compared with.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub against_best: Vec<String>,
    /// The workload that it is compared with; `None` for the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub against_workload: Option<String>,
    /// The operation that it is compared with; `None` for the same.
    pub against_operation: Option<String>,
    /// The series that it is compared with; `None` for the same.
    pub against_series: Option<String>,
    /// The place on the axis that it is compared with; `None` for the same, or for none in another workload.
    pub against_x: Option<f64>,
    /// The medium that it is compared with; `None` for the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub against_medium: Option<usize>,
    /// The share is at least this.
    pub at_least: Option<f64>,
    /// The share is at most this.
    pub at_most: Option<f64>,
}

impl ConclusionCheck {
    /// Names of all facilities that it compares.
    pub fn facilities(&self) -> impl Iterator<Item = &String> {
        [&self.facility].into_iter().chain(&self.against).chain(&self.against_best)
    }

    /// Names of the workloads that it compares.
    pub fn workloads(&self) -> impl Iterator<Item = &String> {
        [&self.workload].into_iter().chain(&self.against_workload)
    }
}

impl StudyConclusion {
    /// Everything that it compares.
    pub fn comparisons(&self) -> impl Iterator<Item = &ConclusionCheck> {
        self.premises.iter().chain(&self.checks)
    }
}

impl StudyColumn {
    /// Its medium, counted from 0.
    pub(crate) fn medium_in(&self, table: &StudyTable) -> usize {
        self.medium.or(table.medium).unwrap_or(1).saturating_sub(1)
    }
}

impl Study {
    /// How much of it is done at this level.
    pub fn extent(&self, level: Level) -> StudyExtent {
        level.choose([self.quick, self.standard, self.thorough])
    }

    /// The part of it that decides what is done.
    pub fn planned(&self) -> PlannedStudy {
        let Self { name, facilities, workloads, .. } = self.clone();
        PlannedStudy { name, facilities, workloads }
    }

    /// Checks its numbers and texts: a stored run is untrusted.
    pub(crate) fn check(&self) -> Result<()> {
        let wrong = |what: String| Err(ErrorKind::Malformed { field: "study", offset: 0, what }.into());
        let json = serde_json::to_value(self).map_err(|e| Error::misuse(e.to_string()))?;
        let mut texts = Vec::new();
        strings(&json, &mut texts);
        if let Some(text) = texts.iter().find(|text| text.len() > TEXT_MAX || text.contains(char::is_control)) {
            return wrong(format!(
                "{:?}: a text is too long, or not one line",
                text.chars().take(80).collect::<String>()
            ));
        }
        for StudyExtent { scale, repeats, most, steady, .. } in [self.quick, self.standard, self.thorough] {
            let most = most.is_none_or(|most| (repeats..=MOST_REPETITIONS).contains(&most));
            let steady = steady.is_none_or(|steady| steady > 0.0 && steady <= 1.0);
            if !(scale > 0.0 && scale <= 10.0 && (1..=MOST_REPETITIONS).contains(&repeats) && most && steady) {
                return wrong(format!("invalid extent: a scale of {scale}, {repeats} repeats, or their limits"));
            }
        }
        for PlannedWork { name, parameters, .. } in &self.workloads {
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
        let of_tables = self.tables.iter().flat_map(|t| t.columns.iter().map(|c| c.medium).chain([t.medium]));
        let checks = || self.conclusions.iter().flat_map(StudyConclusion::comparisons);
        let of_checks = checks().flat_map(|check| [check.medium, check.against_medium]);
        if let Some(medium) = of_tables.chain(of_checks).flatten().find(|medium| !(1..=MOST_MEDIA).contains(medium)) {
            return wrong(format!("there is no medium number {medium}: they count from 1 to {MOST_MEDIA}"));
        }
        let numbers = self.tables.iter().flat_map(|t| &t.rows).filter_map(|row| row.x);
        let bounds = checks().flat_map(|c| [c.x, c.against_x, c.at_least, c.at_most]);
        let bounds = bounds.chain(self.conclusions.iter().map(|c| c.scale)).flatten();
        match numbers.chain(bounds).find(|number| !number.is_finite()) {
            Some(number) => wrong(format!("{number} is not a number")),
            None => Ok(()),
        }
    }

    /// Names of all facilities, some of them perhaps more than once.
    pub fn all_facilities(&self) -> impl Iterator<Item = &String> {
        self.facilities.iter().chain(self.workloads.iter().flat_map(|work| &work.facilities))
    }

    /// Checks that each published figure that a table names is there, and that losses are against a column of it.
    pub(crate) fn check_published(&self, table: &StudyTable) -> Result<()> {
        if let Some(name) = self.published.as_ref().filter(|name| published::study(name).is_none()) {
            return Err(Error::misuse(format!("there are no published figures of {name}")));
        }
        for column in &table.columns {
            let there = |title: &String| table.columns.iter().any(|c| c.title == *title && c.published.is_some());
            if column.against.as_ref().is_some_and(|title| !there(title)) {
                return Err(Error::misuse(format!(
                    "{}: the column that {} is compared with is not published",
                    table.title, column.title
                )));
            }
            for row in &table.rows {
                if row.published.is_some() && column.published.is_some() && self.published(table, row, column).is_none()
                {
                    let what = format!(
                        "{}: {} with {} is not published, or the figure is ambiguous",
                        table.title, row.title, column.title
                    );
                    return Err(Error::misuse(what).hint("`claviger lab published` shows the figures."));
                }
            }
        }
        Ok(())
    }

    /// The published figure of a row and a column: where there are repetitions, their average, with as many digits as are
    /// printed.
    pub(crate) fn published(&self, table: &StudyTable, row: &StudyRow, column: &StudyColumn) -> Option<Figure> {
        let selectors = [&table.published, column.published.as_ref()?, row.published.as_ref()?];
        let study = self.published.as_ref()?;
        let all = published::all().iter().filter(|f| f.study == *study && selectors.iter().all(|s| s.finds(f)));
        let found: Vec<&Figure> = all.collect();
        let first = *found.first()?;
        let same = |f: &&Figure| Figure { run: String::new(), value: 0.0, note: String::new(), ..(*f).clone() };
        let values: Vec<f64> = found.iter().map(|f| f.value).collect();
        let value = match self.average {
            Average::Median => median(&values),
            Average::Mean => rounded_mean(&values),
        };
        let note = found.iter().find(|f| f.is_doubtful()).unwrap_or(&first).note.clone();
        found.iter().all(|f| same(f) == same(&first)).then(|| Figure { value, note, ..first.clone() })
    }
}

impl StudyRow {
    /// A row for each of its places, or the row itself if it has none.
    pub(crate) fn at_each_place(&self) -> Vec<Self> {
        let of = |AxisPlace { x, title, published: more }: &AxisPlace| {
            let published = self.published.as_ref().map(|FigureSelector(texts)| {
                let filled = texts.iter().map(|(name, text)| (name.clone(), text.replace("{}", title)));
                FigureSelector(filled.chain(more.0.clone()).collect())
            });
            let title = self.title.replace("{}", title);
            Self { title, x: Some(*x), published, at: Vec::new(), ..self.clone() }
        };
        if self.at.is_empty() { vec![self.clone()] } else { self.at.iter().map(of).collect() }
    }
}

impl FigureSelector {
    fn finds(&self, figure: &Figure) -> bool {
        self.0.iter().all(|(name, text)| figure.column(name) == Some(text.as_str()))
    }
}

/// The mean, rounded to as many decimal places as the values have.
pub(crate) fn rounded_mean(values: &[f64]) -> f64 {
    let digits = values.iter().map(|v| v.to_string().split_once('.').map_or(0, |(_, digits)| digits.len())).max();
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    format!("{mean:.*}", digits.unwrap_or(0)).parse().unwrap_or(mean)
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
