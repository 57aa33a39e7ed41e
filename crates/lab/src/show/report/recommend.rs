//! The recommendation and the features table as text and CSV.

use super::table::{csv_record, hanging, optional, table};
use super::{CsvRecord, Text};
use crate::model::answers::Platform;
use crate::model::words::word;
use crate::show::grouped;
use crate::show::recommend::{FacilityFeatures, Reason, Recommendation, RecommendedFacility, Weakness};

impl Text for Recommendation {
    fn text(&self) -> String {
        let mut text = String::new();
        match &self.first {
            Some(first) => {
                text +=
                    &format!("{}\n{}\n\n{}", first.name, "─".repeat(first.name.chars().count()), choice(first) + "\n")
            }
            None => text += "Nothing fits: every facility is ruled out.\n",
        }
        for sentence in &self.given_up {
            text += &paragraph("", sentence);
        }
        if let Some(besides) = &self.besides {
            text += &paragraph("", &format!("It cannot hold the system disk: use {besides} for that."));
        }
        for sentence in &self.measured {
            text += &paragraph("", sentence);
        }
        if let Some(second) = &self.second {
            text += &format!("\nRunner-up: {}\n\n{}", second.name, choice(second));
        }
        if !self.others.is_empty() {
            let others: Vec<String> = self.others.iter().map(|(name, points)| format!("{name} ({points})")).collect();
            text += &paragraph("\nAlso possible, with their points: ", &(others.join(", ") + "."));
        }
        text += "\nOut:\n";
        for out in grouped(&self.out, |a, b| a.because == b.because) {
            let names: Vec<&str> = out.iter().map(|out| out.name.as_str()).collect();
            text += &item(&format!("{}: {}.", names.join(", "), out[0].because));
        }
        text
    }
}

fn choice(choice: &RecommendedFacility) -> String {
    let mut text = paragraph("", &format!("{}. {} points:", choice.title, choice.points));
    for reason in choice.reasons.iter().chain(&choice.against) {
        text += &line(reason);
    }
    text += &paragraph("", &choice.here);
    for how in &choice.how {
        text += &item(how);
    }
    text + &paragraph("Sources: ", &choice.sources.join("; "))
}

fn line(reason: &Reason) -> String {
    let points = match reason.points {
        0 => "    ".to_owned(),
        points => format!("{points:+4}"),
    };
    hanging(&format!("{points}  "), "      ", &reason.text)
}

fn item(text: &str) -> String {
    hanging("  - ", "    ", text)
}

fn paragraph(before: &str, text: &str) -> String {
    hanging(before, "", text)
}

csv_record!(FacilityFeatures {
    name, title, layer, since, ended, why_ended, experimental, makes, writes, reads, builtin, starts, whole_disk, container,
    portable, hidden_volume, authenticated, root, several_passphrases, header_backup, tpm, names, sizes, thesis, format,
    measured_as, how, sources, weaknesses
} =>
    name, title, layer: word(layer), since, ended: optional(ended, u16::to_string),
    why_ended: optional(why_ended, String::clone), experimental: optional(experimental, String::clone),
    makes: platforms(makes), writes: platforms(writes), reads: platforms(reads), builtin: platforms(builtin),
    starts: platforms(starts), whole_disk, container, portable, hidden_volume, authenticated, root, several_passphrases,
    header_backup, tpm, names, sizes, thesis: optional(thesis, String::clone), format: optional(format, String::clone),
    measured_as: measured_as.join(" "), how: how.join(" "), sources: sources.join("; "),
    weaknesses: weaknesses.iter().map(weakness).collect::<Vec<_>>().join(" "),
);

fn weakness(Weakness { what, source, since }: &Weakness) -> String {
    format!("{what} ({source}, {since})")
}

fn platforms(platforms: &[Platform]) -> String {
    platforms.iter().map(|platform| platform.title()).collect::<Vec<_>>().join(" ")
}

/// A column of yes and no: its heading, and whether a facility has it.
type Column = (&'static str, fn(&FacilityFeatures) -> bool);

const COLUMNS: &[Column] = &[
    ("disk", |f| f.whole_disk),
    ("boot", |f| f.starts.contains(&Platform::Linux)),
    ("file", |f| f.container),
    ("hidden", |f| f.hidden_volume),
    ("auth", |f| f.authenticated),
    ("names", |f| f.names),
    ("sizes", |f| f.sizes),
    ("keys", |f| f.several_passphrases),
    ("backup", |f| f.header_backup),
    ("TPM", |f| f.tpm),
    ("root", |f| f.root),
    ("here", FacilityFeatures::is_ours),
];

/// What the columns mean.
const LEGEND: &str = "disk: can encrypt a whole disk. boot: can hold and boot Linux. file: can use a file as a disk. hidden: can hide a volume. auth: \
                      tampering is detected. names, sizes: those of files are hidden. keys: several passphrases. backup: of the header. TPM: can hold a \
                      key. root: its own program needs root on Linux. here: this program creates and opens it, without root. L, W, M: Linux, Windows and \
                      macOS read and write it; a lower-case letter means read only.";

impl Text for [FacilityFeatures] {
    fn text(&self) -> String {
        let columns = COLUMNS.iter().map(|(name, _)| *name);
        let headings = ["facility", "layer", "on"].into_iter().chain(columns).chain(["years"]);
        let row = |f: &FacilityFeatures| {
            let years = f.ended.map_or(format!("{} on", f.since), |ended| format!("{} to {ended}", f.since));
            let marks = COLUMNS.iter().map(|(_, has)| if has(f) { "yes" } else { "-" }.to_owned());
            [f.name.clone(), word(&f.layer), letters(f)].into_iter().chain(marks).chain([years]).collect::<Vec<_>>()
        };
        let table = table(headings, self.iter().map(row));
        let mut text = table + "\n" + &paragraph("", LEGEND) + "\nKnown weaknesses:\n";
        for f in self {
            for weakness in &f.weaknesses {
                text += &item(&format!("{}: {} ({})", f.name, weakness.what, weakness.source));
            }
        }
        text
    }
}

fn letters(f: &FacilityFeatures) -> String {
    let letter = |platform: Platform| {
        let letter = &platform.title()[..1];
        match () {
            () if f.writes.contains(&platform) => letter.to_uppercase(),
            () if f.reads.contains(&platform) => letter.to_lowercase(),
            () => "-".into(),
        }
    };
    [Platform::Linux, Platform::Windows, Platform::Macos].map(letter).concat()
}

#[cfg(test)]
mod tests {
    use super::super::csv;
    use super::super::table::WIDTH;
    use super::*;
    use crate::model::answers::{EncryptionPurpose, RecommendAnswers, Threat};
    use crate::show::recommend::{Measured, features, recommend};

    #[test]
    fn every_line_of_the_reckoning_is_told() {
        let (purpose, threat) = (EncryptionPurpose::Laptop, Threat::Coercion);
        let answers = RecommendAnswers { purpose, share_with: vec![Platform::Windows], threat, root: true };
        let recommendation = recommend(&answers, &Measured::default());
        let text = recommendation.text();
        let flat = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let first = recommendation.first.as_ref().expect("an answer");
        for reason in first.reasons.iter().chain(&first.against) {
            assert!(flat.contains(&reason.text), "{} is not in {text}", reason.text);
        }
        assert!(
            recommendation
                .out
                .iter()
                .all(|out| flat.contains(&out.name) && flat.contains(&format!("{}.", out.because))),
            "{text}"
        );
        assert!(flat.contains("use LUKS2 for that"), "{text}");
        let widest = text.lines().filter(|l| !l.contains("http")).map(|l| l.chars().count()).max();
        assert!(widest.is_some_and(|width| width <= WIDTH), "{widest:?}\n{text}");
    }

    #[test]
    fn the_table_is_told_in_whole() {
        let text = features().text();
        let line = text.lines().find(|line| line.starts_with("BitLocker")).expect("a line");
        assert!(line.contains("LW-") && line.contains("2007 on"), "{line}");
        let line = text.lines().find(|line| line.starts_with("FileVault")).expect("a line");
        assert!(line.contains("l-M"), "{line}");
        assert_eq!(csv(features()).lines().count(), features().len() + 1);
    }
}
