//! Searching the published figures; their losses ([`losses`]); and both beside a run.

mod beside;
mod losses;

use std::collections::BTreeSet;

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
    /// The columns that are searched, and for what.
    fn parts(&self) -> [(&'static str, &Option<String>); 4] {
        let Self { study, facility, workload, platform, table: _ } = self;
        [("study", study), ("facility", facility), ("workload", workload), ("platform", platform)]
    }

    /// The figures that match.
    ///
    /// # Errors
    /// `Misuse` if there are none, listing what there is.
    pub fn figures(&self) -> Result<Vec<&'static Figure>> {
        let found: Vec<_> = all().iter().filter(|figure| self.finds(figure)).collect();
        if found.is_empty() {
            let in_none = |(column, wanted): &(&str, &Option<String>)| !all().iter().any(|f| holds(f, column, wanted));
            let hint = match self.parts().into_iter().find(in_none) {
                Some((column, _)) => format!("The column {column} contains: {}.", texts(column)),
                None => format!("The studies are: {}.", texts("study")),
            };
            return Err(Error::misuse("no published figure matches").hint(hint));
        }
        Ok(found)
    }

    /// Whether the figure matches.
    pub fn finds(&self, figure: &Figure) -> bool {
        self.parts().into_iter().all(|(column, wanted)| holds(figure, column, wanted))
            && self.table.as_ref().is_none_or(|table| *table == figure.table)
    }
}

fn holds(figure: &Figure, column: &str, wanted: &Option<String>) -> bool {
    let Some(wanted) = wanted.as_ref().map(|wanted| wanted.to_lowercase()) else { return true };
    let other = if column == "facility" { "cipher" } else { column };
    [column, other].into_iter().filter_map(|name| figure.column(name)).any(|text| text.to_lowercase().contains(&wanted))
}

/// The distinct texts of a column.
fn texts(column: &str) -> String {
    let texts: BTreeSet<&str> = all().iter().filter_map(|f| f.column(column)).filter(|text| !text.is_empty()).collect();
    texts.into_iter().collect::<Vec<_>>().join("; ")
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
