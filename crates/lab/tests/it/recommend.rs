//! The features table, and which facility is recommended for every answer that can be given.

use claviger_engine::FORMATS;
use claviger_engine::file_formats::FILE_FORMATS;
use claviger_lab::measure::facility::Catalogue;
use claviger_lab::model::answers::{EncryptionPurpose, Platform, RecommendAnswers, Threat};
use claviger_lab::model::figures::EncryptedLayer;
use claviger_lab::show::recommend::{FacilityFeatures, Measured, Recommendation, features, recommend};

fn every_answer() -> Vec<RecommendAnswers> {
    let shares = [vec![], vec![Platform::Windows], vec![Platform::Macos], vec![Platform::Windows, Platform::Macos]];
    let mut all = Vec::new();
    for &(_, purpose, _) in EncryptionPurpose::WORDS {
        for &(_, threat, _) in Threat::WORDS {
            for share_with in &shares {
                all.extend([true, false].map(|root| RecommendAnswers {
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

fn features_of(name: &str) -> &'static FacilityFeatures {
    features().iter().find(|f| f.name == name).expect("of the table")
}

#[test]
fn every_question_has_an_answer_without_contradiction() {
    for answers in every_answer() {
        let told = recommend(&answers, &Measured::default());
        let [first, second] = [&told.first, &told.second].map(|c| c.as_ref().unwrap_or_else(|| panic!("{answers:?}")));
        let lacks = second.against.iter().any(|reason| reason.text.starts_with("The requirement"));
        assert!((first.points >= second.points || lacks) && first.name != second.name, "{answers:?}");
        assert!(!first.against.iter().any(|reason| reason.text.starts_with("The requirement")), "{answers:?}");
        for choice in [first, second] {
            let f = features_of(&choice.name);
            assert!(f.makes.contains(&Platform::Linux) || f.is_ours(), "{answers:?}: {}", f.name);
            assert!(
                [Platform::Linux].iter().chain(&answers.share_with).all(|p| f.writes.contains(p)),
                "{answers:?}: {}",
                f.name
            );
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
        let mut all: Vec<&str> = features().iter().map(|f| f.name.as_str()).collect();
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
        let disk = answers.purpose == EncryptionPurpose::Laptop && answers.root;
        let starts = f.starts.contains(&Platform::Linux);
        assert_eq!(told.besides.is_some(), disk && !starts, "{answers:?}: {} and {:?}", f.name, told.besides);
    }
}

fn ask(purpose: EncryptionPurpose, share_with: &[Platform], threat: Threat) -> Recommendation {
    recommend(&RecommendAnswers { purpose, share_with: share_with.to_vec(), threat, root: true }, &Measured::default())
}

fn first(told: &Recommendation) -> &str {
    told.first.as_ref().map_or("", |choice| choice.name.as_str())
}

#[test]
fn answers_that_are_known() {
    assert_eq!(first(&ask(EncryptionPurpose::Laptop, &[], Threat::Theft)), "LUKS2");
    let shared = ask(EncryptionPurpose::External, &[Platform::Windows], Threat::Theft);
    assert_eq!(first(&shared), "VeraCrypt");
    let because = |name: &str| shared.out.iter().find(|out| out.name == name).map(|out| out.because.as_str());
    assert_eq!(because("LUKS2"), Some("nothing on Windows can open it"));
    // This program can; what it makes is not recommended first, for Windows has not seen it yet.
    assert_eq!(because("BitLocker"), None);
    assert!(first(&shared) != "BitLocker" && features_of("BitLocker").experimental.is_some());
    assert!(because("TrueCrypt").is_some_and(|why| why.contains("2014")));
    let coerced = ask(EncryptionPurpose::Laptop, &[], Threat::Coercion);
    assert_eq!((first(&coerced), coerced.besides.as_deref()), ("VeraCrypt", Some("LUKS2")));
    assert_eq!(first(&ask(EncryptionPurpose::FewFiles, &[], Threat::Cloud)), "Cryptomator");
}

#[test]
fn the_table_is_sound() {
    assert!(features().len() >= 15);
    for f in features() {
        let name = &f.name;
        assert_eq!(features().iter().filter(|other| other.name == *name).count(), 1, "{name} is there twice");
        assert_eq!(f.ended.is_some(), f.why_ended.is_some(), "{name}");
        assert!(f.ended.is_none_or(|ended| ended > f.since), "{name}");
        assert!(!f.how.is_empty() && !f.sources.is_empty(), "{name}");
        assert!(f.makes.iter().all(|p| f.writes.contains(p)), "{name} is made where it cannot be written");
        assert!(f.reads.iter().all(|p| !f.writes.contains(p)), "{name}: who writes can read");
        assert!(f.starts.iter().chain(&f.builtin).all(|p| f.writes.contains(p)), "{name}");
        assert!(f.starts.is_empty() || f.whole_disk, "{name} starts a system and takes no disk");
        assert_eq!(f.layer == EncryptedLayer::Files, !f.whole_disk && !f.container, "{name}");
        for weakness in &f.weaknesses {
            assert!(weakness.what.ends_with('.') && !weakness.source.is_empty() && weakness.since > 1999, "{name}");
        }
        if let Some(format) = &f.format {
            assert!(f.is_ours(), "{name}: there is no format {format}");
        }
    }
    let of_thesis: Vec<&str> = features().iter().filter_map(|f| f.thesis.as_deref()).collect();
    assert_eq!(of_thesis, ["dm-crypt", "TrueCrypt", "BitLocker", "EFS", "eCryptfs"]);
}

#[test]
fn what_a_run_calls_it_is_what_the_lab_calls_it() {
    let catalogue = Catalogue::load(None).expect("the lab's own");
    for name in features().iter().flat_map(|f| &f.measured_as) {
        assert!(catalogue.all().iter().any(|facility| facility.name == *name), "the lab measures no {name}");
    }
}

/// Every format that this program opens and makes stands in the table, but for the obsolete one.
#[test]
fn every_format_of_ours_is_there() {
    let volumes = FORMATS.iter().filter(|format| format.creator().is_some()).map(|format| format.name());
    let folders = FILE_FORMATS.iter().filter(|format| format.asks_passphrase(&[]) && !format.ciphers().is_empty());
    let folders = folders.map(|format| format.name());
    for name in volumes.chain(folders) {
        assert!(features().iter().any(|f| f.format.as_deref() == Some(name)), "{name}");
    }
}
