//! Which facility fits: from a table of what each can do, what is asked of it, and what this machine measured.
//!
//! The answer can be followed line by line. Some facilities are ruled out, each for one reason. Requirements of the
//! purpose and against the threat leave those that meet all of them; if none does, the weakest requirement is given up,
//! which is reported. Points, each with a sentence, order the rest. The purposes are the four scenarios of
//! Zhan's thesis of 2010.

mod features;
mod measured;
mod rules;

use serde::Serialize;

pub use features::{FacilityFeatures, Weakness, all as features};
pub use measured::Measured;

use crate::model::answers::{EncryptionPurpose, RecommendAnswers, Threat};
use rules::{Requirement, out, points, requirements};

/// Which facility fits, and why.
#[derive(Clone, Debug, Serialize)]
pub struct Recommendation {
    /// What was asked.
    pub answers: RecommendAnswers,
    /// The facility that fits; `None` if all are ruled out.
    pub first: Option<RecommendedFacility>,
    /// The next one.
    pub second: Option<RecommendedFacility>,
    /// What to use for the system disk, if the answer cannot hold it.
    pub besides: Option<String>,
    /// Requirements that were given up because nothing meets them and the others, in whole sentences.
    pub given_up: Vec<String>,
    /// Facilities that are ruled out, each with its reason.
    pub out: Vec<RuledOut>,
    /// The others, with their points.
    pub others: Vec<(String, i32)>,
    /// What this machine measured, in whole sentences.
    pub measured: Vec<String>,
}

/// A facility that fits.
#[derive(Clone, Debug, Serialize)]
pub struct RecommendedFacility {
    /// What it is called.
    pub name: String,
    /// What it is.
    pub title: String,
    /// All points together.
    pub points: i32,
    /// What speaks for it.
    pub reasons: Vec<Reason>,
    /// What speaks against it.
    pub against: Vec<Reason>,
    /// Whether this program creates and opens it, in a sentence.
    pub here: String,
    /// How to set it up.
    pub how: Vec<String>,
    /// Where the facts come from.
    pub sources: Vec<String>,
}

/// A reason with its points.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Reason {
    /// What it counts.
    pub points: i32,
    /// A whole sentence.
    pub text: String,
}

/// A facility that is ruled out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RuledOut {
    /// What it is called.
    pub name: String,
    /// Why: the end of a sentence.
    pub because: String,
}

/// Which facility fits these answers, on this machine.
pub fn recommend(answers: &RecommendAnswers, measured: &Measured) -> Recommendation {
    let reckoning = Reckoning::of(answers, measured);
    let choice = |place: usize| reckoning.ranked.get(place).map(|ranked| ranked.choice());
    let starts_given_up = reckoning.given_up.contains(&Requirement::StartsLinux);
    let given_up = |requirement: &Requirement| {
        let words = requirement.words();
        format!("This requirement was given up, because nothing meets it together with the rest: {words}.")
    };
    Recommendation {
        answers: answers.clone(),
        first: choice(0),
        second: choice(1),
        besides: starts_given_up.then(|| for_the_disk(measured)).flatten(),
        given_up: reckoning.given_up.iter().map(given_up).collect(),
        others: reckoning.ranked.iter().skip(2).map(|r| (r.features.name.clone(), r.points())).collect(),
        out: reckoning.out,
        measured: measured.sentences(),
    }
}

/// The facility for the disk of a system that stays on this machine.
fn for_the_disk(measured: &Measured) -> Option<String> {
    let (purpose, threat) = (EncryptionPurpose::Laptop, Threat::Theft);
    let answers = RecommendAnswers { purpose, share_with: Vec::new(), threat, root: true };
    Reckoning::of(&answers, measured).ranked.first().map(|r| r.features.name.clone())
}

/// Facilities in order, and those that are ruled out.
struct Reckoning {
    ranked: Vec<Ranked>,
    out: Vec<RuledOut>,
    given_up: Vec<Requirement>,
}

struct Ranked {
    features: &'static FacilityFeatures,
    lines: Vec<(i32, String)>,
    /// The strongest requirement that it does not meet.
    lacks: Option<Requirement>,
}

impl Reckoning {
    fn of(answers: &RecommendAnswers, measured: &Measured) -> Self {
        let mut excluded = Vec::new();
        let mut left: Vec<&'static FacilityFeatures> = Vec::new();
        for facility in features::all() {
            match out(facility, answers) {
                Some(because) => excluded.push(RuledOut { name: facility.name.clone(), because }),
                None => left.push(facility),
            }
        }
        let mut requirements = requirements(answers);
        let mut given_up = Vec::new();
        let fits = |f: &FacilityFeatures, requirements: &[Requirement]| {
            requirements.iter().all(|requirement| requirement.holds(f))
        };
        while !left.is_empty() && !left.iter().any(|f| fits(f, &requirements)) {
            given_up.extend(requirements.pop());
        }
        let ranked = |features: &'static FacilityFeatures| {
            let mut lines = points(features, answers);
            lines.extend(measured.points(features));
            let lacks = requirements.iter().copied().find(|requirement| !requirement.holds(features));
            Ranked { features, lines, lacks }
        };
        let mut ranked: Vec<Ranked> = left.into_iter().map(ranked).collect();
        // The sort is stable: of equals, the first of the table.
        ranked.sort_by_key(|r| (r.lacks.is_some(), -r.points()));
        // If only one meets all requirements, the runner-up is the best of the rest.
        let fitting = ranked.iter().filter(|r| r.lacks.is_none()).count().max(2).min(ranked.len());
        let lacking = |r: Ranked| {
            let because = format!("the requirement is {}", r.lacks?.words());
            Some(RuledOut { name: r.features.name.clone(), because })
        };
        excluded.extend(ranked.split_off(fitting).into_iter().filter_map(lacking));
        Self { ranked, out: excluded, given_up }
    }
}

impl Ranked {
    fn points(&self) -> i32 {
        self.lines.iter().map(|(points, _)| points).sum()
    }

    fn choice(&self) -> RecommendedFacility {
        let f = self.features;
        let (reasons, mut against): (Vec<Reason>, Vec<Reason>) = self
            .lines
            .iter()
            .map(|(points, text)| Reason { points: *points, text: text.clone() })
            .partition(|reason| reason.points >= 0);
        against.extend(self.lacks.iter().map(|requirement| {
            let text = format!("The requirement {} is not met.", requirement.words());
            Reason { points: 0, text }
        }));
        against.extend(f.experimental.iter().map(|who| Reason { points: 0, text: format!("{who}.") }));
        let here = match f.is_ours() {
            true => {
                format!("This program creates and opens it: the format {}.", f.format.as_deref().unwrap_or_default())
            }
            false => "This program can neither create nor open it.".to_owned(),
        };
        let (name, title, points) = (f.name.clone(), f.title.clone(), self.points());
        let (how, sources) = (f.how.clone(), f.sources.clone());
        RecommendedFacility { name, title, points, reasons, against, here, how, sources }
    }
}
