use super::*;
use crate::header::Keyslot;
use crate::home::AtHand;
use crate::open::Verdict;
use crate::texts::ENGLISH;

fn all() -> Vec<Choices> {
    let choices = |(format, rate): (&str, f64)| {
        let (ciphers, hashes) = (Vec::new(), Vec::new());
        Choices { folder: false, format: format.into(), ciphers, hashes, guesses_per_second: vec![rate] }
    };
    [("LUKS2", 100.0), ("VeraCrypt", 7000.0)].map(choices).to_vec()
}

fn volume(format: &str, keyslots: &[&str], half_way: bool) -> Volume {
    let slot = |number: &&str| Keyslot { number: (*number).to_owned(), ..Keyslot::default() };
    let header = Header { format: format.into(), keyslots: keyslots.iter().map(slot).collect(), half_way };
    let verdict = Verdict { format: Some(format.into()), ..Verdict::default() };
    Volume { at: AtHand::chosen(Path::new("/v")), verdict, header: Some(header), conversion: None }
}

fn change(volume: Volume) -> Change {
    Change::new(volume, &all(), Path::new("/h"), &ENGLISH)
}

fn titles(volume: Volume) -> Vec<&'static str> {
    change(volume).forms.iter().map(|form| form.title).collect()
}

/// What each form comes to, and how many secrets go with it.
fn calls(mut change: Change) -> Vec<String> {
    let each = |form: &mut Form| {
        for field in &mut form.fields {
            match &mut field.input {
                Input::Secret(secret) => secret.push("a"),
                Input::NewSecret(first, again) => [first, again].into_iter().for_each(|secret| secret.push("b")),
                Input::Existing(path) => *path = "/backup".into(),
                _ => {}
            }
        }
        form.warning = form.warning.map(|(text, _)| (text, true));
        let call = form.call(Path::new("/h")).expect("nothing lacks");
        format!("{} ({})", call.text().join(" "), call.secrets.len())
    };
    change.forms.iter_mut().map(each).collect()
}

#[test]
fn each_format_has_what_it_can() {
    let t = &ENGLISH;
    let volume = |format| volume(format, &["0", "1"], false);
    let mut veracrypt = volume("VeraCrypt");
    veracrypt.header = None;
    assert_eq!(titles(veracrypt), [t.change_password, t.backup, t.restore, t.convert, t.hidden_title]);
    let slots = [t.change_password, t.add_password, t.add_recovery, t.remove_password, t.remove_keyslot];
    let luks2 = [&slots[..], &[t.backup, t.restore, t.convert, t.reencrypt]].concat();
    assert_eq!(titles(volume("LUKS2")), luks2);
    assert_eq!(titles(volume("BitLocker")), [&slots[..], &[t.convert]].concat());
    assert_eq!(titles(Volume { header: None, ..volume("FileVault2") }), [t.convert]);
}

#[test]
fn answers_become_the_words_of_each_verb() {
    let expected = [
        "change /v (2)",
        "keyslot add /v (2)",
        "keyslot add --recovery-key-file /h/v.recovery.txt /v (1)",
        "keyslot remove --yes /v (1)",
        "header backup /v /h/v.header (0)",
        "header restore --yes --from /backup /v (1)",
        "convert --new-format LUKS2 /v /h/v.new (2)",
        "reencrypt --yes /v (1)",
    ];
    assert_eq!(calls(change(volume("LUKS2", &["0"], false))), expected);
    // In a partition of a disk.
    let mut volume = volume("LUKS2", &["0"], false);
    volume.at.options = vec!["--partition=2".into(), "--read-only".into()];
    let told = calls(change(volume));
    assert_eq!(
        (&*told[0], &*told[4]),
        ("change --partition=2 /v (2)", "header backup --partition=2 /v /h/v.header (0)")
    );
    assert!(told.iter().all(|call| call.contains("--partition=2") && !call.contains("reencrypt")), "{told:?}");
}

#[test]
fn a_keyslot_is_changed_or_removed_by_its_number() {
    let mut change = change(volume("LUKS2", &["0", "4"], false));
    change.keyslot("4", false);
    assert_eq!((change.shown, change.forms[0].title), (0, ENGLISH.change_password));
    change.keyslot("4", true);
    assert_eq!(change.form().expect("a form").title, ENGLISH.remove_keyslot);
    let told = calls(change);
    assert_eq!((&*told[0], &*told[4]), ("change --slot 4 /v (2)", "keyslot kill --yes /v 4 (1)"));
}

/// A new password stays in its format, and that of a copy has the copy's. A keyfile or a PIM makes it another number.
#[test]
fn each_format_sets_how_fast_a_password_is_guessed() {
    let mut luks = change(volume("LUKS2", &["0"], false));
    let at = |title: &str| luks.forms.iter().position(|form| form.title == title).expect("a form");
    let (own, added, copy) = (at(ENGLISH.change_password), at(ENGLISH.add_password), at(ENGLISH.convert));
    for form in [own, added, copy] {
        assert_eq!(luks.forms[form].guesses_per_second(), Some(100.0));
    }
    let Some(Input::Choice(chosen, _)) = luks.forms[copy].field_mut(NEW_FORMAT).map(|field| &mut field.input) else {
        panic!("it has a choice")
    };
    *chosen = 1;
    assert_eq!(luks.forms[copy].guesses_per_second(), Some(7000.0));
    luks.forms[added].field_mut("--new-keyfile").expect("it takes some").input = Input::Paths(vec!["/k".into()]);
    assert_eq!(luks.forms[added].guesses_per_second(), None);
    let mut veracrypt = change(volume("VeraCrypt", &[], false));
    for form in &mut veracrypt.forms {
        let new = form.fields.iter().any(|field| matches!(field.input, Input::NewSecret(..)));
        if let (true, Some(pim)) = (new, form.field_mut("--pim")) {
            pim.input = Input::Text("5".into());
        }
    }
    let rate = |title: &str| veracrypt.forms.iter().find(|form| form.title == title).map(Form::guesses_per_second);
    assert_eq!((rate(ENGLISH.change_password), rate(ENGLISH.hidden_title)), (Some(None), Some(Some(7000.0))));
    // The PIM is the old volume's.
    assert_eq!(rate(ENGLISH.convert), Some(Some(7000.0)));
}

#[test]
fn what_was_interrupted_comes_first() {
    let told = calls(change(volume("LUKS2", &["0"], true)));
    assert!(told[0] == "reencrypt --resume /v (1)" && !told.contains(&"reencrypt --yes /v (1)".to_owned()), "{told:?}");
    let into = |format: Option<&str>| {
        let (source, destination) = ("/v".into(), "/x/new".into());
        let conversion = Some(Conversion { source, destination, format: format.map(str::to_owned) });
        calls(change(Volume { conversion, ..volume("LUKS2", &["0"], false) })).remove(0)
    };
    assert_eq!(into(Some("VeraCrypt")), "convert --resume --new-format VeraCrypt /v /x/new (2)");
    assert_eq!(into(None), "convert --resume --raw /v /x/new (1)");
}

#[test]
fn passwords_are_forgotten_once_it_is_done() {
    let mut change = change(volume("LUKS2", &["0"], false));
    let header = change.volume.header.clone();
    let finish = |change: &mut Change, code| {
        change.finished(&Done { code, ..Done::default() }, header.clone(), &all(), Path::new("/h"), &ENGLISH);
    };
    let typed = |change: &mut Change| match &mut change.form().expect("a form").fields[0].input {
        Input::Secret(secret) => {
            let empty = secret.is_empty();
            secret.push("x");
            !empty
        }
        _ => panic!("a password comes first"),
    };
    assert!(!typed(&mut change));
    finish(&mut change, 2);
    assert!(typed(&mut change), "it can be corrected");
    finish(&mut change, 0);
    assert!(!typed(&mut change));
}
