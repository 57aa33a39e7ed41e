//! LZNT1, the compression of NTFS (MS-XCA, 2.5): chunks of up to 4096 bytes of plaintext, compressed independently.
//!
//! A chunk begins with a header of two bytes. Bits 0 to 11 are its size less 3, including the header; bit 15 says whether it is
//! compressed; a header of 0 ends the data. A compressed chunk consists of groups: a byte of flags, lowest bit first, then eight
//! elements. Each is a literal or a back reference of 16 bits. The longer the decompressed part is, the more of these bits hold the
//! distance.

/// The plaintext size of a chunk, in bytes.
const CHUNK: usize = 4096;

/// The length of the shortest back reference.
const SHORTEST: usize = 3;

/// Decompresses `data` into `out`. Fills the rest of `out` with zeros.
///
/// # Errors
/// The contradiction in `data`, as the end of a sentence.
pub fn decompress(data: &[u8], out: &mut [u8]) -> Result<(), &'static str> {
    let mut rest = data;
    for chunk in out.chunks_mut(CHUNK) {
        let Some((header, after)) = rest.split_first_chunk() else {
            chunk.fill(0);
            rest = &[];
            continue;
        };
        let header = u16::from_le_bytes(*header);
        if header == 0 {
            chunk.fill(0);
            rest = &[];
            continue;
        }
        let len = usize::from(header & 0xfff) + 1;
        let (stored, after) = after.split_at_checked(len).ok_or("a chunk ends after the data")?;
        let filled = match header & 0x8000 {
            0 if len > chunk.len() => return Err("a chunk is too long"),
            0 => {
                chunk[..len].copy_from_slice(stored);
                len
            }
            _ => expand(stored, chunk)?,
        };
        chunk[filled..].fill(0);
        rest = after;
    }
    Ok(())
}

/// Decompresses one chunk. Returns the number of bytes.
fn expand(mut stored: &[u8], out: &mut [u8]) -> Result<usize, &'static str> {
    let mut at = 0;
    while let Some((flags, after)) = stored.split_first() {
        stored = after;
        for bit in 0..8 {
            if stored.is_empty() {
                break;
            }
            if flags >> bit & 1 == 0 {
                *out.get_mut(at).ok_or("a chunk has more than 4096 bytes")? = stored[0];
                stored = &stored[1..];
                at += 1;
                continue;
            }
            let (reference, after) = stored.split_first_chunk().ok_or("a back reference is cut short")?;
            stored = after;
            let reference = usize::from(u16::from_le_bytes(*reference));
            // The distance has four bits in the first 16 bytes, and one more bit each time the offset doubles.
            let length_bits = 12 - at.saturating_sub(1).checked_ilog2().map_or(0, |log| log.saturating_sub(3));
            let distance = (reference >> length_bits) + 1;
            let length = (reference & ((1 << length_bits) - 1)) + SHORTEST;
            if distance > at {
                return Err("a back reference points to before its chunk");
            }
            if length > out.len() - at {
                return Err("a chunk has more than 4096 bytes");
            }
            // Source and destination may overlap: bytes that were just copied are copied again.
            for to in at..at + length {
                out[to] = out[to - distance];
            }
            at += length;
        }
    }
    Ok(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documented_example_is_decompressed() {
        // MS-XCA, 3.3: LZNT1 decompression example.
        let data = [
            0x38, 0xb0, 0x88, 0x46, 0x23, 0x20, 0x00, 0x20, 0x47, 0x20, 0x41, 0x00, 0x10, 0xa2, 0x47, 0x01, 0xa0, 0x45,
            0x20, 0x44, 0x00, 0x08, 0x45, 0x01, 0x50, 0x79, 0x00, 0xc0, 0x45, 0x20, 0x05, 0x24, 0x13, 0x88, 0x05, 0xb4,
            0x02, 0x4a, 0x44, 0xef, 0x03, 0x58, 0x02, 0x8c, 0x09, 0x16, 0x01, 0x48, 0x45, 0x00, 0xbe, 0x00, 0x9e, 0x00,
            0x04, 0x01, 0x18, 0x90, 0x00,
        ];
        let expected = "F# F# G A A G F# E D D E F# F# E E F# F# G A A G F# E D D E F# E D D E E F# D E F# G F# D E F# G F# E D \
                        E A F# F# G A A G F# E D D E F# E D D\0";
        let mut out = [7; 5000];
        decompress(&data, &mut out).expect("whole");
        assert_eq!(std::str::from_utf8(&out[..expected.len()]), Ok(expected));
        assert!(out[expected.len()..].iter().all(|b| *b == 0));
    }

    #[test]
    fn contradictions_are_errors() {
        let mut out = [0; 4096];
        for (data, what) in [
            (&[0xff, 0xbf, 0][..], "after the data"),
            (&[0x02, 0xb0, 0x01, 0, 0], "before its chunk"),
            (&[0x01, 0xb0, 0x01, 0], "cut short"),
            (&[0x03, 0xb0, 0x02, b'a', 0xff, 0x0f], "than 4096"),
        ] {
            let error = decompress(data, &mut out).expect_err(what);
            assert!(error.contains(what), "{data:x?}: {error}");
        }
        assert_eq!(decompress(&[0xff, 0x3f], &mut out), Err("a chunk ends after the data"));
        assert_eq!(decompress(&[&[0xff, 0x3f][..], &[1; 4096]].concat(), &mut out[..100]), Err("a chunk is too long"));
    }
}
