//! Keyboard layouts, as data: the characters of each key.
//!
//! The facts are from the symbols files of xkb-data 2.35.1 (X keyboard configuration database), as `ckbcomp` of console-setup 1.221
//! combines them. Key names are xkb's.

/// A layout: the characters of 48 keys without and with Shift, row by row: TLDE and AE01 to AE12, AD01 to AD12, AC01 to AC11 and
/// BKSL, LSGT and AB01 to AB10. A space stands for a key without a character of its own (a dead key).
pub(super) struct Keyboard {
    /// The name to show.
    pub name: &'static str,
    pub plain: &'static str,
    pub shifted: &'static str,
}

const fn keyboard(name: &'static str, plain: &'static str, shifted: &'static str) -> Keyboard {
    Keyboard { name, plain, shifted }
}

/// The layout that most disk passwords are typed with: boot loaders support no other, and TrueCrypt and VeraCrypt require it for
/// encrypted systems.
pub(super) static US: &Keyboard = &KEYBOARDS[0];

/// All layouts, the US one first, each after a comment with xkb's name (and variant).
#[rustfmt::skip]
pub(super) static KEYBOARDS: &[Keyboard] = &[
    // us
    keyboard("US",
        r##"`1234567890-=qwertyuiop[]asdfghjkl;'\<zxcvbnm,./"##,
        r##"~!@#$%^&*()_+QWERTYUIOP{}ASDFGHJKL:"|>ZXCVBNM<>?"##),
    // gb
    keyboard("British",
        r##"`1234567890-=qwertyuiop[]asdfghjkl;'#\zxcvbnm,./"##,
        r##"¬!"£$%^&*()_+QWERTYUIOP{}ASDFGHJKL:@~|ZXCVBNM<>?"##),
    // de
    keyboard("German",
        r##" 1234567890ß qwertzuiopü+asdfghjklöä#<yxcvbnm,.-"##,
        r##"°!"§$%&/()=? QWERTZUIOPÜ*ASDFGHJKLÖÄ'>YXCVBNM;:_"##),
    // ch
    keyboard("Swiss German",
        r##"§1234567890' qwertzuiopü asdfghjklöä$<yxcvbnm,.-"##,
        r##"°+"*ç%&/()=? QWERTZUIOPè!ASDFGHJKLéà£>YXCVBNM;:_"##),
    // ch(fr)
    keyboard("Swiss French",
        r##"§1234567890' qwertzuiopè asdfghjkléà$<yxcvbnm,.-"##,
        r##"°+"*ç%&/()=? QWERTZUIOPü!ASDFGHJKLöä£>YXCVBNM;:_"##),
    // fr
    keyboard("French",
        r##"²&é"'(-è_çà)=azertyuiop $qsdfghjklmù*<wxcvbn,;:!"##,
        r##"~1234567890°+AZERTYUIOP £QSDFGHJKLM%µ>WXCVBN?./§"##),
    // be
    keyboard("Belgian",
        r##"²&é"'(§è!çà)-azertyuiop $qsdfghjklmùµ<wxcvbn,;:="##,
        r##"³1234567890°_AZERTYUIOP *QSDFGHJKLM%£>WXCVBN?./+"##),
    // es
    keyboard("Spanish",
        r##"º1234567890'¡qwertyuiop +asdfghjklñ ç<zxcvbnm,.-"##,
        r##"ª!"·$%&/()=?¿QWERTYUIOP *ASDFGHJKLÑ Ç>ZXCVBNM;:_"##),
    // pt
    keyboard("Portuguese",
        r##"\1234567890'«qwertyuiop+ asdfghjklçº <zxcvbnm,.-"##,
        r##"|!"#$%&/()=?»QWERTYUIOP* ASDFGHJKLÇª >ZXCVBNM;:_"##),
    // br
    keyboard("Brazilian",
        r##"'1234567890-=qwertyuiop [asdfghjklç ]\zxcvbnm,.;"##,
        r##""!@#$% &*()_+QWERTYUIOP {ASDFGHJKLÇ }|ZXCVBNM<>:"##),
    // it
    keyboard("Italian",
        r##"\1234567890'ìqwertyuiopè+asdfghjklòàù<zxcvbnm,.-"##,
        r##"|!"£$%&/()=?^QWERTYUIOPé*ASDFGHJKLç°§>ZXCVBNM;:_"##),
    // dk
    keyboard("Danish",
        r##"½1234567890+ qwertyuiopå asdfghjklæø'<zxcvbnm,.-"##,
        r##"§!"#¤%&/()=? QWERTYUIOPÅ ASDFGHJKLÆØ*>ZXCVBNM;:_"##),
    // no
    keyboard("Norwegian",
        r##"|1234567890+\qwertyuiopå asdfghjkløæ'<zxcvbnm,.-"##,
        r##"§!"#¤%&/()=? QWERTYUIOPÅ ASDFGHJKLØÆ*>ZXCVBNM;:_"##),
    // se
    keyboard("Swedish",
        r##"§1234567890+ qwertyuiopå asdfghjklöä'<zxcvbnm,.-"##,
        r##"½!"#¤%&/()=? QWERTYUIOPÅ ASDFGHJKLÖÄ*>ZXCVBNM;:_"##),
    // cz
    keyboard("Czech",
        r##";+ěščřžýáíé= qwertzuiopú)asdfghjklů§ \yxcvbnm,.-"##,
        r##" 1234567890% QWERTZUIOP/(ASDFGHJKL"!'|YXCVBNM?:_"##),
    // sk
    keyboard("Slovak",
        r##";+ľščťžýáíé= qwertzuiopúäasdfghjklô§ň\yxcvbnm,.-"##,
        r##" 1234567890% QWERTZUIOP/(ASDFGHJKL"!)|YXCVBNM?:_"##),
    // hu
    keyboard("Hungarian",
        r##"0123456789öüóqwertzuiopőúasdfghjkléáűíyxcvbnm,.-"##,
        r##"§'"+!%/=()ÖÜÓQWERTZUIOPŐÚASDFGHJKLÉÁŰÍYXCVBNM?:_"##),
    // hr
    keyboard("Croatian",
        r##"`1234567890'+qwertzuiopšđasdfghjklčćž<yxcvbnm,.-"##,
        r##"~!"#$%&/()=?*QWERTZUIOPŠĐASDFGHJKLČĆŽ>YXCVBNM;:_"##),
    // tr
    keyboard("Turkish",
        r##""1234567890*-qwertyuıopğüasdfghjklşi,<zxcvbnmöç."##,
        r##"é!'^+%&/()=?_QWERTYUIOPĞÜASDFGHJKLŞİ;>ZXCVBNMÖÇ:"##),
    // tr(f)
    keyboard("Turkish F",
        r##"+1234567890/-fgğıodrnhpqwuieaütkmlyşx<jövcçzsb.,"##,
        r##"*!"^$%&'()=?_FGĞIODRNHPQWUİEAÜTKMLYŞX>JÖVCÇZSB:;"##),
    // gr
    keyboard("Greek",
        r##"`1234567890-=;ςερτυθιοπ[]ασδφγηξκλ '\«ζχψωβνμ,./"##,
        r##"~ @#$ ^&*()_+:  ΡΤΥΘΙΟΠ{}ΑΣΔΦΓΗΞΚΛ "|»ΖΧΨΩΒΝΜ<>?"##),
    // ru
    keyboard("Russian",
        r##"ё1234567890-=йцукенгшщзхъфывапролджэ\/ячсмитьбю."##,
        r##"Ё!"№;%:?*()_+ЙЦУКЕНГШЩЗХЪФЫВАПРОЛДЖЭ/|ЯЧСМИТЬБЮ,"##),
    // ua
    keyboard("Ukrainian",
        r##"'1234567890-=йцукенгшщзхїфівапролджєґ/ячсмитьбю."##,
        r##"ʼ!"№;%:?*()_+ЙЦУКЕНГШЩЗХЇФІВАПРОЛДЖЄҐ|ЯЧСМИТЬБЮ,"##),
    // bg
    keyboard("Bulgarian",
        r##"(1234567890-.,уеишщксдзц;ьяаожгтнвмч„ѝюйъэфхпрлб"##,
        r##")!?+"%=:/–№$€ыУЕИШЩКСДЗЦ§ѝЯАОЖГТНВМЧ“ЍЮЙЪЭФХПРЛБ"##),
    // il
    keyboard("Hebrew",
        r##";1234567890-=/'קראטוןםפ][שדגכעיחלךף,\<זסבהנמצתץ."##,
        r##"~!@#$%^&*)(_+QWERTYUIOP}{ASDFGHJKL:"|>ZXCV NM><?"##),
    // jp
    keyboard("Japanese",
        r##" 1234567890-^qwertyuiop@[asdfghjkl;:]<zxcvbnm,./"##,
        r##" !"#$%&'()~=~QWERTYUIOP`{ASDFGHJKL+*}>ZXCVBNM<>?"##),
    // ca
    keyboard("Canadian French",
        r##"#1234567890-=qwertyuiop  asdfghjkl; <«zxcvbnm,.é"##,
        r##"|!"/$%?&*()_+QWERTYUIOP  ASDFGHJKL: >»ZXCVBNM'.É"##),
    // us(dvorak)
    keyboard("Dvorak",
        r##"`1234567890[]',.pyfgcrl/=aoeuidhtns-\<;qjkxbmwvz"##,
        r##"~!@#$%^&*(){}"<>PYFGCRL?+AOEUIDHTNS_|>:QJKXBMWVZ"##),
    // us(colemak)
    keyboard("Colemak",
        r##"`1234567890-=qwfpgjluy;[]arstdhneio'\-zxcvbkm,./"##,
        r##"~!@#$%^&*()_+QWFPGJLUY:{}ARSTDHNEIO"|_ZXCVBKM<>?"##),
];

impl Keyboard {
    /// The characters that result if `text` is typed as on this layout while `active` is the layout. `None` if no character
    /// changes, or if one is missing from either layout.
    pub fn typed_with<'a>(&'a self, active: &'a Self, text: &'a str) -> Option<impl Iterator<Item = char> + 'a> {
        let same_key = move |c: char| self.same_key(active, c);
        let all = text.chars().all(|c| same_key(c).is_some());
        let some_other = || text.chars().any(|c| same_key(c) != Some(c));
        (all && some_other()).then(|| text.chars().filter_map(same_key))
    }

    fn same_key(&self, active: &Self, c: char) -> Option<char> {
        // The space bar has no letter in any layout.
        if c == ' ' {
            return Some(c);
        }
        let on = |from: &str, to: &'static str| {
            let key = from.chars().position(|k| k == c)?;
            to.chars().nth(key).filter(|there| *there != ' ')
        };
        on(self.plain, active.plain).or_else(|| on(self.shifted, active.shifted))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(name: &str) -> &'static Keyboard {
        KEYBOARDS.iter().find(|k| k.name == name).expect("it is in the table")
    }

    fn typed(keyboard: &str, active: &str, text: &str) -> Option<String> {
        find(keyboard).typed_with(find(active), text).map(Iterator::collect)
    }

    #[test]
    fn every_layout_has_all_keys_and_its_own_name() {
        assert_eq!(US.name, "US");
        for (i, k) in KEYBOARDS.iter().enumerate() {
            assert_eq!((k.plain.chars().count(), k.shifted.chars().count()), (48, 48), "{}", k.name);
            assert!(KEYBOARDS[..i].iter().all(|other| other.name != k.name));
        }
    }

    /// As printed on such keyboards.
    #[test]
    fn the_same_keys_give_other_characters() {
        assert_eq!(typed("German", "US", "Zebra-Yak"), Some("Yebra/Zak".into()));
        assert_eq!(typed("US", "German", "Yebra/Zak"), Some("Zebra-Yak".into()));
        assert_eq!(typed("French", "US", "azerty"), Some("qwerty".into()));
        assert_eq!(typed("US", "French", "1 Azq"), Some("& Qwa".into()));
        assert_eq!(typed("US", "Russian", "ghbdtn"), Some("привет".into()));
        assert_eq!(typed("US", "Dvorak", "hello"), Some("d.nnr".into()));
        assert_eq!(typed("British", "US", "a\"b@c"), Some("a@b\"c".into()));
        // Equal on both layouts, or impossible to type.
        assert_eq!(typed("German", "US", "abc 123"), None);
        assert_eq!(typed("German", "US", "привет"), None);
        assert_eq!(typed("US", "German", "="), None, "a dead key gives nothing");
    }
}
