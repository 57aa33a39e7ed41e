//! A maker of LVM2 physical volumes, written only from lvm2's lib/format_text/layout.h. It shares no code with the
//! reader. lvm2 itself checks it, too.
//!
//! ```text
//! 512 label        4096 metadata area, 28 KiB        DATA extents …
//! ```

use std::fmt::Write;

/// The UUID of the physical volume, without hyphens.
pub const UUID: &str = "0123456789abcdefghijABCDEFGHIJxy";

/// Position of the first extent, in bytes.
pub const DATA: usize = 64 << 10;

/// Size of an extent, in bytes.
pub const EXTENT: usize = 8 << 10;

/// Position and size of the metadata area, in bytes.
pub const AREA: usize = 4096;
/// See [`AREA`].
pub const AREA_SIZE: usize = 28 << 10;

/// Description of a physical volume.
#[derive(Clone)]
pub struct Recipe {
    /// Number of extents.
    pub extents: usize,
    /// The text of its metadata.
    pub text: String,
    /// The sector of the label.
    pub label: usize,
    /// Offset of the text in the metadata area.
    pub text_at: usize,
    /// The text of a second metadata area at the end, which also has [`AREA_SIZE`] bytes.
    pub second: Option<String>,
}

impl Recipe {
    /// A physical volume of a group `vg` with these logical volumes: sections made by [`volume`].
    pub fn new(extents: usize, volumes: &str) -> Self {
        Self { extents, text: group(extents, volumes), label: 1, text_at: 1024, second: None }
    }

    /// Makes the volume. Each byte of an extent is a hash of its position, which identifies misplaced data.
    ///
    /// # Panics
    /// If the text is larger than its area.
    pub fn make(&self) -> Vec<u8> {
        let data = DATA + self.extents * EXTENT;
        let mut bytes: Vec<u8> = (0..data).map(|at| if at < DATA { 0 } else { pattern(at) }).collect();
        let mut areas = vec![AREA];
        if self.second.is_some() {
            areas.push(data);
            bytes.resize(data + AREA_SIZE, 0);
        }
        let label = &mut bytes[self.label * 512..][..512];
        label[..8].copy_from_slice(b"LABELONE");
        put(label, 8, &[self.label as u64]);
        label[20] = 32;
        label[24..32].copy_from_slice(b"LVM2 001");
        label[32..64].copy_from_slice(UUID.as_bytes());
        put(label, 64, &[data as u64, DATA as u64, 0, 0, 0]);
        for (i, area) in areas.iter().enumerate() {
            put(label, 104 + 16 * i, &[*area as u64, AREA_SIZE as u64]);
        }
        let texts = [Some((AREA, &self.text)), self.second.as_ref().map(|text| (data, text))];
        for (area, text) in texts.into_iter().flatten() {
            self.write_text(&mut bytes[area..][..AREA_SIZE], area as u64, text);
        }
        seal(&mut bytes);
        bytes
    }

    fn write_text(&self, area: &mut [u8], at: u64, text: &str) {
        let text = [text.as_bytes(), b"\0"].concat();
        assert!(text.len() <= AREA_SIZE - 512, "the text fits");
        area[4..20].copy_from_slice(b" LVM2 x[5A%r0N*>");
        area[20] = 1;
        put(area, 24, &[at, AREA_SIZE as u64, self.text_at as u64, text.len() as u64]);
        let first = text.len().min(AREA_SIZE - self.text_at);
        area[self.text_at..][..first].copy_from_slice(&text[..first]);
        area[512..][..text.len() - first].copy_from_slice(&text[first..]);
    }
}

/// The byte of a made volume at this position.
pub fn pattern(at: usize) -> u8 {
    (at.wrapping_mul(0x9e37_79b1) >> 24) as u8 ^ at as u8
}

fn put(bytes: &mut [u8], at: usize, numbers: &[u64]) {
    for (i, number) in numbers.iter().enumerate() {
        bytes[at + 8 * i..][..8].copy_from_slice(&number.to_le_bytes());
    }
}

fn number(bytes: &[u8], at: usize) -> Option<usize> {
    bytes.get(at..at + 8).map(|number| u64::from_le_bytes(number.try_into().expect("eight bytes")) as usize)
}

/// Corrects the checksums of labels in the usual sectors, of metadata areas at their usual places, and of their texts, if present.
pub fn seal(bytes: &mut [u8]) {
    for sector in 0..4 {
        if let Some(label) = bytes.get_mut(sector * 512..(sector + 1) * 512).filter(|s| s.starts_with(b"LABELONE")) {
            let sum = crc(&label[20..]);
            label[16..20].copy_from_slice(&sum.to_le_bytes());
        }
    }
    let Some(last) = bytes.len().checked_sub(AREA_SIZE) else { return };
    for area in [AREA, last] {
        if bytes.get(area + 4..area + 20) != Some(b" LVM2 x[5A%r0N*>") {
            continue;
        }
        let area = &mut bytes[area..];
        let (Some(size), Some(at), Some(len)) = (number(area, 32), number(area, 40), number(area, 48)) else {
            continue;
        };
        let first = len.min(size.saturating_sub(at));
        let parts = (area.get(at..at.saturating_add(first)), area.get(512..(len - first).saturating_add(512)));
        if let (Some(first), Some(wrapped)) = parts {
            let sum = crc(&[first, wrapped].concat());
            area[56..60].copy_from_slice(&sum.to_le_bytes());
        }
        let sum = crc(&area[4..512]);
        area[..4].copy_from_slice(&sum.to_le_bytes());
    }
}

/// Computes the checksum bit by bit (lvm2's lib/misc/crc.c has a table).
fn crc(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0xf597_a6cf, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc: u32, _| crc >> 1 ^ (0xedb8_8320 & 0u32.wrapping_sub(crc & 1)))
    })
}

/// The text of a group `vg` on one physical volume.
pub fn group(extents: usize, volumes: &str) -> String {
    let (size, start, uuid) = (EXTENT / 512, DATA / 512, hyphens(UUID));
    format!(
        "vg {{\nid = \"{}\"\nseqno = 7\nformat = \"lvm2\"\nstatus = [\"RESIZEABLE\", \"READ\", \"WRITE\"]\nflags = []\n\
         extent_size = {size}\nmax_lv = 0\nmax_pv = 0\nmetadata_copies = 0\n\nphysical_volumes {{\n\npv0 {{\nid = \"{uuid}\"\n\
         device = \"/dev/mapper/x\"\t# Hint only\n\nstatus = [\"ALLOCATABLE\"]\nflags = []\npe_start = {start}\n\
         pe_count = {extents}\t# all\n}}\n}}\n\nlogical_volumes {{\n{volumes}}}\n}}\n# Generated\n\n\
         contents = \"Text Format Volume Group\"\nversion = 1\n\ndescription = \"say \\\"hi\\\"\"\ncreation_time = 1\n",
        hyphens(&UUID.replace('x', "z")),
    )
}

/// Two physical volumes of a group `vg` with one logical volume, which begins on the first and ends on the second. `contents` must have
/// whole extents for both.
///
/// # Panics
/// If it has not.
pub fn on_two_disks(name: &str, contents: &[u8]) -> [Vec<u8>; 2] {
    let extents = contents.len() / EXTENT / 2;
    assert_eq!(contents.len(), 2 * extents * EXTENT);
    let (first, second) = ("physical_volumes {\n\n", UUID.replace('0', "5"));
    let segments = [(extents, &*linear(0)), (extents, &linear(0).replace("pv0", "pv1"))];
    let text = group(extents, &volume(name, &segments));
    let (before, pv0) = text.split_once(first).expect("one is there");
    let pv0 = pv0.split_inclusive("}\n").next().expect("its section");
    let pv1 = pv0.replace("pv0", "pv1").replace(&hyphens(UUID), &hyphens(&second));
    let text = [before, first, &pv1, &text[before.len() + first.len()..]].concat();
    let made = Recipe { text, ..Recipe::new(extents, "") }.make();
    let (data, uuid) = (DATA..DATA + extents * EXTENT, 512 + 32..512 + 64);
    let mut disks = [made.clone(), made];
    disks[1][uuid].copy_from_slice(second.as_bytes());
    for (disk, part) in disks.iter_mut().zip(contents.chunks(extents * EXTENT)) {
        disk[data.clone()].copy_from_slice(part);
        seal(disk);
    }
    disks
}

/// The section of a logical volume with these segments: the number of extents of each, and the rest of its text.
pub fn volume(name: &str, segments: &[(usize, &str)]) -> String {
    let mut text = format!(
        "{name} {{\nid = \"{}\"\nstatus = [\"READ\", \"WRITE\", \"VISIBLE\"]\nflags = []\nsegment_count = {}\n",
        hyphens(&UUID.replace('y', "w")),
        segments.len()
    );
    let mut start = 0;
    for (i, (count, rest)) in segments.iter().enumerate() {
        write!(text, "\nsegment{} {{\nstart_extent = {start}\nextent_count = {count}\n{rest}\n}}\n", i + 1)
            .expect("a text takes it");
        start += count;
    }
    text + "}\n"
}

/// The text of a linear segment that begins at this extent.
pub fn linear(first: usize) -> String {
    format!("type = \"striped\"\nstripe_count = 1\t# linear\n\nstripes = [\n\"pv0\", {first}\n]")
}

/// The text of a striped segment whose stripes begin at these extents, with chunks of this many bytes.
pub fn striped(chunk: usize, first: &[usize]) -> String {
    let stripes: Vec<_> = first.iter().map(|first| format!("\"pv0\", {first}")).collect();
    let (count, size) = (first.len(), chunk / 512);
    format!("type = \"striped\"\nstripe_count = {count}\nstripe_size = {size}\nstripes = [\n{}\n]", stripes.join(",\n"))
}

fn hyphens(uuid: &str) -> String {
    let ends = [0, 6, 10, 14, 18, 22, 26, 32];
    let parts: Vec<_> = ends.windows(2).map(|end| &uuid[end[0]..end[1]]).collect();
    parts.join("-")
}
