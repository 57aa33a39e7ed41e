//! Which facility fits: from a table of what each can do, what is asked of it, and what this machine measured.
//!
//! The answer can be followed line by line. Some facilities are ruled out, each for one reason. Requirements of the
//! purpose and against the threat leave those that meet all of them; if none does, the weakest requirement is given up,
//! which is reported. Points, each with a sentence, order the rest. The purposes are the four scenarios of Zhan's
//! thesis of 2010; the same rules, asked about its five facilities as they were then, say what would have been the
//! answer in that year.

mod features;
mod measured;
mod rules;

use serde::Serialize;

pub use features::{Features, Weakness, all as features};
pub use measured::Measured;

use crate::model::answers::{Answers, Purpose, Threat};
use crate::model::statistics::median;
use crate::show::published;
use rules::{View, Wish, out, points, wishes};

/// Which facility fits, and why.
#[derive(Clone, Debug, Serialize)]
pub struct Recommendation {
    /// What was asked.
    pub answers: Answers,
    /// The facility that fits; `None` if all are ruled out.
    pub first: Option<Choice>,
    /// The next one.
    pub second: Option<Choice>,
    /// What to use for the system disk, if the answer cannot hold it.
    pub besides: Option<String>,
    /// Wishes that nothing had which has the others, in whole sentences.
    pub given_up: Vec<String>,
    /// Facilities that are ruled out, each with its reason.
    pub out: Vec<Out>,
    /// The others, with their points.
    pub others: Vec<(String, i32)>,
    /// What this machine measured, in whole sentences.
    pub measured: Vec<String>,
    /// What the same rules say for 2010, and what has changed.
    pub then: Then,
}

/// A facility that fits.
#[derive(Clone, Debug, Serialize)]
pub struct Choice {
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

/// A line of the reckoning.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Reason {
    /// What it counts.
    pub points: i32,
    /// A whole sentence.
    pub text: String,
}

/// A facility that is ruled out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Out {
    /// What it is called.
    pub name: String,
    /// Why: the end of a sentence.
    pub because: String,
}

/// The answer of the year of the thesis.
#[derive(Clone, Debug, Serialize)]
pub struct Then {
    /// That year.
    pub year: u16,
    /// The facility of the thesis that the same rules choose; nothing where none of the five fits.
    pub facility: Option<String>,
    /// What it lost in the thesis's own figures, and what is different today, in whole sentences.
    pub differs: Vec<String>,
}

/// The year of the thesis.
const THESIS: u16 = 2010;

/// Later than every year of the table.
const TODAY: u16 = u16::MAX;

/// Which facility fits these answers, on this machine.
pub fn recommend(answers: &Answers, measured: &Measured) -> Recommendation {
    let view = View { answers, year: TODAY, ours: true };
    let reckoning = Reckoning::of(features::all().iter().collect(), &view, measured);
    let choice = |place: usize| reckoning.ranked.get(place).map(|ranked| ranked.choice());
    let starts_given_up = reckoning.given_up.contains(&Wish::StartsLinux);
    Recommendation {
        answers: answers.clone(),
        first: choice(0),
        second: choice(1),
        besides: starts_given_up.then(|| for_the_disk(measured)).flatten(),
        given_up: reckoning
            .given_up
            .iter()
            .map(|wish| format!("Given up, because nothing offers it together with the rest: {}.", wish.words()))
            .collect(),
        then: then(answers, &reckoning),
        others: reckoning.ranked.iter().skip(2).map(|r| (r.features.name.clone(), r.points())).collect(),
        out: reckoning.out,
        measured: measured.sentences(),
    }
}

/// The facility for the disk of a system that stays on this machine.
fn for_the_disk(measured: &Measured) -> Option<String> {
    let answers = Answers { purpose: Purpose::Laptop, share_with: Vec::new(), threat: Threat::Theft, root: true };
    let view = View { answers: &answers, year: TODAY, ours: true };
    Reckoning::of(features::all().iter().collect(), &view, measured).ranked.first().map(|r| r.features.name.clone())
}

/// Facilities in order, and those that are out.
struct Reckoning<'a> {
    ranked: Vec<Ranked<'a>>,
    out: Vec<Out>,
    given_up: Vec<Wish>,
}

struct Ranked<'a> {
    features: &'a Features,
    lines: Vec<(i32, String)>,
    /// The strongest requirement that it does not meet.
    lacks: Option<Wish>,
}

impl<'a> Reckoning<'a> {
    fn of(table: Vec<&'a Features>, view: &View<'_>, measured: &Measured) -> Self {
        let mut excluded = Vec::new();
        let mut left: Vec<&Features> = Vec::new();
        for facility in table {
            match out(facility, view) {
                Some(because) => excluded.push(Out { name: facility.name.clone(), because }),
                None => left.push(facility),
            }
        }
        let mut wishes = wishes(view.answers);
        let mut given_up = Vec::new();
        let fits = |f: &Features, wishes: &[Wish]| wishes.iter().all(|wish| wish.holds(f));
        while !left.is_empty() && !left.iter().any(|f| fits(f, &wishes)) {
            given_up.extend(wishes.pop());
        }
        let ranked = |features: &'a Features| {
            let mut lines = points(features, view);
            lines.extend(measured.points(features));
            let lacks = wishes.iter().copied().find(|wish| !wish.holds(features));
            Ranked { features, lines, lacks }
        };
        let mut ranked: Vec<Ranked<'_>> = left.into_iter().map(ranked).collect();
        // The sort is stable: of equals, the first of the table.
        ranked.sort_by_key(|r| (r.lacks.is_some(), -r.points()));
        // Where only one has all that is wanted, the runner-up is the best of the rest.
        let fitting = ranked.iter().filter(|r| r.lacks.is_none()).count().max(2).min(ranked.len());
        let lacking = |r: Ranked<'_>| {
            let because = format!("the requirement is {}", r.lacks?.words());
            Some(Out { name: r.features.name.clone(), because })
        };
        excluded.extend(ranked.split_off(fitting).into_iter().filter_map(lacking));
        Self { ranked, out: excluded, given_up }
    }
}

impl Ranked<'_> {
    fn points(&self) -> i32 {
        self.lines.iter().map(|(points, _)| points).sum()
    }

    fn choice(&self) -> Choice {
        let f = self.features;
        let (reasons, mut against): (Vec<Reason>, Vec<Reason>) = self
            .lines
            .iter()
            .map(|(points, text)| Reason { points: *points, text: text.clone() })
            .partition(|reason| reason.points >= 0);
        against.extend(self.lacks.iter().map(|wish| {
            let text = format!("The requirement {} is not met.", wish.words());
            Reason { points: 0, text }
        }));
        against.extend(f.experimental.iter().map(|who| Reason { points: 0, text: format!("{who}.") }));
        let here = match f.is_ours() {
            true => {
                format!("This program creates and opens it: the format {}.", f.format.as_deref().unwrap_or_default())
            }
            false => "This program can neither create nor open it.".to_owned(),
        };
        Choice {
            name: f.name.clone(),
            title: f.title.clone(),
            points: self.points(),
            reasons,
            against,
            here,
            how: f.how.clone(),
            sources: f.sources.clone(),
        }
    }
}

/// What the same rules say about the five facilities of the thesis as they were then, and what is different today.
fn then(answers: &Answers, today: &Reckoning<'_>) -> Then {
    let view = View { answers, year: THESIS, ours: false };
    let five = features::all().iter().filter(|f| f.thesis.is_some()).collect();
    let reckoning = Reckoning::of(five, &view, &Measured::default());
    let first = reckoning.ranked.first().map(|r| r.features);
    let mut differs: Vec<String> = Vec::new();
    if let Some(f) = first {
        differs.extend(what_it_lost(f));
        differs.extend(what_became_of_it(f, today));
    }
    differs.extend(since_then(answers).map(String::from));
    Then { year: THESIS, facility: first.and_then(|f| f.thesis.clone()), differs }
}

/// What the thesis measured of it on internal disks.
fn what_it_lost(f: &Features) -> Option<String> {
    let name = f.thesis.as_deref()?;
    let of = |direction: &str| -> Vec<f64> {
        let wanted = |l: &&published::PublishedLoss| {
            l.figure.study == "zhan2010"
                && l.figure.facility == name
                && l.figure.platform == "internal hard disk"
                && l.figure.workload == "sequential I/O, 3 GB file"
                && l.figure.direction == direction
        };
        published::losses().iter().filter(wanted).map(|l| l.loss).collect()
    };
    let (write, read) = (of("write"), of("read"));
    let words = |losses: &[f64], did: &str| {
        let loss = median(losses) * 100.0;
        format!("{} {:.1} % {did}", if loss < 0.0 { "gained" } else { "lost" }, loss.abs())
    };
    (!write.is_empty() && !read.is_empty()).then(|| {
        format!(
            "In the thesis's figures {name} {} and {} a file of 3 GB on an internal disk.",
            words(&write, "writing"),
            words(&read, "reading")
        )
    })
}

fn what_became_of_it(f: &Features, today: &Reckoning<'_>) -> Option<String> {
    if let Some(out) = today.out.iter().find(|out| out.name == f.name) {
        return Some(format!("{} is ruled out today: {}.", f.name, out.because));
    }
    let place = today.ranked.iter().position(|r| r.features.name == f.name)?;
    if place == 0 {
        return Some(format!("{} is still the answer.", f.name));
    }
    let (first, then) = (&today.ranked[0], &today.ranked[place]);
    let more: Vec<&str> = first
        .lines
        .iter()
        .filter(|line| line.0 > 0 && !then.lines.contains(line))
        .map(|(_, text)| text.as_str())
        .collect();
    let less: Vec<&str> = then
        .lines
        .iter()
        .filter(|line| line.0 < 0 && !first.lines.contains(line))
        .map(|(_, text)| text.as_str())
        .collect();
    Some(format!(
        "{} is still there, with {} points; {} has {}. Of {}: {} Of {}: {}",
        f.name,
        then.points(),
        first.features.name,
        first.points(),
        first.features.name,
        if more.is_empty() { "nothing more.".to_owned() } else { more.join(" ") },
        f.name,
        if less.is_empty() { "nothing against it that is not against the other.".to_owned() } else { less.join(" ") },
    ))
}

/// What has come since, whatever the facility.
fn since_then(answers: &Answers) -> impl Iterator<Item = &'static str> {
    let of_purpose = match answers.purpose {
        Purpose::Laptop => {
            "Since then, AES instructions have become common: of the studies' machines of 2010 only the newest had them, and they remove \
             most of the cost away."
        }
        Purpose::Desktop => "Since then, distributions have moved from encrypted home folders to encrypted disks.",
        Purpose::FewFiles => {
            "Since then, facilities have come that encrypt files and notice changes of them: Cryptomator (2014), gocryptfs, CryFS and \
             securefs (2015)."
        }
        Purpose::External => {
            "Since then, TrueCrypt has ended (2014), and VeraCrypt (2013) has not read its volumes since version 1.26."
        }
    };
    let of_threat = (answers.threat == Threat::Cloud).then_some(
        "In 2010 nobody asked about clouds: none of the five notices changes or hides sizes of single files.",
    );
    [Some(of_purpose), of_threat].into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::answers::Platform;
    use crate::model::figures::EncryptedLayer;

    fn every_answer() -> Vec<Answers> {
        let shares = [vec![], vec![Platform::Windows], vec![Platform::Macos], vec![Platform::Windows, Platform::Macos]];
        let mut all = Vec::new();
        for &(_, purpose, _) in Purpose::WORDS {
            for &(_, threat, _) in Threat::WORDS {
                for share_with in &shares {
                    all.extend([true, false].map(|root| Answers {
                        purpose,
                        share_with: share_with.clone(),
                        threat,
                        root,
                    }));
                }
            }
        }
        all
    }

    fn features_of(name: &str) -> &'static Features {
        features::all().iter().find(|f| f.name == name).expect("of the table")
    }

    #[test]
    fn every_question_has_an_answer_without_contradiction() {
        for answers in every_answer() {
            let told = recommend(&answers, &Measured::default());
            let [first, second] =
                [&told.first, &told.second].map(|c| c.as_ref().unwrap_or_else(|| panic!("{answers:?}")));
            let lacks = second.against.iter().any(|reason| reason.text.starts_with("The requirement"));
            assert!((first.points >= second.points || lacks) && first.name != second.name, "{answers:?}");
            assert!(!first.against.iter().any(|reason| reason.text.starts_with("The requirement")), "{answers:?}");
            for choice in [first, second] {
                let f = features_of(&choice.name);
                assert!(f.makes.contains(&Platform::Linux) || f.is_ours(), "{answers:?}: {}", f.name);
                assert!(answers.platforms().all(|p| f.writes.contains(&p)), "{answers:?}: {}", f.name);
                assert_eq!(f.ended, None, "{answers:?}: {}", f.name);
                assert!(answers.root || !f.root || f.is_ours(), "{answers:?}: {}", f.name);
                assert!(!choice.reasons.is_empty() && !choice.how.is_empty(), "{answers:?}: {}", f.name);
                let sum: i32 = choice.reasons.iter().chain(&choice.against).map(|r| r.points).sum();
                assert_eq!(sum, choice.points, "{answers:?}: {}", f.name);
                assert_eq!(choice.here.contains("neither"), !f.is_ours(), "{}", f.name);
                assert!(choice.against.len() >= f.weaknesses.len(), "nothing is kept silent about {}", f.name);
            }
            // Each is named once: as the answer, beside it, or out.
            let mut named: Vec<&str> = told.out.iter().map(|out| out.name.as_str()).collect();
            named.extend(told.others.iter().map(|(name, _)| name.as_str()));
            named.extend([first.name.as_str(), second.name.as_str()]);
            named.sort_unstable();
            let mut all: Vec<&str> = features::all().iter().map(|f| f.name.as_str()).collect();
            all.sort_unstable();
            assert_eq!(named, all, "{answers:?}");
            assert!(told.out.iter().all(|out| !out.because.is_empty()));
        }
    }

    #[test]
    fn what_is_wanted_against_the_threat_is_never_given_up_for_the_purpose() {
        for answers in every_answer() {
            let told = recommend(&answers, &Measured::default());
            let f = features_of(&told.first.expect("an answer").name);
            match answers.threat {
                Threat::Coercion => assert!(f.hidden_volume, "{answers:?}: {}", f.name),
                Threat::Cloud => {
                    assert!(f.layer == EncryptedLayer::Files && f.authenticated && f.names, "{answers:?}: {}", f.name)
                }
                Threat::Repair => assert!(f.container || f.layer == EncryptedLayer::Files, "{answers:?}: {}", f.name),
                Threat::EvilMaid => assert!(f.authenticated || f.tpm, "{answers:?}: {}", f.name),
                Threat::Theft => assert_eq!(told.given_up.is_empty(), told.besides.is_none(), "{answers:?}"),
            }
            let disk = answers.purpose == Purpose::Laptop && answers.root;
            let starts = f.starts.contains(&Platform::Linux);
            assert_eq!(told.besides.is_some(), disk && !starts, "{answers:?}: {} and {:?}", f.name, told.besides);
        }
    }

    fn ask(purpose: Purpose, share_with: &[Platform], threat: Threat) -> Recommendation {
        recommend(&Answers { purpose, share_with: share_with.to_vec(), threat, root: true }, &Measured::default())
    }

    fn first(told: &Recommendation) -> &str {
        told.first.as_ref().map_or("", |choice| choice.name.as_str())
    }

    #[test]
    fn answers_that_are_known() {
        assert_eq!(first(&ask(Purpose::Laptop, &[], Threat::Theft)), "LUKS2");
        let shared = ask(Purpose::External, &[Platform::Windows], Threat::Theft);
        assert_eq!(first(&shared), "VeraCrypt");
        let because = |name: &str| shared.out.iter().find(|out| out.name == name).map(|out| out.because.as_str());
        assert_eq!(because("LUKS2"), Some("nothing on Windows can open it"));
        // This program can; what it makes is not recommended first, for Windows has not seen it yet.
        assert_eq!(because("BitLocker"), None);
        assert!(first(&shared) != "BitLocker" && features_of("BitLocker").experimental.is_some());
        assert!(because("TrueCrypt").is_some_and(|why| why.contains("2014")));
        let coerced = ask(Purpose::Laptop, &[], Threat::Coercion);
        assert_eq!((first(&coerced), coerced.besides.as_deref()), ("VeraCrypt", Some("LUKS2")));
        assert_eq!(first(&ask(Purpose::FewFiles, &[], Threat::Cloud)), "CryFS");
    }

    #[test]
    fn the_thesis_had_other_answers() {
        let then = |purpose, share: &[Platform], threat| ask(purpose, share, threat).then;
        let laptop = then(Purpose::Laptop, &[], Threat::Theft);
        assert_eq!(laptop.facility.as_deref(), Some("dm-crypt"));
        assert!(laptop.differs.iter().any(|text| text.contains("LUKS1 is still there")), "{laptop:?}");
        let shared = then(Purpose::External, &[Platform::Windows], Threat::Theft);
        assert_eq!(shared.facility.as_deref(), Some("TrueCrypt"));
        assert!(shared.differs.iter().any(|text| text.contains("TrueCrypt is ruled out today")), "{shared:?}");
        // Nothing that came later counts, and nobody knew of it.
        assert!(features_of("TrueCrypt").weaknesses_in(THESIS).count() < features_of("TrueCrypt").weaknesses.len());
    }
}
