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
/// `Misuse` where there is neither, and for a file that is not a study; `Io`.
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
        if let Some(other) = parameters.given().find(|name| !workload.parameters.contains(&name.as_str())) {
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
    use crate::model::published::Figure;
    use crate::model::statistics::median;
    use crate::model::study::{Average, StudyTable, rounded_mean};

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

    /// Each table of a study's document is accounted for.
    #[test]
    fn each_published_table_is_in_one_section() {
        for (name, text) in STUDIES {
            let study = parse(text, &catalogue()).expect(name);
            let mut in_sections: Vec<&str> = study.sections.iter().flat_map(|s| &s.of).map(String::as_str).collect();
            in_sections.sort_unstable();
            for figures in tables(study.published.as_ref().expect("figures")) {
                let published: std::collections::BTreeSet<&str> = figures.iter().map(|f| f.table.as_str()).collect();
                assert_eq!(in_sections, published.into_iter().collect::<Vec<_>>(), "{name}");
            }
        }
    }

    /// A conclusion with a range, or with "about", must be checked at both ends.
    #[test]
    fn a_range_is_judged_at_both_ends() {
        for (name, text) in STUDIES {
            let study = parse(text, &catalogue()).expect(name);
            for claim in &study.conclusions {
                let (claimed, _) = claim.text.split_once("(criterion here: ").unwrap_or((&claim.text, ""));
                let words: Vec<&str> = claimed.split(' ').collect();
                let number = |word: &str| word.parse::<f64>().is_ok();
                let range = words.windows(3).any(|w| number(w[0]) && w[1] == "to" && number(w[2]));
                let both = claim.checks.iter().all(|check| check.at_least.is_some() && check.at_most.is_some());
                assert!(both || !range && !claimed.contains("about "), "{name}: {}", claim.text);
                let one = claim.checks.iter().all(|check| check.at_least.is_some() || check.at_most.is_some());
                assert!(one && claim.checks.is_empty() != claimed.ends_with(' '), "{name}: {}", claim.text);
            }
        }
    }

    /// The figures of a study, read anew: the copy in the repository, and the original if it is available.
    fn tables(name: &str) -> Vec<Vec<Figure>> {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let read = |folder: &str| {
            let file = fs::File::open(here.join(folder).join(format!("{name}.csv"))).ok()?;
            Some(csv::Reader::from_reader(file).into_deserialize().map(|f| f.expect("a figure")).collect())
        };
        let all: Vec<Vec<Figure>> =
            ["data/published", "../../../shared/published"].into_iter().filter_map(read).collect();
        assert!(!all.is_empty(), "{name}");
        all
    }

    /// How many bytes, seconds or shares one unit of the page has.
    fn in_unit(unit: &str) -> f64 {
        match unit {
            "MB/s" => 1e6,
            "ms" => 1e-3,
            "µs" => 1e-6,
            "%" => 0.01,
            "GiB" => 1_073_741_824.0,
            "MiB" => 1_048_576.0,
            "KiB" => 1024.0,
            "s" | "per second" => 1.0,
            other => panic!("the page has the unit {other}"),
        }
    }

    /// Checks a published figure on the page: it must be printed as in the study, or be converted to the unit of the
    /// row.
    fn check_published(study: &Study, table: &StudyTable, (label, column): (&str, &str), shown: &str) {
        let place = format!("{}, {} {}: {label}, {column}: {shown}", study.name, table.number, table.title);
        let titled = |row: &&StudyRow| label == row.title || label.starts_with(&format!("{}, ", row.title));
        let row =
            table.rows.iter().filter(titled).max_by_key(|row| row.title.len()).unwrap_or_else(|| panic!("{place}"));
        let column = table.columns.iter().find(|c| c.title == column).unwrap_or_else(|| panic!("{place}"));
        let selectors = [&table.published].into_iter().chain(&row.published).chain(&column.published);
        let selectors: Vec<(&String, &String)> = selectors.flat_map(|selector| &selector.0).collect();
        for figures in tables(study.published.as_ref().expect("figures")) {
            let wanted = |f: &&Figure| selectors.iter().all(|(name, text)| f.column(name) == Some(text.as_str()));
            let found: Vec<&Figure> = figures.iter().filter(wanted).collect();
            let first = *found.first().unwrap_or_else(|| panic!("not published: {place}"));
            let values: Vec<f64> = found.iter().map(|f| f.value).collect();
            let value = match study.average {
                Average::Median => median(&values),
                Average::Mean => rounded_mean(&values),
            };
            let near = |a: f64, b: f64| a == b || (a / b - 1.0).abs() < 0.006;
            let (text, lost) = shown.split_once(" (−").or(shown.split_once(" (+")).unwrap_or((shown, ""));
            let printed = text.trim_end_matches(" (suspect)").split_once(' ');
            let same = match printed {
                Some((number, unit)) => unit == first.unit && number.parse().is_ok_and(|number| near(number, value)),
                None => {
                    let unit =
                        label.strip_prefix(&format!("{}, ", row.title)).unwrap_or_else(|| panic!("no unit: {place}"));
                    let ours = Figure { value, ..first.clone() }.in_our_units();
                    let number: f64 = text.parse().unwrap_or_else(|_| panic!("no number: {place}"));
                    ours.is_some_and(|(value, _)| near(number * in_unit(unit), value))
                }
            };
            assert!(same, "{value} {} is published: {place}", first.unit);
            assert_eq!(text.ends_with(" (suspect)"), first.is_doubtful(), "{place}");
            assert!(lost.is_empty() || !first.is_doubtful() && first.metric != "CPU usage", "{place}");
            let words = first.table.split([' ', '(', ')']).filter(|word| !word.is_empty());
            let number = table.number.to_lowercase();
            let named = words.into_iter().any(|word| number.contains(&word.to_lowercase()));
            assert!(number.is_empty() || named || study.average == Average::Mean, "{} is {}", place, first.table);
        }
    }

    #[test]
    fn every_published_cell_of_the_page_is_in_the_tables_of_the_documents() {
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/studies.md");
        let page = fs::read_to_string(page).expect("the page").replace('\\', "");
        assert!(!page.contains("inf %") && !page.contains("NaN"));
        let studies: Vec<Study> = STUDIES.iter().map(|(_, text)| parse(text, &catalogue()).expect("a study")).collect();
        let (mut study, mut table, mut columns, mut cells) = (&studies[0], None, Vec::new(), 0);
        for line in page.lines() {
            if let Some(title) = line.strip_prefix("## ") {
                study = studies.iter().find(|study| study.title == title).unwrap_or_else(|| panic!("no study {title}"));
            } else if let Some(title) = line.strip_prefix("### ") {
                let called = |t: &&StudyTable| title == t.title || title == format!("{}: {}", t.number, t.title);
                table = study.tables.iter().find(called);
                let others = [
                    "Warnings",
                    "What the study's conclusions come to here",
                    "Not measured here",
                    "Section by section",
                    "Processor time by workload",
                    "Energy by workload",
                ];
                assert!(table.is_some() || others.contains(&title), "no table {title}");
            } else if let Some(line) = line.strip_prefix("| ").and_then(|line| line.strip_suffix(" |")) {
                let line: Vec<&str> = line.split(" | ").collect();
                match line[0] {
                    "what" => columns = line,
                    label => {
                        for (column, cell) in columns.iter().zip(&line).skip(1) {
                            let Some((_, shown)) = cell.split_once("<br>study: ") else { continue };
                            check_published(study, table.expect("a table"), (label, column), shown);
                            cells += 1;
                        }
                    }
                }
            }
        }
        assert!(cells > 200, "{cells} cells");
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
            ("against = \"without encryption\"", "against = \"nothing\"", "is compared with is not published"),
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
