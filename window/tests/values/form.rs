use super::*;

fn secret(text: &str) -> SecretField {
    let mut field = SecretField::default();
    field.push(text);
    field
}

fn form(password: &str, keyfiles: &[&str]) -> Form {
    let fields = vec![
        Field::new("password", "--password-fd", Input::Secret(secret(password))),
        Field::more("keyfiles", "--keyfile", Input::Paths(keyfiles.iter().map(PathBuf::from).collect())),
        Field::more("pim", "--pim", Input::Text(" 7 ".into())),
        Field::more("read", "--read-only", Input::Check(true)),
        Field::more("hash", "--hash", Input::Choice(0, vec![(String::new(), "any".into())])),
        Field::new("folder", "", Input::Existing("~/x".into())),
    ];
    Form::about(Path::new("/v"), &["mount"], fields)
}

#[test]
fn answers_become_words() {
    let call = form("p", &["/k"]).call(Path::new("/home/u")).expect("nothing lacks");
    assert_eq!(call.text(), ["mount", "--keyfile", "/k", "--pim", "7", "--read-only", "/v", "/home/u/x"]);
    assert_eq!(call.secrets.iter().map(|(option, _)| *option).collect::<Vec<_>>(), ["--password-fd"]);
    // Keyfiles alone.
    let call = form("", &["/k"]).call(Path::new("/")).expect("nothing lacks");
    assert!(call.secrets.is_empty() && call.text().contains(&"--no-password".to_owned()), "{:?}", call.text());
    assert_eq!(form("", &[]).call(Path::new("/")).err(), Some(Lacking::Answer("password")));
}

#[test]
fn a_name_that_is_taken_gets_a_number() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("a.b.luks");
    assert_eq!(unused(path.clone()), path);
    std::fs::write(&path, "").expect("a file");
    assert_eq!(unused(path), folder.path().join("a.b-2.luks"));
    let (taken, free) = (folder.path().join("run"), folder.path().join("run-2"));
    std::fs::create_dir(&taken).expect("a folder");
    assert_eq!(unused(taken), free);
}

#[test]
fn a_new_password_is_repeated_and_a_warning_agreed_to() {
    let new = |again| Field::new("new", "--new-password-fd", Input::NewSecret(secret("a"), secret(again)));
    let asked = |again| Form::about(Path::new("/v"), &["change"], vec![new(again)]);
    assert_eq!(asked("b").call(Path::new("/")).err(), Some(Lacking::Repetition));
    assert!(asked("a").call(Path::new("/")).is_ok());
    let mut warned = asked("a").warns("all is lost");
    assert_eq!(warned.call(Path::new("/")).err(), Some(Lacking::Consent));
    warned.warning = Some(("all is lost", true));
    assert!(warned.call(Path::new("/")).is_ok());
}

#[test]
fn sizes_are_compared_with_the_free_space() {
    for (text, larger) in [
        ("2000G", true),
        ("2000 gib", true),
        ("1.5K", true),
        ("1025", true),
        ("2KB", true),
        ("1KiB", false),
        ("1KB", false),
        ("1024", false),
        ("0.5k", false),
        ("much", false),
        ("", false),
        ("1Q", false),
    ] {
        assert_eq!(is_larger(text, 1024), larger, "{text}");
    }
}
