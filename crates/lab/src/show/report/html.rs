//! A run as one self-contained page.

mod canvas;
mod charts;
mod sections;

use askama::Template;
use claviger_engine::{Error, Result};

use super::Extra;
use super::facts::{facts, method, missing};
use super::run::{RunReport, is_numeric};
use crate::model::figures::Run;
use canvas::Look;
use sections::{Ciphers, Section};

/// Findings that are shown at once, and notes.
const AT_ONCE: usize = 8;

/// The page of a run.
///
/// # Errors
/// `Io` where a chart cannot be drawn.
pub(super) fn page(report: &RunReport) -> Result<String> {
    let run = report.run;
    let looks = Looks::of(run);
    let (left_out, failures) = missing(run);
    let measured = run.workloads.iter().filter(|w| w.left_out.is_none());
    let page = Page {
        style: include_str!("../../../templates/run.css").to_owned() + &canvas::dark_style(),
        subtitle: subtitle(run),
        glance: sections::glance(report),
        findings: first(&report.summary.findings),
        warnings: report.warnings(),
        notes: first(&run.notes),
        failures,
        left_out,
        facilities: facilities(run, &looks)?,
        sections: measured.map(|w| sections::section(report, w, &looks)).collect::<Result<_>>()?,
        ciphers: sections::ciphers(&run.ciphers)?,
        extras: report.extras.iter().map(extra).collect::<Result<_>>()?,
        facts: facts(run),
        method: method(run),
        version: env!("CARGO_PKG_VERSION"),
    };
    page.render().map_err(|e| Error::from(std::io::Error::other(e)))
}

#[derive(Template)]
#[template(path = "run.html")]
struct Page<'a> {
    style: String,
    subtitle: String,
    glance: Option<Table>,
    /// Those that are shown at once, and the others. The same of notes.
    findings: (&'a [String], &'a [String]),
    warnings: Vec<String>,
    notes: (&'a [String], &'a [String]),
    failures: Vec<(String, String)>,
    left_out: Vec<(String, String)>,
    facilities: Vec<Facility<'a>>,
    sections: Vec<Section<'a>>,
    ciphers: Option<Ciphers>,
    extras: Vec<ExtraSection<'a>>,
    facts: Vec<(&'static str, String)>,
    method: Vec<String>,
    version: &'static str,
}

/// A table of a page. Cells are escaped by the template.
struct Table {
    caption: String,
    columns: Vec<TableCell>,
    rows: Vec<Vec<TableCell>>,
}

impl Table {
    /// A table with these headings, which are set as what is below them.
    fn new<'c>(
        caption: impl Into<String>,
        columns: impl IntoIterator<Item = &'c str>,
        rows: Vec<Vec<TableCell>>,
    ) -> Self {
        let numeric = |column: usize| {
            let mut cells = rows.iter().filter_map(|row| row.get(column)).peekable();
            cells.peek().is_some() && cells.all(|cell| cell.class.starts_with('n') && cell.class != "name")
        };
        let samples = |column: usize| rows.iter().any(|row| row.get(column).is_some_and(|c| c.class == "samples"));
        let heading = |(i, text): (usize, &str)| match () {
            () if samples(i) => TableCell::new(text, "samples"),
            () if numeric(i) => TableCell::new(text, "n"),
            () => TableCell::new(text, ""),
        };
        let columns = columns.into_iter().enumerate().map(heading).collect();
        Self { caption: caption.into(), columns, rows }
    }
}

/// A cell of a table.
#[derive(Clone, Default)]
struct TableCell {
    text: String,
    /// How it is set: `name`, `n` for numbers, or a shade.
    class: &'static str,
    /// What is written below, in small letters.
    note: String,
    /// Samples instead of a text, and whether each lies far from the others.
    samples: Vec<(String, bool)>,
}

impl TableCell {
    fn new(text: impl Into<String>, class: &'static str) -> Self {
        Self { text: text.into(), class, ..Self::default() }
    }

    fn number(text: impl Into<String>) -> Self {
        Self::new(text, "n")
    }
}

/// A facility that was measured.
struct Facility<'a> {
    record: &'a crate::model::figures::FacilityRecord,
    swatch: String,
}

fn facilities<'a>(run: &'a Run, looks: &Looks) -> Result<Vec<Facility<'a>>> {
    let measured = run.facilities.iter().filter(|f| f.left_out.is_none());
    measured
        .map(|record| Ok(Facility { record, swatch: canvas::swatch(looks.look(&record.name), &record.name)? }))
        .collect()
}

/// An extra with its table.
struct ExtraSection<'a> {
    title: &'a str,
    text: &'a [String],
    chart: Option<String>,
    table: Option<Table>,
}

fn extra(extra: &Extra) -> Result<ExtraSection<'_>> {
    let cell = |text: &String| TableCell::new(text, if is_numeric(text) { "n" } else { "" });
    let rows = extra.rows.iter().map(|row| row.iter().map(cell).collect()).collect();
    let table = Table::new(&extra.title, extra.columns.iter().map(String::as_str), rows);
    let chart = extra.chart.as_ref().map(sections::extra_chart).transpose()?;
    let table = (!extra.columns.is_empty()).then_some(table);
    Ok(ExtraSection { title: &extra.title, text: &extra.text, chart, table })
}

fn first(sentences: &[String]) -> (&[String], &[String]) {
    sentences.split_at(sentences.len().min(AT_ONCE))
}

fn subtitle(run: &Run) -> String {
    let date = run.sittings.first().map(|s| s.before.at.get(..10).unwrap_or(&s.before.at).to_owned());
    let parts = [Some(run.machine.cpu_model.clone()), Some(run.machine.kernel.clone()), date];
    parts.into_iter().flatten().collect::<Vec<_>>().join(" · ")
}

/// What each facility looks like, the same in every chart.
struct Looks<'a>(Vec<(&'a str, Look)>);

impl<'a> Looks<'a> {
    fn of(run: &'a Run) -> Self {
        let (mut encrypting, mut plain) = (0.., 0..);
        let measured = run.facilities.iter().filter(|f| f.left_out.is_none());
        let look = measured.map(|f| {
            let look = match f.baseline {
                Some(_) => Look::of_facility(encrypting.next().unwrap_or(0)),
                None => Look::of_baseline(plain.next().unwrap_or(0)),
            };
            (f.name.as_str(), look)
        });
        Self(look.collect())
    }

    /// That of the facility of this name; of one that the run does not name, that of a baseline.
    fn look(&self, name: &str) -> Look {
        self.0.iter().find(|(n, _)| *n == name).map_or(Look::of_baseline(0), |(_, look)| *look)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;
    use std::process::Command;

    use claviger_testkit::tools;

    use super::super::sample;
    use super::*;
    use crate::model::figures::RunPlan;
    use crate::model::plan::Plan;
    use crate::show::summary::Summary;

    fn extras() -> Vec<Extra> {
        vec![Extra {
            title: "Published results".into(),
            text: vec!["The HP EliteBook of 2010 lost 92 %; <this> machine loses less.".into()],
            columns: vec!["study".into(), "loss %".into()],
            rows: vec![vec!["BSI 2010".into(), "92.0".into()], vec!["Linux 2013".into(), "97.8".into()]],
            chart: None,
        }]
    }

    fn of(run: &Run) -> String {
        let summary = Summary::of(run);
        let extras = extras();
        page(&RunReport { run, summary: &summary, extras: &extras }).expect("a page")
    }

    /// Every name and value of an attribute that could fetch something, and every tag.
    fn tags(page: &str) -> impl Iterator<Item = &str> {
        page.split('<').skip(1).filter_map(|rest| rest.split_once('>')).map(|(tag, _)| tag)
    }

    #[test]
    fn nothing_is_fetched_and_nothing_runs() {
        let page = of(&sample::run());
        for tag in tags(&page) {
            let name = tag.split([' ', '\n']).next().unwrap_or_default().to_ascii_lowercase();
            assert!(
                !["script", "img", "iframe", "object", "embed", "base", "form"].contains(&name.as_str()),
                "<{tag}>"
            );
            assert!(name != "link" || tag.contains("href=\"data:,\""), "<{tag}>");
            assert!(!tag.contains(" on") && !tag.contains("src="), "<{tag}>");
        }
        assert!(
            !page.contains("http://")
                && !page.contains("https://")
                && !page.contains("@import")
                && !page.contains("url(")
        );
    }

    #[test]
    fn what_others_wrote_is_shown_and_not_obeyed() {
        let page = of(&sample::run());
        assert!(
            !page.contains(sample::HOSTILE) && !page.contains("<i>markup") && !page.contains("Invalid <filesystem>")
        );
        assert!(page.contains("&#60;b&#62;&#38;&#34;&#39;"), "the name in the page");
        assert!(page.contains("&lt;b&gt;&amp;&quot;&apos;"), "the name in charts");
    }

    #[test]
    fn every_figure_is_in_a_table() {
        let run = sample::run();
        let (summary, page) = (Summary::of(&run), of(&run));
        let rows: Vec<&str> = page.split("<tr>").collect();
        for panel in run.workloads.iter().flat_map(|w| crate::show::report::panels::panels(&summary, &w.name)) {
            let scale = panel.scale();
            for cell in &panel.cells {
                let median = format!(">{}</td>", scale.text(cell.median));
                let interval = format!(">{}</td>", scale.interval(cell.low, cell.high));
                assert!(rows.iter().any(|row| row.contains(&median) && row.contains(&interval)), "{cell:?}");
            }
        }
        assert!(page.contains("<mark"), "outliers are marked");
        assert!(page.contains("There are 2 layers"), "files and volumes are told apart");
        assert!(!page.contains("NaN") && !page.contains(">inf"));
    }

    #[test]
    fn a_page_of_little_is_a_page() {
        let whole = sample::run();
        let only = |name: &str| Run {
            facilities: whole.facilities.iter().filter(|f| f.name == name).cloned().collect(),
            passes: whole.passes.iter().filter(|p| p.facility == name).cloned().collect(),
            plan: RunPlan::new(Plan { facilities: vec![name.into()], ..(*whole.plan).clone() }, None),
            traces: vec![],
            ..whole.clone()
        };
        let failed = Run { failures: whole.failures.clone(), workloads: whole.workloads.clone(), ..sample::empty() };
        for run in [sample::empty(), failed, only("plain"), only("luks2")] {
            let page = of(&run);
            assert!(page.contains("</html>") && !page.contains("NaN") && !page.contains("inf,"));
        }
        let mut broken = only("plain");
        broken.passes.iter_mut().flat_map(|p| &mut p.measures).for_each(|m| m.value = f64::NAN);
        let page = of(&broken);
        assert!(!page.contains("NaN") && page.contains("are not numbers"));
    }

    /// What a browser makes of a page: its elements, and what it has to say. It reaches no network.
    fn browsed(chromium: &Path, page: &str) -> (String, String) {
        let dir = tempfile::tempdir().expect("a folder");
        let file = dir.path().join("run.html");
        fs::write(&file, page).expect("the page");
        // Under load it may take its time, but not for ever.
        let mut command = Command::new("timeout");
        command.args(["--kill-after=5", "120"]).arg(chromium).args([
            "--headless",
            // It will not start as root with one.
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-extensions",
            "--disable-sync",
            "--no-first-run",
            "--host-resolver-rules=MAP * ~NOTFOUND",
            "--enable-logging=stderr",
            "--v=0",
            "--dump-dom",
        ]);
        command.env("HOME", dir.path()).arg(format!("--user-data-dir={}", dir.path().join("profile").display()));
        let output = tools::run(command.arg(format!("file://{}", file.display())));
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (text(&output.stdout), text(&output.stderr))
    }

    /// All charts are there, and the browser has nothing to complain of.
    #[test]
    fn a_browser_shows_every_chart() {
        let Some(chromium) = tools::program("chromium") else { return };
        let (_, log) = browsed(&chromium, "<!DOCTYPE html><script>console.error('planted')</script>");
        assert!(log.contains("CONSOLE") && log.contains("planted"), "complaints would be seen: {log}");
        let page = of(&sample::run());
        let (dom, log) = browsed(&chromium, &page);
        assert!(!log.contains("CONSOLE"), "{log}");
        // The browser has read each title as one: what was escaped wrongly would be missing.
        let titles = |page: &str| page.matches("<svg role=\"img\"").count();
        assert!(titles(&page) > 40, "{}", titles(&page));
        assert_eq!(titles(&dom), titles(&page));
        for title in [
            "dd: sequential transfers by block size, write, MB/s by block size in bytes (K is 1024)",
            "dd: sequential transfers by block size, read, loss against the baseline by block size in bytes (K is 1024)",
            "Operations as IOzone's, file of 64 MiB: writer, MB/s by block size in bytes (K is 1024)",
            "fio: random and sequential requests, latency, µs",
            "fio: random and sequential requests, processor time against throughput",
            "Bonnie++, throughput, loss against the baseline",
            "Dbench by clients, throughput, MB/s by clients",
            "Making, unlocking and holding volumes, memory, MiB by open volumes",
            "Seek trace, luks2: a file written and then read at random",
            "Ciphers in memory, MB/s by buffer size",
        ] {
            assert!(dom.contains(&format!("<title>{title}</title>")), "{title}");
        }
    }
}
