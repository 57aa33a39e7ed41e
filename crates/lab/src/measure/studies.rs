//! The studies that come with this program, and those of the user's own: read, and held against what can be measured.

use std::path::Path;

use claviger_engine::internal::files;
use claviger_engine::{Error, Result};

use crate::measure::facility::Catalogue;
use crate::measure::workloads;
use crate::model::parameters::PlannedWork;
use crate::model::study::{ConclusionCheck, Study, StudyConclusion, StudyRow};

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
        table.rows = table.rows.iter().flat_map(StudyRow::at_each_place).collect();
    }
    study.check()?;
    check_names(&study, catalogue)?;
    Ok(study)
}

fn read(path: &Path) -> Result<String> {
    let file = files::open_regular(path)?;
    let bytes = file.map(|file| files::read_at_most(&file, FILE_MAX)).transpose()?.flatten();
    let text = bytes.and_then(|bytes| String::from_utf8(bytes).ok());
    text.ok_or_else(|| {
        Error::misuse(format!("a study must be a regular file with UTF-8 text of at most {FILE_MAX} bytes")).at(path)
    })
}

/// Checks that what it names is there: facilities, workloads, their parameters, and published figures.
fn check_names(study: &Study, catalogue: &Catalogue) -> Result<()> {
    let asked = study.planned();
    let named = study.tables.iter().flat_map(|t| &t.columns).filter_map(|column| column.facility.as_ref());
    let checked = || study.conclusions.iter().flat_map(StudyConclusion::comparisons);
    let checked_facilities = checked().flat_map(ConclusionCheck::facilities);
    let measured = |name: &String| {
        let of_it = |own: &String| own == name || catalogue.find(own).is_ok_and(|f| f.baseline.as_ref() == Some(name));
        study.all_facilities().any(of_it)
    };
    for name in study.all_facilities().chain(named).chain(checked_facilities) {
        catalogue.find(name)?;
        if !measured(name) {
            let what = format!("a table or conclusion names {name}, which the study does not measure");
            return Err(Error::misuse(what));
        }
    }
    for PlannedWork { name, parameters, .. } in &study.workloads {
        let found = workloads::all().find(|workload| workload.name == name);
        let workload = found.ok_or_else(|| Error::misuse(format!("there is no workload called {name}")))?;
        if let Some(other) = parameters.given().find(|given| !workload.parameters.contains(given)) {
            return Err(Error::misuse(format!("the workload {name} has no parameter {other}")));
        }
    }
    let rows = study.tables.iter().flat_map(|t| &t.rows).filter_map(|row| row.workload.as_ref());
    let columns = study.tables.iter().flat_map(|t| &t.columns).filter_map(|column| column.workload.as_ref());
    for name in rows.chain(columns).chain(checked().flat_map(ConclusionCheck::workloads)) {
        if asked.parameters(name).is_none() {
            return Err(Error::misuse(format!("a table or conclusion names {name}, which the study does not do")));
        }
    }
    study.tables.iter().try_for_each(|table| study.check_published(table))
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

    /// A range, or about so much, has two ends, and both are asked for.
    #[test]
    fn a_range_is_judged_at_both_ends() {
        for (name, text) in STUDIES {
            let study = parse(text, &catalogue()).expect(name);
            for claim in &study.conclusions {
                let (said, _) = claim.text.split_once("(criterion here: ").unwrap_or((&claim.text, ""));
                let words: Vec<&str> = said.split(' ').collect();
                let number = |word: &str| word.parse::<f64>().is_ok();
                let range = words.windows(3).any(|w| number(w[0]) && w[1] == "to" && number(w[2]));
                let both = claim.checks.iter().all(|check| check.at_least.is_some() && check.at_most.is_some());
                assert!(both || !range && !said.contains("about "), "{name}: {}", claim.text);
                let one = claim.checks.iter().all(|check| check.at_least.is_some() || check.at_most.is_some());
                assert!(one && claim.checks.is_empty() != said.ends_with(' '), "{name}: {}", claim.text);
            }
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
