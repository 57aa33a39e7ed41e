use super::*;
use crate::texts::ENGLISH;
use serde_json::json;

fn listed() -> Value {
    let one =
        |format: &str| json!({"format": format, "ciphers": ["AES", "Serpent"], "hashes": ["SHA-512"], "min_len": 1});
    json!([one("LUKS2"), one("VeraCrypt"), one("BitLocker")])
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

#[test]
fn a_folder_has_neither_size_nor_file_system() {
    let mut create = Create::new(&listed());
    create.choose(3, Path::new("/home/u"), &ENGLISH);
    type_into(create.form.as_mut().expect("a form"), "sesame");
    let calls = create.calls(Path::new("/")).expect("nothing lacks");
    assert_eq!(words(&calls), ["create --format eCryptfs /home/u/private"]);
}
