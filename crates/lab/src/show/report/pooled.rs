//! Runs of several machines together, as text and CSV.

use super::table::{csv_record, optional, table, wrapped};
use super::{CsvRecord, Text};
use crate::model::case::Axis;
use crate::model::words::{counted, number, percent, printable, word};
use crate::show::changes::CellName;
use crate::show::pooled::{PooledFigure, PooledRuns, PooledVerdict};

csv_record!(PooledFigure { place: CellName { facility, workload, case }, losses, verdict } =>
    facility, workload, operation: case.operation, series: case.series,
    axis: if case.axis == Axis::None { String::new() } else { word(&case.axis) }, x: optional(&case.x, |x| number(*x)),
    losses: losses.iter().map(|loss| optional(loss, |loss| number(loss.loss))).collect::<Vec<_>>().join(" "),
    verdict: word(verdict),
);

impl PooledRuns {
    /// What the machines agree on, in whole sentences.
    pub fn sentences(&self) -> Vec<String> {
        let count = |verdict| self.count(verdict);
        let mut sentences = vec![format!(
            "In {} of {} that at least two runs have, encryption is slower on all machines, and in {} on some machines. In \
             {}, no machine shows a measurable difference.",
            count(PooledVerdict::SlowerOnAll),
            counted(self.figures.len(), "figure"),
            count(PooledVerdict::SlowerOnSome),
            count(PooledVerdict::Same),
        )];
        let odd = [
            (PooledVerdict::Contradictory, "slower on some machines and faster on others"),
            (PooledVerdict::Faster, "faster"),
        ];
        sentences.extend(odd.into_iter().filter(|(verdict, _)| count(*verdict) > 0).map(|(verdict, words)| {
            format!("In {} it is {words}: chance, a cache or another data path can cause that.", count(verdict))
        }));
        if self.only_once > 0 {
            sentences.push(format!("Only one run has {}.", counted(self.only_once, "more figure")));
        }
        sentences
    }
}

impl Text for PooledRuns {
    fn text(&self) -> String {
        let machines = self.machines.iter().enumerate().map(|(at, machine)| format!("Machine {}: {machine}\n", at + 1));
        let numbers = (1..=self.machines.len()).map(|number| format!(">{number}"));
        let headings = ["facility", "workload"]
            .map(str::to_owned)
            .into_iter()
            .chain(numbers)
            .chain([">lowest".into(), ">highest".into()]);
        let rows = self.by_workload().into_iter().map(|(facility, workload, losses)| {
            let each = losses.iter().map(|loss| optional(loss, |loss| percent(*loss)));
            let known = || losses.iter().flatten().copied();
            let ends = [known().fold(f64::INFINITY, f64::min), known().fold(f64::NEG_INFINITY, f64::max)].map(percent);
            let names = [facility.to_owned(), workload.to_owned()];
            names.into_iter().chain(each).chain(ends).collect::<Vec<_>>()
        });
        let table = table(headings, rows);
        let method = "Losses are in per cent of the performance without encryption on the same machine: for each facility and workload, the \
                      median of its figures. Speeds of different machines are not compared, and no mean over machines is \
                      given: a handful of machines is not a sample.";
        let sentences: String = self.sentences().iter().map(|sentence| wrapped(sentence)).collect();
        printable(&format!("{}\n{sentences}\n{table}\n{}", machines.collect::<String>(), wrapped(method)))
    }
}
