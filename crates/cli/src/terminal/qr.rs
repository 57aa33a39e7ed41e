//! QR codes on a terminal.

use claviger_crypto::secret::wipe_stack;
use claviger_engine::Secret;
use qrcodegen_no_heap::{QrCode, QrCodeEcc, Version};

/// The largest code: 213 bytes of text, 65 columns.
const LARGEST: Version = Version::new(10);

/// The light modules around a code (ISO/IEC 18004, 6.3.8).
const QUIET: i32 = 4;

/// Light on dark, whatever the terminal's colours are, and the end of a line.
const BEGIN: &[u8] = b"\x1b[40;37;1m";
const END: &[u8] = b"\x1b[0m\n";

/// The code of a text of at most 200 bytes, as lines of half blocks. Light modules are drawn, dark ones are the background.
///
/// # Panics
/// If the text is longer, or not text.
pub fn of(text: &[u8]) -> Secret {
    let drawn = drawn(text);
    wipe_stack();
    drawn
}

#[inline(never)]
fn drawn(text: &[u8]) -> Secret {
    let (mut room, mut modules) = (Secret::zeroed(LARGEST.buffer_len()), Secret::zeroed(LARGEST.buffer_len()));
    let text = std::str::from_utf8(text).expect("text");
    let (least, ecc) = (Version::MIN, QrCodeEcc::Medium);
    let code =
        QrCode::encode_text(text, &mut room, &mut modules, ecc, least, LARGEST, None, true).expect("a short text");
    let (from, to) = (-QUIET, code.size() + QUIET);
    let width = (to - from) as usize;
    let mut lines = Secret::zeroed(width.div_ceil(2) * (BEGIN.len() + 3 * width + END.len()));
    let mut len = 0;
    let mut put = |bytes: &[u8]| {
        lines[len..len + bytes.len()].copy_from_slice(bytes);
        len += bytes.len();
    };
    for y in (from..to).step_by(2) {
        put(BEGIN);
        for x in from..to {
            let (upper, lower) = (!code.get_module(x, y), y + 1 < to && !code.get_module(x, y + 1));
            put(match (upper, lower) {
                (true, true) => "█",
                (true, false) => "▀",
                (false, true) => "▄",
                (false, false) => " ",
            }
            .as_bytes());
        }
        put(END);
    }
    Secret::copy_from(&lines[..len])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_has_its_finder_patterns_and_a_light_border() {
        let key = "lhetbcnb-vlnfljci-jnvrtgfi-gfeblvjn-blgcrrjj-igkllvgb-btfdeuih-ijebigth";
        let text = String::from_utf8(of(key.as_bytes()).to_vec()).expect("text");
        let lines: Vec<Vec<char>> = text
            .lines()
            .map(|line| line.trim_start_matches("\x1b[40;37;1m").trim_end_matches("\x1b[0m").chars().collect())
            .collect();
        let width = lines[0].len();
        assert!(lines.iter().all(|line| line.len() == width) && width % 4 == 1 && lines.len() == width.div_ceil(2));
        let light = |x: usize, y: usize| match lines[y / 2][x] {
            '█' => true,
            '▀' => y.is_multiple_of(2),
            '▄' => !y.is_multiple_of(2),
            _ => false,
        };
        // The dark ring of a finder pattern, the light one in it, and its dark centre (ISO/IEC 18004, 6.3.3.1).
        for (left, top) in [(4, 4), (width - 11, 4), (4, width - 11)] {
            for (x, y) in (0..7).flat_map(|x| (0..7).map(move |y| (x, y))) {
                let ring = x.min(y).min(6 - x).min(6 - y);
                assert_eq!(light(left + x, top + y), ring == 1, "{x} {y}");
            }
        }
        assert!((0..width).all(|i| (0..4).all(|j| light(i, j) && light(j, i) && light(width - 1 - j, i))));
    }
}
