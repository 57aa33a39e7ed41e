use super::*;
use crate::texts::ENGLISH;
use serde_json::json;

fn listed() -> Value {
    let one = |format: &str| {
        json!({"format": format, "ciphers": ["AES", "Serpent"], "hashes": ["SHA-512"], "min_len": 1,
            "folder": format == "eCryptfs"})
    };
    json!([one("LUKS2"), one("VeraCrypt"), one("BitLocker"), one("eCryptfs")])
}

fn type_into(form: &mut Form, text: &str) {
    for field in &mut form.fields {
        if let Input::NewSecret(first, again) = &mut field.input {
            first.push(text);
            again.push(text);
        }
    }
}

fn words(calls: &[Call]) -> Vec<String> {
    calls.iter().map(|call| call.text().join(" ")).collect()
}

#[test]
fn answers_are_asked_in_the_labs_words() {
    let mut create = Create::new(&listed());
    assert_eq!(
        create.recommend().text().join(" "),
        "lab recommend --for few-files --share-with linux --threat theft --root no"
    );
    (create.purpose, create.threat, create.shared) = (1, 2, [true, true]);
    assert_eq!(
        create.recommend().text().join(" "),
        "lab recommend --for external --share-with windows,macos --threat coercion --root no"
    );
}

#[test]
fn the_best_that_can_be_made_is_taken() {
    let told = json!({
        "first": {"name": "Cryptomator", "title": "C"},
        "second": {"name": "LUKS2 with integrity", "title": "L", "reasons": [{"points": 1, "text": "Good."}], "against": []},
        "others": [["VeraCrypt", 1]], "given_up": ["Given up."], "measured": ["Fast."]
    });
    let all: Vec<Choices> = serde_json::from_value(listed()).expect("choices");
    let it = recommendation(&told, &all).expect("one");
    assert_eq!((&*it.format, &it.options[..]), ("LUKS2", &["--integrity", "hmac-sha256"][..]));
    assert_eq!((it.reasons, it.remarks), (vec!["Good.".to_owned()], vec!["Given up.".to_owned(), "Fast.".to_owned()]));
    assert_eq!(recommendation(&told, &all[1..]).expect("one").format, "VeraCrypt");
    assert_eq!(recommendation(&told, &[]), None);
}

#[test]
fn a_recovery_key_comes_after_the_volume() {
    let mut create = Create::new(&listed());
    let told = json!({"first": {"name": "LUKS2", "title": "L"}, "others": []});
    create.take(&told, Path::new("/home/u"), &ENGLISH);
    let form = create.form.as_mut().expect("a form");
    type_into(form, "sesame");
    let calls = create.calls(Path::new("/home/u")).expect("nothing lacks");
    let expected = [
        "create --format LUKS2 --size 1G --filesystem ext4 /home/u/private.luks",
        "keyslot add --format LUKS2 --recovery-key-file /home/u/recovery-key.txt /home/u/private.luks",
    ];
    assert_eq!(words(&calls), expected);
}

#[test]
fn experts_choose_everything() {
    let mut create = Create::new(&listed());
    create.choose(1, Path::new("/"), &ENGLISH);
    let form = create.form.as_mut().expect("a form");
    type_into(form, "sesame");
    for (option, input) in [(FILE_SYSTEM, 3), ("--cipher", 2)] {
        let Some(Field { input: Input::Choice(at, _), .. }) = form.field_mut(option) else { panic!("{option}") };
        *at = input;
    }
    form.field_mut("--pim").expect("VeraCrypt has one").input = Input::Text("5".into());
    let calls = create.calls(Path::new("/")).expect("nothing lacks");
    assert_eq!(words(&calls), ["create --format VeraCrypt --size 1G --cipher Serpent --pim 5 /private.hc"]);
}

/// Experts begin with what fits: never with a format that is only there for old volumes.
#[test]
fn experts_begin_with_a_format_of_today() {
    let mut create = Create::new(&json!([
        {"format": "TrueCrypt", "ciphers": [], "hashes": []},
        {"format": "VeraCrypt", "ciphers": [], "hashes": []},
        {"format": "LUKS2", "ciphers": [], "hashes": []}
    ]));
    let usual = |create: &Create| create.all[create.usual()].format.clone();
    assert_eq!(usual(&create), "LUKS2");
    create.shared[0] = true;
    assert_eq!(usual(&create), "VeraCrypt");
    create.choose(create.usual(), Path::new("/"), &ENGLISH);
    type_into(create.form.as_mut().expect("a form"), "sesame");
    let calls = words(&create.calls(Path::new("/")).expect("nothing lacks"));
    assert!(
        !calls[0].contains("--iterations") && !calls[0].contains("--kdf") && !calls[0].contains("--pim"),
        "{calls:?}"
    );
}

/// Each step goes on when nothing lacks there, and says at the field what does.
#[test]
fn steps_ask_for_what_they_need() {
    let folder = tempfile::tempdir().expect("a folder");
    let home = folder.path();
    let mut create = Create::new(&listed());
    create.take(&json!({"first": {"name": "LUKS2", "title": "L"}, "others": []}), home, &ENGLISH);
    assert!(create.is_answered());
    create.step = 1;
    let number = |create: &Create, option: &str| {
        create.form.as_ref().and_then(|form| form.fields.iter().position(|field| field.option == option)).expect("it")
    };
    let complaint = |create: &Create, option: &str| {
        create.form.as_ref().expect("a form").complaint(number(create, option), &ENGLISH)
    };
    create.look_at_space(home, &ENGLISH);
    let size = number(&create, "--size");
    assert!(
        create.form.as_ref().expect("a form").fields[size]
            .hint
            .as_ref()
            .is_some_and(|hint| hint.ends_with("free there"))
    );
    // A file that is there is not overwritten.
    let taken = home.join("taken.luks");
    std::fs::write(&taken, "").expect("a file");
    create.form.as_mut().and_then(|form| form.field_mut("")).expect("it").input = Input::New("taken.luks".into());
    create.go_on(home);
    assert_eq!(create.step, 1);
    assert!(complaint(&create, "").is_some_and(|text| text.contains("taken.luks")));
    create.form.as_mut().and_then(|form| form.field_mut("")).expect("it").input = Input::New("new.luks".into());
    assert_eq!(complaint(&create, ""), None, "it was mended");
    create.go_on(home);
    assert_eq!(create.step, 2);
    create.go_on(home);
    assert_eq!((create.step, complaint(&create, "--password-fd").as_deref()), (2, Some(ENGLISH.is_missing)));
    type_into(create.form.as_mut().expect("a form"), "sesame");
    create.go_on(home);
    assert_eq!(create.step, 3);
    let review = create.review(&ENGLISH);
    let told = |name: &str| review.iter().find(|(named, _)| named == name).map(|(_, value)| value.as_str());
    assert_eq!((told(ENGLISH.format), told(ENGLISH.where_to)), (Some("LUKS2"), Some("new.luks")));
    assert_eq!((told(ENGLISH.new_password), told(ENGLISH.file_system)), (Some(ENGLISH.is_set), Some("ext4")));
    // Another answer asks anew.
    create.shared[0] = true;
    assert!(!create.is_answered());
}

#[test]
fn the_hash_sets_how_fast_a_password_is_guessed() {
    let home = Path::new("/");
    let rates = [7000.5, 800.0];
    let listed = json!([
        {"format": "VeraCrypt", "ciphers": ["AES"], "hashes": ["SHA-512", "Whirlpool"], "guesses_per_second": rates},
        {"format": "eCryptfs", "ciphers": ["aes"], "hashes": [], "guesses_per_second": [5]}
    ]);
    let mut create = Create::new(&listed);
    create.take(&json!({"first": {"name": "VeraCrypt", "title": "V"}}), home, &ENGLISH);
    assert_eq!(create.form.as_ref().and_then(Form::guesses_per_second), Some(7000.5));
    create.take_folder(home, &ENGLISH);
    assert_eq!(create.form.as_ref().and_then(Form::guesses_per_second), Some(5.0));
    create.choose(0, home, &ENGLISH);
    let form = create.form.as_mut().expect("a form");
    for (answer, rate) in [(0, 7000.5), (1, 7000.5), (2, 800.0)] {
        let Some(Field { input: Input::Choice(at, _), .. }) = form.field_mut("--hash") else { panic!("it has hashes") };
        *at = answer;
        assert_eq!(form.guesses_per_second(), Some(rate));
    }
    for (option, input, none) in [
        ("--pim", Input::Text("5".into()), Input::Text(String::new())),
        ("--keyfile", Input::Paths(vec!["/k".into()]), Input::Paths(Vec::new())),
    ] {
        form.field_mut(option).expect("VeraCrypt has it").input = input;
        assert_eq!(form.guesses_per_second(), None);
        form.field_mut(option).expect("VeraCrypt has it").input = none;
        assert_eq!(form.guesses_per_second(), Some(800.0));
    }
}

#[test]
fn a_folder_has_neither_size_nor_file_system() {
    let mut create = Create::new(&listed());
    create.choose(3, Path::new("/home/u"), &ENGLISH);
    type_into(create.form.as_mut().expect("a form"), "sesame");
    let calls = create.calls(Path::new("/")).expect("nothing lacks");
    assert_eq!(words(&calls), ["create --format eCryptfs /home/u/private"]);
}
