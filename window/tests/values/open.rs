use super::*;
use crate::texts::ENGLISH;
use serde_json::json;

fn told(one: Value) -> Verdict {
    verdict(&json!([one]), &ENGLISH)
}

#[test]
fn what_a_file_is() {
    let luks = told(json!({"size": 1, "verdict": "yes", "candidates": ["LUKS2"]}));
    assert!(!open_options(&luks).contains(&"--format"), "it is certain");
    assert!(luks.format.is_some() && luks.sentence.ends_with("LUKS2."), "{luks:?}");
    let noise = told(json!({"size": 1, "verdict": "possible", "candidates": ["TrueCrypt", "VeraCrypt"]}));
    assert!(noise.sentence.contains("TrueCrypt / VeraCrypt") && noise.sentence.ends_with(ENGLISH.no_mark), "{noise:?}");
    let named = open_options(&noise);
    assert!(named.contains(&"--format") && named.contains(&"--hash") && !named.contains(&"--backup-header"));
    let beheaded = json!({"size": 1, "verdict": "no", "candidates": [], "by_header_copy": ["TrueCrypt", "VeraCrypt"]});
    let call = Open::new(volume(told(beheaded), &[]), &ENGLISH).call(Path::new("/")).expect("nothing lacks");
    assert_eq!(call.text(), ["mount", "--backup-header", "--read-only", "--isolate-keys", "/v", "/d"]);
    let copies = json!({"size": 1, "verdict": "no", "candidates": [], "by_header_copy": ["BitLocker"]});
    let call = Open::new(volume(told(copies), &[]), &ENGLISH).call(Path::new("/")).expect("nothing lacks");
    assert_eq!(call.text(), ["mount", "--format", "BitLocker", "--read-only", "--isolate-keys", "/v", "/d"]);
    let nothing = told(json!({"size": 1, "verdict": "no", "candidates": []}));
    assert!(nothing.format.is_none() && nothing.sentence == ENGLISH.is_nothing);
    let partition = json!({"number": 2, "len": 1 << 30, "formats": ["LUKS1"]});
    let disk = told(json!({"size": 1, "verdict": "no", "candidates": [], "partitions": [partition]}));
    assert_eq!(disk.partitions[0].name, "Partition 2: 1 GiB, LUKS1");
    assert_eq!(disk.of(&["--partition=2".to_owned()], &ENGLISH).format.as_deref(), Some("LUKS1"));
    let folder = told(json!({"verdict": "yes", "candidates": ["eCryptfs"]}));
    assert!(folder.folder && folder.format.is_some() && !volume(folder, &[]).changes());
}

/// The options that the form of such a volume asks for.
fn open_options(verdict: &Verdict) -> Vec<&'static str> {
    Open::new(volume(verdict.clone(), &[]), &ENGLISH).form.fields.iter().map(|field| field.option).collect()
}

/// Chosen with these options.
fn volume(verdict: Verdict, options: &[&str]) -> Volume {
    let options = options.iter().map(|&option| option.to_owned()).collect();
    let at = AtHand { options, dir: Some("/d".into()), ..AtHand::chosen(Path::new("/v")) };
    Volume::new(at, verdict, None, Path::new("/"), &ENGLISH)
}

#[test]
fn a_favourites_options_and_what_was_typed_become_one_call() {
    let verdict = told(json!({"size": 1, "verdict": "yes", "candidates": ["LUKS2"]}));
    let mut open = Open::new(volume(verdict, &["--hash=SHA-512", "--read-only"]), &ENGLISH);
    let call = open.call(Path::new("/")).expect("nothing lacks");
    assert_eq!(call.text(), ["mount", "--hash=SHA-512", "--read-only", "--isolate-keys", "/v", "/d"]);
    assert_eq!(call.secrets.len(), 1, "an empty password is one, too");
    assert_eq!(
        open.explain(Path::new("/")).expect("nothing lacks").text(),
        ["explain", "--hash=SHA-512", "/v", "--without-password"]
    );
    open.failed(&Done { code: 2, ..Done::default() }, &ENGLISH);
    assert_eq!(open.trouble.as_deref(), Some(ENGLISH.wrong_password));
}

fn fill(open: &mut Open, option: &str, input: Input) {
    open.form.field_mut(option).expect("a field").input = input;
}

/// Keyfiles of the outer volume do not stand for the password of the hidden one.
#[test]
fn a_hidden_password_or_keyfile_is_needed_to_protect() {
    let mut open = Open::new(volume(Verdict { format: Some("VeraCrypt".into()), ..Verdict::default() }, &[]), &ENGLISH);
    fill(&mut open, "--keyfile", Input::Paths(vec!["/outer".into()]));
    fill(&mut open, "--protect-hidden", Input::Check(true));
    assert_eq!(open.call(Path::new("/")).err(), Some(Lacking::Answer(ENGLISH.hidden_password)));
    fill(&mut open, "--hidden-keyfile", Input::Paths(vec!["/inner".into()]));
    let words = open.call(Path::new("/")).expect("nothing lacks").text();
    let words: Vec<_> = words.iter().map(String::as_str).filter(|word| word.contains("hidden")).collect();
    assert_eq!(words, ["--protect-hidden", "--no-hidden-password", "--hidden-keyfile"]);
    fill(&mut open, "--protect-hidden", Input::Check(false));
    let words = open.call(Path::new("/")).expect("nothing lacks").text();
    assert!(words.iter().all(|word| !word.contains("hidden")), "{words:?}");
}

#[test]
fn what_only_an_option_tells_is_opened_too() {
    let empty = volume(Verdict { folder: true, ..Verdict::default() }, &["--format=eCryptfs"]);
    assert!(empty.verdict.sentence.ends_with("eCryptfs."));
    let call = Open::new(empty, &ENGLISH).call(Path::new("/")).expect("nothing lacks");
    assert_eq!(call.text(), ["mount", "--format=eCryptfs", "/v", "/d"]);
}

#[test]
fn findings_and_advice() {
    let out = json!({"findings": ["It is noise."], "advice": [{"what": "Do", "command": "claviger info"}, {"what": "Think"}]});
    let told = explained(&Done { out, ..Done::default() });
    assert!(!told.caps_lock);
    assert_eq!(told.findings, ["It is noise."]);
    assert_eq!(told.advice, [("Do".into(), Some("claviger info".into())), ("Think".into(), None)]);
}
