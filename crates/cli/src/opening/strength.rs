//! The line about a new password: how long somebody would search for it.

use claviger_engine::file_formats::FileFormat;
use claviger_engine::password_strength::{GuessWork, StrengthVerdict, strength};
use claviger_engine::{Format, Result, Secret, Spec};

/// Refuses passwords that a format does not take.
type Check<'a> = Box<dyn Fn(&Secret) -> Result<()> + 'a>;

/// What a format demands of a new password, and what a guess of it will cost.
pub struct StrengthMeter<'a> {
    format: &'static str,
    choose_cost: Box<dyn Fn() -> Result<()> + 'a>,
    check: Check<'a>,
    work: Box<dyn Fn() -> Option<GuessWork> + 'a>,
}

impl<'a> StrengthMeter<'a> {
    /// For a volume created according to `spec`, or a keyslot with its cost.
    pub fn of(format: &'a dyn Format, spec: &'a Spec<'a>) -> Self {
        let check = Box::new(|password: &Secret| format.check_new_passphrase(password));
        let choose_cost = Box::new(|| format.choose_cost(spec));
        Self { format: format.name(), choose_cost, check, work: Box::new(move || format.guess_work(spec)) }
    }

    /// For an encrypted folder.
    pub fn of_folder(format: &'a dyn FileFormat) -> Self {
        let check = Box::new(|password: &Secret| format.check_new_passphrase(password));
        let choose_cost = Box::new(|| Ok(()));
        Self { format: format.name(), choose_cost, check, work: Box::new(move || format.guess_work()) }
    }

    /// Settles the cost of which the line will speak.
    ///
    /// # Errors
    /// Those of [`Format::choose_cost`].
    pub fn choose_cost(&self) -> Result<()> {
        (self.choose_cost)()
    }

    /// Whether the format takes this password.
    ///
    /// # Errors
    /// `Misuse` or `WrongCredential`, with the rule.
    pub fn check(&self, password: &Secret) -> Result<()> {
        (self.check)(password)
    }

    /// The line; `None` if there is nothing to say.
    pub fn line(&self, password: &[u8]) -> Option<String> {
        let work = (self.work)().filter(|_| !password.is_empty())?;
        let strength = strength(password, &work);
        let advice = if strength.verdict == StrengthVerdict::Weak { " Several random words are stronger." } else { "" };
        let (verdict, time, format) = (strength.verdict.name(), strength.time(), self.format);
        Some(format!("{verdict}: {time} of guessing with one graphics card ({format}, {work}).{advice}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use claviger_engine::formats::by_name;
    use claviger_engine::spec::Cost;

    #[test]
    fn the_line_names_the_format_and_its_key_derivation() {
        let cost = Cost { iterations: Some(4), memory_kib: Some(1 << 20), ..Cost::default() };
        let spec = Spec { cost, ..Spec::default() };
        let meter = StrengthMeter::of(by_name("LUKS2").expect("a format"), &spec);
        let line = meter.line(b"summer2019").expect("a line");
        assert!(line.starts_with("Weak: about ") && line.contains("(LUKS2, Argon2id, 1 GiB)"), "{line}");
        assert!(!line.contains("summer"), "{line}");
        assert!(meter.line(b"").is_none());
        let spec = Spec { hash: Some("SHA-512"), ..Spec::default() };
        for (format, work) in [
            ("VeraCrypt", "(VeraCrypt, PBKDF2 with SHA-512, 500000 iterations)"),
            ("TrueCrypt", "(TrueCrypt, PBKDF2 with SHA-512, 1000 iterations)"),
            ("BitLocker", "(BitLocker, SHA-256, 1048576 times)"),
            ("plain", "(plain, SHA-512 once)"),
        ] {
            let line =
                StrengthMeter::of(by_name(format).expect("a format"), &spec).line(b"v8Kq2xTz0bLm").expect("a line");
            assert!(line.contains(work), "{line}");
        }
        let slow = Spec { pim: Some(1000), ..spec };
        let line = StrengthMeter::of(by_name("VeraCrypt").expect("a format"), &slow).line(b"x").expect("a line");
        assert!(line.contains("1015000 iterations"), "{line}");
    }
}
