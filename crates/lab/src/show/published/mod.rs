//! The published figures that somebody looks for; what was lost in them ([`losses`]); and the same beside a run.

mod beside;
mod losses;

use claviger_engine::{Error, Result};

pub use beside::{CipherBeside, LossesBeside, OwnLoss, TheirLosses, WindowSpeed, ciphers_beside, laid_beside};
pub use losses::{PublishedLoss, losses, losses_of};

use crate::model::published::{Figure, all};

/// What to search for: each is a part of the column's text, ignoring case; an empty query matches everything.
#[derive(Clone, Debug, Default)]
pub struct Query {
    /// In `study`.
    pub study: Option<String>,
    /// In `facility` or `cipher`.
    pub facility: Option<String>,
    /// In `workload`.
    pub workload: Option<String>,
    /// In `platform`.
    pub platform: Option<String>,
    /// The whole of `table`.
    pub table: Option<String>,
}

impl Query {
    /// The figures that match.
    ///
    /// # Errors
    /// `Misuse` if there are none, listing what there is.
    pub fn figures(&self) -> Result<Vec<&'static Figure>> {
        let found: Vec<_> = all().iter().filter(|figure| self.finds(figure)).collect();
        if found.is_empty() {
            let hint = format!("The studies are: {}.", names(|f| &f.study, &[]));
            let wrong = [
                ("study", &self.study, names(|f| &f.study, &[])),
                ("facility", &self.facility, names(|f| &f.facility, &[""])),
                ("workload", &self.workload, names(|f| &f.workload, &[""])),
                ("platform", &self.platform, names(|f| &f.platform, &[""])),
            ];
            let hint = wrong
                .iter()
                .find(|(column, wanted, _)| wanted.is_some() && !all().iter().any(|f| self.only(column).finds(f)))
                .map_or(hint, |(column, _, there)| format!("The column {column} contains: {there}."));
            return Err(Error::misuse("no published figure matches").hint(hint));
        }
        Ok(found)
    }

    /// Whether the figure matches.
    pub fn finds(&self, figure: &Figure) -> bool {
        let holds = |wanted: &Option<String>, texts: &[&str]| {
            let Some(wanted) = wanted else { return true };
            texts.iter().any(|text| text.to_lowercase().contains(&wanted.to_lowercase()))
        };
        holds(&self.study, &[&figure.study])
            && holds(&self.facility, &[&figure.facility, &figure.cipher])
            && holds(&self.workload, &[&figure.workload])
            && holds(&self.platform, &[&figure.platform])
            && self.table.as_ref().is_none_or(|table| *table == figure.table)
    }

    /// The same query, for one column only.
    fn only(&self, column: &str) -> Self {
        let keep = |name: &str, wanted: &Option<String>| wanted.clone().filter(|_| name == column);
        Self {
            study: keep("study", &self.study),
            facility: keep("facility", &self.facility),
            workload: keep("workload", &self.workload),
            platform: keep("platform", &self.platform),
            table: None,
        }
    }
}

/// The distinct texts of a column, except some.
fn names(of: impl Fn(&Figure) -> &String, without: &[&str]) -> String {
    let mut there: Vec<&str> = all().iter().map(|f| of(f).as_str()).filter(|t| !without.contains(t)).collect();
    there.sort_unstable();
    there.dedup();
    there.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_find_figures_and_name_what_there_is() {
        let query = |facility: &str, workload: &str| Query {
            facility: Some(facility.into()),
            workload: Some(workload.into()),
            ..Query::default()
        };
        let found = query("loop-aes", "dbench").figures().expect("some");
        assert!(found.len() >= 12 && found.iter().all(|f| f.facility == "loop-AES" && f.workload == "Dbench"));
        let wrong = query("rot13", "dbench").figures().expect_err("none");
        assert!(wrong.hint.as_deref().is_some_and(|hint| hint.contains("BitLocker")), "{wrong:?}");
        assert_eq!(Query::default().figures().expect("all").len(), all().len());
    }
}
