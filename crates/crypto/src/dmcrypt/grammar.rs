//! Parses specifications and writes them (`crypt_ctr_cipher_old`, `crypt_ctr_cipher_new` and `crypt_ctr_ivmode`).

use super::iv::Iv;
use super::{DmCryptError, Mode, Specification};
use crate::ciphers::{Cipher, aes, legacy, national, serpent, twofish};
use crate::hash;
use crate::modes::adiantum::Rounds;

/// The kernel's names for ciphers.
const CIPHERS: &[(&str, &Cipher)] = &[
    ("aes", &aes::AES),
    ("serpent", &serpent::SERPENT),
    ("twofish", &twofish::TWOFISH),
    ("camellia", &national::CAMELLIA),
    ("cast5", &legacy::CAST5),
    ("cast6", &legacy::CAST6),
    ("blowfish", &legacy::BLOWFISH_BE),
    ("des3_ede", &legacy::TRIPLE_DES),
];

const MODES: &[(&str, Mode)] =
    &[("xts", Mode::Xts), ("cbc", Mode::Cbc), ("lrw", Mode::Lrw), ("ecb", Mode::Ecb), ("ctr", Mode::Ctr)];

/// Modes that authenticate sectors, in either form.
const AUTHENTICATED: &[&str] = &["gcm", "ccm", "rfc4309", "rfc7539", "chacha20", "aegis128", "authenc"];

const IVS: &[(&str, Iv)] = &[
    ("null", Iv::Null),
    ("plain", Iv::Plain),
    ("plain64", Iv::Plain64),
    ("plain64be", Iv::Plain64be),
    ("benbi", Iv::Benbi),
    ("lmk", Iv::Lmk),
    ("tcw", Iv::Tcw),
    ("eboiv", Iv::Eboiv),
    ("elephant", Iv::Elephant),
    ("random", Iv::Random),
];

/// Ciphers and modes that Linux supports or supported and this program does not, because they have no well-maintained crate or no
/// known volume.
const OF_LINUX_ALONE: &[&str] = &[
    "anubis", "arc4", "aria", "cfb", "cts", "des", "fcrypt", "hctr2", "khazad", "ofb", "pcbc", "salsa20", "seed",
    "sm4", "tea", "xctr", "xeta", "xtea",
];

/// Checksums that Linux treats as hashes: too short for keys, except of old ciphers.
const CHECKSUMS: &[&str] = &["crc32", "crc32c", "crc64-rocksoft", "crct10dif", "xxhash64"];

/// The longest text that is parsed, in bytes: the kernel's algorithm names end at 128.
const LONGEST: usize = 192;

/// The most keys that may take turns; the kernel has no limit, and only loop-AES uses more than one.
const MOST_KEYS: usize = 64;

/// The number of keys with `lmk` in the `capi:` form, which has no place for it.
const LMK_KEYS: usize = 64;

/// The deepest nesting of algorithm names.
const DEEPEST: usize = 4;

/// Parses a specification.
pub(super) fn parse(text: &str) -> Result<Specification, DmCryptError> {
    let lower = text.to_ascii_lowercase();
    let graphic = lower.bytes().all(|byte| byte.is_ascii_graphic());
    if lower.is_empty() || lower.len() > LONGEST || !graphic {
        return Err(syntax("it is empty, too long, or contains something other than letters, digits and punctuation"));
    }
    let draft = match lower.strip_prefix("capi:") {
        Some(rest) => capi(rest)?,
        None => classic(&lower)?,
    };
    draft.finish(&lower)
}

/// The parts of a specification.
struct Draft<'a> {
    term: Term<'a>,
    key_count: usize,
    iv: Option<&'a str>,
    options: Option<&'a str>,
}

/// `name` or `name(arguments)`, as the kernel names algorithms.
struct Term<'a> {
    name: &'a str,
    arguments: Vec<Term<'a>>,
}

/// `cipher[:keycount]-mode-iv[:ivopts]`.
fn classic(text: &str) -> Result<Draft<'_>, DmCryptError> {
    if text.contains(['(', ')']) {
        return Err(syntax("parentheses belong to specifications that begin with capi:"));
    }
    let (cipher, rest) = match text.split_once('-') {
        Some((cipher, rest)) => (cipher, Some(rest)),
        None => (text, None),
    };
    let (cipher, key_count) = match cipher.split_once(':') {
        Some((cipher, count)) => (cipher, parse_key_count(count)?),
        None => (cipher, 1),
    };
    let (mode, iv) = match rest.map(|rest| rest.split_once('-').map_or((rest, None), |(mode, iv)| (mode, Some(iv)))) {
        // A cipher without mode and IV: the only form in the first version of dm-crypt.
        None | Some(("plain", None)) => ("cbc", Some("plain")),
        Some(parts) => parts,
    };
    let (iv, options) = match iv.map(|iv| iv.split_once(':').map_or((iv, None), |(iv, options)| (iv, Some(options)))) {
        Some((iv, options)) => (Some(iv), options),
        None => (None, None),
    };
    // How cryptsetup writes authenticated modes (lib/utils_crypt.c, `crypt_parse_integrity_mode`, and
    // lib/libdevmapper.c).
    let (term, iv) = match (cipher, mode, iv) {
        (cipher, "random", None) => (Term::leaf(cipher), Some("random")),
        _ => {
            let cipher = cipher.split(',').map(Term::leaf).collect();
            (Term { name: mode, arguments: cipher }, iv)
        }
    };
    Ok(Draft { term, key_count, iv, options })
}

/// Parses the text after `capi:`: a name from the kernel's crypto API, `-`, the IV.
fn capi(text: &str) -> Result<Draft<'_>, DmCryptError> {
    let (text, options) = match text.rsplit_once(':') {
        Some((text, options)) => (text, Some(options)),
        None => (text, None),
    };
    let (term, iv) = match text.rsplit_once('-') {
        Some((term, iv)) if !iv.contains(')') => (term, Some(iv)),
        _ => (text, None),
    };
    let key_count = if iv == Some("lmk") { LMK_KEYS } else { 1 };
    let mut rest = term;
    let term = Term::take(&mut rest, 0)?;
    if !rest.is_empty() {
        return Err(syntax("there is text after the last parenthesis"));
    }
    Ok(Draft { term, key_count, iv, options })
}

fn parse_key_count(text: &str) -> Result<usize, DmCryptError> {
    let count = text.parse::<usize>().ok().filter(|count| count.is_power_of_two());
    let count = count.ok_or_else(|| syntax("the number of keys must be a power of two"))?;
    if count > MOST_KEYS {
        return Err(DmCryptError::Unsupported(format!("has {count} keys; there are at most {MOST_KEYS} here")));
    }
    Ok(count)
}

impl<'a> Term<'a> {
    fn leaf(name: &'a str) -> Self {
        Self { name, arguments: Vec::new() }
    }

    /// Parses a term at the beginning of `text`.
    fn take(text: &mut &'a str, depth: usize) -> Result<Self, DmCryptError> {
        let end = text.find(['(', ')', ',']).unwrap_or(text.len());
        let (name, rest) = text.split_at(end);
        *text = rest;
        if name.is_empty() || depth > DEEPEST {
            return Err(syntax("a name is missing, or names are nested too deep"));
        }
        let mut term = Self::leaf(name);
        if !text.starts_with('(') {
            return Ok(term);
        }
        while let Some(rest) = text.strip_prefix(if term.arguments.is_empty() { '(' } else { ',' }) {
            *text = rest;
            term.arguments.push(Self::take(text, depth + 1)?);
        }
        *text = text.strip_prefix(')').ok_or_else(|| syntax("a parenthesis is not closed"))?;
        Ok(term)
    }

    /// The names of the arguments that have no arguments themselves.
    fn names(&self) -> Vec<&'a str> {
        self.arguments.iter().map(|argument| if argument.arguments.is_empty() { argument.name } else { "" }).collect()
    }
}

impl Draft<'_> {
    /// The meaning of the parts; `text` is the whole specification.
    fn finish(self, text: &str) -> Result<Specification, DmCryptError> {
        let unsupported = |why: String| DmCryptError::Unsupported(format!("{text}: {why}"));
        let mut term = &self.term;
        let mut essiv = None;
        if let ("essiv", [inner, digest]) = (term.name, &term.arguments[..]) {
            essiv = Some(digest.name);
            term = inner;
        }
        let iv = match self.iv {
            Some("essiv") if essiv.is_none() => {
                essiv = Some(self.options.ok_or_else(|| syntax("the hash of essiv is missing"))?);
                Some(Iv::Plain64)
            }
            Some(name) => {
                let known = IVS.iter().find(|(known, _)| *known == name);
                Some(known.ok_or_else(|| unsupported(format!("no initialisation vectors called {name}")))?.1)
            }
            None => None,
        };
        let essiv = essiv.map(|name| match hash::by_name(name) {
            Some(hash) => Ok((hash, name.to_owned())),
            None if CHECKSUMS.contains(&name) => {
                Err(unsupported(format!("{name} is a checksum and not used for keys here")))
            }
            None => Err(unsupported(format!("no hash called {name}"))),
        });
        let (mode, cipher) = algorithm(term, &unsupported)?;
        let mut whole = Specification {
            mode,
            cipher,
            key_count: self.key_count,
            essiv: essiv.transpose()?,
            iv: iv.unwrap_or(Iv::None),
            text: text.to_owned(),
        };
        whole.check(&unsupported)?;
        whole.text = whole.canonical(text);
        Ok(whole)
    }
}

/// The cipher and the mode.
fn algorithm(
    term: &Term<'_>,
    unsupported: &dyn Fn(String) -> DmCryptError,
) -> Result<(Mode, &'static Cipher), DmCryptError> {
    let names = term.names();
    match (term.name, &names[..]) {
        (mode, _) if AUTHENTICATED.contains(&mode) => {
            return Err(unsupported("its sectors have tags, and there is no room for them here".into()));
        }
        ("adiantum", ["xchacha12", "aes"] | ["xchacha12", "aes", "nhpoly1305"]) => {
            return Ok((Mode::Adiantum(Rounds::Twelve), &aes::AES));
        }
        ("adiantum", ["xchacha20", "aes"] | ["xchacha20", "aes", "nhpoly1305"]) => {
            return Ok((Mode::Adiantum(Rounds::Twenty), &aes::AES));
        }
        _ => {}
    }
    let mode = MODES.iter().find(|(name, _)| *name == term.name);
    let mode = mode.ok_or_else(|| unsupported(missing("mode", term.name)))?.1;
    let [cipher] = names[..] else {
        return Err(unsupported(format!("the mode {} takes one cipher", term.name)));
    };
    let known = CIPHERS.iter().find(|(name, _)| *name == cipher);
    let cipher = known.ok_or_else(|| unsupported(missing("cipher", cipher)))?.1;
    Ok((mode, cipher))
}

/// The error for an unsupported cipher or mode. Says whether Linux supports it.
fn missing(kind: &str, name: &str) -> String {
    match OF_LINUX_ALONE.contains(&name) {
        true => format!("Linux has the {kind} {name}, but this program does not"),
        false => format!("no {kind} called {name}"),
    }
}

impl Specification {
    /// Refuses combinations that the kernel refuses, or that make no sense.
    fn check(&mut self, unsupported: &dyn Fn(String) -> DmCryptError) -> Result<(), DmCryptError> {
        let Self { mode, cipher, .. } = *self;
        if matches!(mode, Mode::Xts | Mode::Lrw) && cipher.block_size != 16 {
            return Err(unsupported("the mode requires a cipher with blocks of 16 bytes".into()));
        }
        if mode == Mode::Ecb {
            // ECB has no IV: the kernel warns and ignores one (`crypt_ctr_ivmode`).
            self.iv = Iv::None;
            return match self.essiv {
                Some(_) => Err(unsupported("ecb has no initialisation vectors for essiv to encrypt".into())),
                None => Ok(()),
            };
        }
        if self.iv == Iv::None {
            return Err(syntax("the initialisation vectors are missing"));
        }
        if let Some((hash, name)) = &self.essiv
            && !cipher.key_sizes.contains(&hash.size)
        {
            return Err(unsupported(format!("the digest of {name} does not fit the cipher's key")));
        }
        let fits = match self.iv {
            Iv::Lmk => mode == Mode::Cbc,
            Iv::Tcw => mode == Mode::Cbc && self.key_count == 1,
            // Their IVs are as long as the mode's block (`crypt_iv_eboiv_ctr`).
            Iv::Eboiv | Iv::Elephant => !matches!(mode, Mode::Ctr | Mode::Adiantum(_)),
            _ => true,
        };
        // IVs of ESSIV are as long as a block, too (crypto/essiv.c).
        let essiv_fits =
            !matches!(mode, Mode::Adiantum(_)) && !matches!(self.iv, Iv::Lmk | Iv::Tcw | Iv::Eboiv | Iv::Elephant);
        match fits && (self.essiv.is_none() || essiv_fits) {
            true => Ok(()),
            false => Err(unsupported("the mode and the initialisation vectors cannot be combined".into())),
        }
    }

    /// The classic form if there is one; otherwise `text`.
    fn canonical(&self, text: &str) -> String {
        let Self { mode, cipher, .. } = *self;
        let (cipher, mode) = match mode {
            Mode::Adiantum(Rounds::Twelve) => ("xchacha12,aes", "adiantum"),
            Mode::Adiantum(Rounds::Twenty) => ("xchacha20,aes", "adiantum"),
            _ => {
                let cipher = CIPHERS.iter().find(|(_, c)| std::ptr::eq(*c, cipher)).expect("each has a name").0;
                (cipher, MODES.iter().find(|(_, m)| *m == mode).expect("each has a name").0)
            }
        };
        let keys = if self.key_count == 1 { String::new() } else { format!(":{}", self.key_count) };
        let iv = match (&self.essiv, self.iv) {
            (Some((_, hash)), Iv::Plain64) => format!("-essiv:{hash}"),
            (Some(_), _) => return text.to_owned(),
            (None, Iv::None) => String::new(),
            (None, iv) => format!("-{}", IVS.iter().find(|(_, i)| *i == iv).expect("each has a name").0),
        };
        format!("{cipher}{keys}-{mode}{iv}")
    }
}

fn syntax(why: &str) -> DmCryptError {
    DmCryptError::Syntax(why.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn canonical(text: &str) -> String {
        let spec = parse(text).unwrap_or_else(|e| panic!("{text}: {e}"));
        let again = parse(&spec.to_string()).unwrap_or_else(|e| panic!("{spec}: {e}"));
        assert_eq!(again.to_string(), spec.to_string(), "what is canonical stays");
        assert_eq!(again.key_sizes(), spec.key_sizes(), "{text}");
        spec.to_string()
    }

    #[test]
    fn forms_have_one_canonical_text() {
        for (text, expected) in [
            ("aes", "aes-cbc-plain"),
            ("aes-plain", "aes-cbc-plain"),
            ("AES-XTS-Plain64", "aes-xts-plain64"),
            ("aes-ecb", "aes-ecb"),
            ("aes-ecb-plain", "aes-ecb"),
            ("serpent-cbc-essiv:sha256", "serpent-cbc-essiv:sha256"),
            ("aes:64-cbc-lmk", "aes:64-cbc-lmk"),
            ("capi:cbc(aes)-lmk", "aes:64-cbc-lmk"),
            ("capi:xts(aes)-plain64", "aes-xts-plain64"),
            ("capi:cbc(aes)-essiv:sha256", "aes-cbc-essiv:sha256"),
            ("capi:essiv(cbc(aes),sha256)-plain64", "aes-cbc-essiv:sha256"),
            ("capi:essiv(cbc(aes),sha256)-plain", "capi:essiv(cbc(aes),sha256)-plain"),
            ("capi:ecb(aes)", "aes-ecb"),
            ("aes-cbc-essiv:wp256", "aes-cbc-essiv:wp256"),
            ("cast6-cbc-essiv:tgr192", "cast6-cbc-essiv:tgr192"),
            ("blowfish-cbc-essiv:rmd320", "blowfish-cbc-essiv:rmd320"),
            ("capi:adiantum(xchacha12,aes)-plain64", "xchacha12,aes-adiantum-plain64"),
            ("capi:adiantum(xchacha20,aes,nhpoly1305)-plain64", "xchacha20,aes-adiantum-plain64"),
        ] {
            assert_eq!(canonical(text), expected);
        }
    }

    #[test]
    fn keys_are_as_long_as_the_kernel_wants_them() {
        for (text, sizes) in [
            ("aes-cbc-plain", &[16, 24, 32][..]),
            ("aes-xts-plain64", &[32, 48, 64]),
            ("aes-lrw-benbi", &[32, 40, 48]),
            ("aes:2-xts-plain64", &[64, 96, 128]),
            ("aes:64-cbc-lmk", &[1024, 1040, 1536, 1560, 2048, 2080]),
            ("aes-cbc-lmk", &[16, 24, 32]),
            ("aes-cbc-tcw", &[48, 56, 64]),
            ("des3_ede-cbc-tcw", &[48]),
            ("aes-cbc-elephant", &[32, 48, 64]),
            ("aes-xts-elephant", &[64]),
        ] {
            assert_eq!(parse(text).expect(text).key_sizes(), sizes, "{text}");
        }
    }

    #[test]
    fn what_authenticates_is_refused_for_its_tags() {
        for text in [
            "aes-gcm-random",
            "capi:gcm(aes)-random",
            "aes-ccm-random",
            "capi:rfc4309(ccm(aes))-random",
            "chacha20-random",
            "capi:rfc7539(chacha20,poly1305)-random",
            "aegis128-random",
            "capi:aegis128-random",
            "capi:authenc(hmac(sha256),xts(aes))-random",
        ] {
            let Err(DmCryptError::Unsupported(what)) = parse(text) else { panic!("{text}: {:?}", parse(text)) };
            assert!(what.contains(text) && what.contains("tags"), "{what}");
        }
    }

    #[test]
    fn what_is_wrong_is_told_from_what_is_missing() {
        let syntax = [
            "",
            " ",
            "aes-cbc",
            "aes-xts",
            "aes:3-cbc-plain",
            "aes:-cbc-plain",
            "aes:x-cbc-plain",
            "aes-cbc-essiv",
            "xts(aes)-plain64",
            "capi:xts(aes",
            "capi:xts(aes)x-plain64",
            "capi:xts(aes))-plain",
            "capi:(aes)-plain64",
            "capi:a(a(a(a(a(a(a(aes)))))))-plain",
            "capi:xts(aes)",
            "aes-cbc-plain\n",
            "äs-cbc-plain",
            "capi:",
        ];
        for text in syntax {
            assert!(matches!(parse(text), Err(DmCryptError::Syntax(_))), "{text}: {:?}", parse(text));
        }
        let unsupported = [
            "rot13-cbc-plain",
            "aes-ofb-plain",
            "aes-cbc-plain128",
            "aes-cbc-essiv:crc32",
            "aes-cbc-essiv:sha512",
            "des3_ede-xts-plain64",
            "cast5-lrw-benbi",
            "aes-xts-lmk",
            "aes:2-cbc-tcw",
            "aes-ctr-eboiv",
            "aes:128-cbc-plain",
            "capi:xts(aes,aes)-plain64",
            "capi:essiv(ecb(aes),sha256)-plain64",
            "aes-cbc,xts-plain",
            "xchacha12,aes-adiantum-eboiv",
            "xchacha8,aes-adiantum-plain64",
            "xchacha12,aes-adiantum-essiv:sha256",
        ];
        for text in unsupported {
            let Err(DmCryptError::Unsupported(what)) = parse(text) else { panic!("{text}: {:?}", parse(text)) };
            assert!(what.contains(text) || what.contains("keys"), "{what}");
        }
        for (text, expected) in [
            ("anubis-cbc-plain", "Linux has the cipher anubis"),
            ("aes-pcbc-plain", "Linux has the mode pcbc"),
            ("rot13-cbc-plain", "no cipher called rot13"),
            ("blowfish-cbc-essiv:crc32", "crc32 is a checksum"),
        ] {
            assert!(matches!(parse(text), Err(DmCryptError::Unsupported(what)) if what.contains(expected)), "{text}");
        }
        assert!(matches!(parse(&"a".repeat(200)), Err(DmCryptError::Syntax(_))));
    }
}
