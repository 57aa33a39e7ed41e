//! Interprets the metadata: the volume group, and where its logical volumes are on the physical volumes at hand. Sources: lvm2,
//! lib/format_text/import_vsn1.c and flags.c for the names, lib/metadata/merge.c for the constraints on segments;
//! Documentation/admin-guide/device-mapper/striped.rst for stripes.

use std::collections::BTreeMap;
use std::ops::Range;

use super::label::SECTOR;
use super::text::{self, Section, Value};
use super::{Group, LogicalVolume};
use crate::error::{Error, ErrorKind, Result};
use crate::store::Extent;

/// The longest name that lvm2 allows (NAME_LEN, with the zero at its end).
const LONGEST_NAME: usize = 127;

/// Status flags of a logical volume that do not affect its location (lvm2, lib/format_text/flags.c).
const HARMLESS: &[&str] = &[VISIBLE, READ, WRITE, "FIXED_MINOR", "ACTIVATION_SKIP", "ALLOCATABLE", "NOAUTOACTIVATE"];
const VISIBLE: &str = "VISIBLE";
const READ: &str = "READ";
const WRITE: &str = "WRITE";

/// Text values of a segment that never name a logical volume.
const WORDS: &[&str] = &["type", "tags", "cache_mode", "policy", "discards"];

/// A physical volume at hand.
pub(super) struct On<'a> {
    /// Its UUID, 32 characters without hyphens.
    pub uuid: &'a str,
    /// Where it begins in the store of all of them, in bytes.
    pub base: u64,
    /// The size of its own store, in bytes.
    pub len: u64,
    /// Ranges outside all logical volumes, in bytes.
    pub reserved: Vec<Range<u64>>,
}

/// The extents of a physical volume, and which of those at hand it is.
struct Physical {
    /// The offset of the first extent, in bytes.
    start: u64,
    extents: u64,
    here: Option<usize>,
}

/// Extents of a physical volume at hand.
#[derive(Clone)]
struct Used {
    /// Which one.
    on: usize,
    extents: Range<u64>,
    /// Their offset in its store, in bytes.
    at: u64,
}

/// The context for interpreting a segment.
struct Context<'a> {
    text: TextOffset,
    group: &'a str,
    extent_size: u64,
    physical: BTreeMap<&'a str, Physical>,
    on: &'a [On<'a>],
}

/// The offset of the text in the store, in bytes; errors in the text report this offset.
#[derive(Clone, Copy)]
struct TextOffset(u64);

impl TextOffset {
    fn malformed(self, field: &'static str, what: impl Into<String>) -> Error {
        super::malformed(field, self.0, what)
    }

    fn number(self, of: &Section, field: &'static str) -> Result<u64> {
        of.number(field).ok_or_else(|| self.malformed(field, "it is missing or not a number"))
    }

    fn section<'a>(self, of: &'a Section, field: &'static str) -> Result<&'a Section> {
        of.section(field).ok_or_else(|| self.malformed(field, "it is missing"))
    }

    /// Checks a name against lvm2's rules, so that it is safe to show.
    fn name<'a>(self, field: &'static str, name: &'a str) -> Result<&'a str> {
        let usual = |c: char| c.is_ascii_alphanumeric() || "_.+-".contains(c);
        let allowed = !name.is_empty() && name.len() <= LONGEST_NAME && name.chars().all(usual);
        let allowed = allowed && !name.starts_with('-') && name != "." && name != "..";
        allowed.then_some(name).ok_or_else(|| self.malformed(field, "it is not a valid LVM2 name"))
    }

    /// A UUID with its hyphens.
    fn uuid(self, of: &Section) -> Result<String> {
        let uuid = of.text("id").unwrap_or_default();
        let known = plain(uuid).len() == 32 && uuid.bytes().all(|c| super::label::of_uuid(c) || c == b'-');
        known.then(|| uuid.to_owned()).ok_or_else(|| self.malformed("id", "it is not an LVM2 UUID"))
    }
}

/// A UUID without its hyphens.
fn plain(uuid: &str) -> String {
    uuid.chars().filter(|c| *c != '-').collect()
}

/// One segment, perhaps of an unsupported kind.
struct Segment<'a> {
    /// In logical extents.
    start: u64,
    /// In logical extents.
    count: u64,
    kind: &'a str,
    /// Where it is, or why that is unknown.
    extent: std::result::Result<Extent, String>,
    /// The extents that it uses on the physical volumes at hand, even if `extent` is unknown.
    used: Vec<Used>,
}

/// The use of a logical volume by another one.
struct Use<'a> {
    by: &'a str,
    kind: &'a str,
    /// The name of the value that refers to it.
    field: &'a str,
    /// Whether this is a snapshot being merged into its origin, so that each of them holds only part of the data.
    merging: bool,
}

/// Parses the group from the text, which begins at offset `at` of its store. Some of the physical volumes at hand may belong to another
/// group: also returns which of them are in this one.
pub(super) fn group(text: &[u8], at: u64, on: &[On<'_>]) -> Result<(Group, Vec<usize>)> {
    let parsed = text::parse(text).map_err(|wrong| {
        let what = wrong.what;
        Error::from(ErrorKind::Malformed { field: "text of the metadata", offset: at + wrong.at as u64, what })
    })?;
    let place = TextOffset(at);
    if parsed.text("contents") != Some("Text Format Volume Group") || parsed.number("version") != Some(1) {
        return Err(place.malformed("contents", "it is not the text of a volume group, version 1"));
    }
    let mut sections = parsed.sections();
    let (Some((name, vg)), None) = (sections.next(), sections.next()) else {
        return Err(place.malformed("volume group", "the text must contain one"));
    };
    let name = place.name("name of the volume group", name)?;
    if vg.text("format").is_some_and(|format| format != "lvm2") {
        return Err(Error::unsupported(format!("the volume group {name}, which is not in LVM2's native format")));
    }
    let sectors = place.number(vg, "extent_size")?;
    let longest = on.iter().map(|on| on.len).max().unwrap_or_default();
    let extent_size = sectors.checked_mul(SECTOR).filter(|size| *size > 0 && *size <= longest);
    let Some(extent_size) = extent_size else {
        return Err(place.malformed("extent_size", format!("{sectors} sectors")));
    };
    let (physical, mut warnings) = physical_volumes(place, place.section(vg, "physical_volumes")?, extent_size, on)?;
    let here: Vec<_> = physical.values().filter_map(|pv| pv.here).collect();
    let missing = physical.len() - here.len();
    let context = Context { text: place, group: name, extent_size, physical, on };
    let volumes = vg.section("logical_volumes").map(|all| context.volumes(all, vg)).transpose()?;
    let volumes = volumes.unwrap_or_default();
    if volumes.iter().any(|v| v.refused.as_deref() == Some(PAST_THE_END)) {
        warnings.push(
            "Some logical volumes extend past the end of the volume that holds them. Either that volume was cut \
             short, or the physical volume was created in a larger one."
                .into(),
        );
    }
    let (name, uuid, seqno) = (name.to_owned(), place.uuid(vg)?, place.number(vg, "seqno")?);
    Ok((Group { name, uuid, seqno, extent_size, missing, volumes, warnings }, here))
}

/// The physical volumes, by the names that segments use for them, and warnings.
fn physical_volumes<'a>(
    place: TextOffset,
    all: &'a Section,
    extent_size: u64,
    on: &[On<'_>],
) -> Result<(BTreeMap<&'a str, Physical>, Vec<String>)> {
    let mut known = BTreeMap::<&str, Physical>::new();
    let mut warnings = Vec::new();
    for (name, pv) in all.sections() {
        place.name("name of a physical volume", name)?;
        let uuid = plain(&place.uuid(pv)?);
        let here = on.iter().position(|on| on.uuid == uuid);
        let (start, extents) = (place.number(pv, "pe_start")?, place.number(pv, "pe_count")?);
        let bytes = start.checked_mul(SECTOR).zip(extents.checked_mul(extent_size));
        let Some((start, _)) = bytes.filter(|(start, len)| start.checked_add(*len).is_some()) else {
            return Err(place.malformed("pe_count", format!("{extents} extents from sector {start} on")));
        };
        if here.is_some() && pv.texts("status").contains(&"MISSING") {
            warnings.push("LVM2 recorded this physical volume as missing: its data may be outdated.".into());
        }
        if here.is_some() && known.values().any(|other| other.here == here) {
            return Err(place.malformed("physical_volumes", "the one holding this text is listed twice"));
        }
        known.insert(name, Physical { start, extents, here });
    }
    match known.values().any(|pv| pv.here.is_some()) {
        true => Ok((known, warnings)),
        false => Err(place.malformed("physical_volumes", "the one holding this text is not listed")),
    }
}

/// Why a logical volume is refused that needs a physical volume that was not given.
pub(super) const ELSEWHERE: &str = "a part of it is on another physical volume";

/// Why a logical volume is refused if the store is too small.
pub(super) const PAST_THE_END: &str = "it extends past the end of its volume";

impl Context<'_> {
    /// The logical volumes that are not only parts of others.
    fn volumes(&self, all: &Section, vg: &Section) -> Result<Vec<LogicalVolume>> {
        let mut segments = BTreeMap::new();
        for (name, lv) in all.sections() {
            self.text.name("name of a logical volume", name)?;
            segments.insert(name, self.segments(name, lv)?);
        }
        self.check_used(&segments)?;
        let uses = self.uses(all);
        let group = group_read_only(vg);
        let mut volumes = Vec::new();
        for (name, lv) in all.sections() {
            let own = &segments[name];
            let uses = uses.get(name).map_or(&[][..], Vec::as_slice);
            // People know a snapshot by the volume with its changes, which is hidden. The visible one has no data.
            let snapshot = uses.iter().any(|used| used.kind == "snapshot");
            let visible = snapshot || lv.texts("status").contains(&VISIBLE);
            if visible && own.iter().all(|segment| segment.kind != "snapshot") {
                volumes.push(self.volume(name, lv, own, uses, group)?);
            }
        }
        Ok(volumes)
    }

    fn volume(
        &self,
        name: &str,
        lv: &Section,
        segments: &[Segment<'_>],
        uses: &[Use<'_>],
        group_read_only: Option<&str>,
    ) -> Result<LogicalVolume> {
        let extents = segments.iter().map(|segment| segment.count).sum::<u64>();
        // Each segment's length was multiplied safely before, but not their sum.
        let len = extents.checked_mul(self.extent_size);
        let len = len.ok_or_else(|| self.text.malformed("extent_count", format!("{name} has {extents} extents")))?;
        let status = lv.texts("status");
        let state = status.iter().find(|state| !HARMLESS.contains(*state));
        let part = uses.iter().find(|used| !used.only_read());
        let mapped: std::result::Result<Vec<_>, _> = segments.iter().map(|s| s.extent.clone()).collect();
        let (refused, extents) = match (state, part, mapped) {
            (_, _, Err(why)) => (Some(why), Vec::new()),
            (_, Some(used), _) => (Some(used.refused()), Vec::new()),
            (Some(state), ..) => (Some(format!("it is in the state {}", word(state))), Vec::new()),
            (None, None, Ok(extents)) => (None, extents),
        };
        let read_only = group_read_only.map(str::to_owned);
        let own = (!status.contains(&WRITE)).then(|| "it is marked as read-only".to_owned());
        let read_only = read_only.or(own).or_else(|| uses.iter().find_map(Use::read_only));
        let (name, uuid, group) = (name.to_owned(), self.text.uuid(lv)?, self.group.to_owned());
        Ok(LogicalVolume { name, uuid, len, read_only, refused, group, extents })
    }

    /// The segments of a logical volume, checked to have no gaps.
    fn segments<'b>(&self, name: &str, lv: &'b Section) -> Result<Vec<Segment<'b>>> {
        let malformed = |field, what: &str| self.text.malformed(field, format!("{name}: {what}"));
        let mut segments = Vec::new();
        for (_, segment) in lv.sections().filter(|(name, _)| name.starts_with("segment")) {
            segments.push(self.segment(name, segment)?);
        }
        if lv.number("segment_count") != Some(segments.len() as u64) || segments.is_empty() {
            return Err(malformed("segment_count", "it does not match the number of segments"));
        }
        segments.sort_by_key(|segment| segment.start);
        let mut end = 0;
        for segment in &segments {
            if segment.start != end {
                return Err(malformed("start_extent", "segments are not contiguous"));
            }
            end =
                segment.start.checked_add(segment.count).ok_or_else(|| malformed("extent_count", "it is too large"))?;
        }
        Ok(segments)
    }

    fn segment<'b>(&self, name: &str, segment: &'b Section) -> Result<Segment<'b>> {
        let (start, count) = (self.text.number(segment, "start_extent")?, self.text.number(segment, "extent_count")?);
        let len = count.checked_mul(self.extent_size).filter(|len| *len > 0);
        let Some(len) = len else {
            return Err(self.text.malformed("extent_count", format!("{name}: {count} extents")));
        };
        let kind = segment.text("type").unwrap_or_default();
        self.text.name("type", kind)?;
        let mut made = Segment { start, count, kind, extent: Err(format!("it is of type {kind}")), used: Vec::new() };
        match kind {
            "striped" | "linear" => self.striped(name, segment, len, &mut made)?,
            // Its parts are whole copies, and it is recorded only so that nothing else may overlap them.
            "mirror" => {
                let places = self.places(name, segment.value("mirrors"), count)?;
                made.used = places.into_iter().filter_map(|(_, used)| used).collect();
            }
            _ => {}
        }
        Ok(made)
    }

    fn striped(&self, name: &str, segment: &Section, len: u64, made: &mut Segment<'_>) -> Result<()> {
        let malformed = |field, what: String| self.text.malformed(field, format!("{name}: {what}"));
        let stripes = self.text.number(segment, "stripe_count")?;
        if stripes == 0 || !made.count.is_multiple_of(stripes) {
            return Err(malformed("stripe_count", format!("{stripes} stripes for {} extents", made.count)));
        }
        let each = made.count / stripes;
        let places = self.places(name, segment.value("stripes"), each)?;
        if places.len() as u64 != stripes {
            return Err(malformed("stripes", format!("{} of {stripes}", places.len())));
        }
        let chunk = match stripes {
            1 => len,
            _ => {
                let sectors = self.text.number(segment, "stripe_size")?;
                let chunk =
                    sectors.checked_mul(SECTOR).filter(|chunk| *chunk > 0 && (len / stripes).is_multiple_of(*chunk));
                chunk.ok_or_else(|| malformed("stripe_size", format!("{sectors} sectors")))?
            }
        };
        let elsewhere = places.iter().find(|(_, used)| used.is_none()).map(|(on, _)| *on);
        made.used = places.iter().filter_map(|(_, used)| used.clone()).collect();
        made.extent = match elsewhere {
            Some(on) if self.physical.contains_key(on) => Err(ELSEWHERE.to_owned()),
            Some(on) => Err(format!("it lies on {on}, another logical volume")),
            None if made.used.iter().any(|used| used.at + len / stripes > self.on[used.on].len) => {
                Err(PAST_THE_END.to_owned())
            }
            None => {
                Ok(Extent { len, chunk, runs: made.used.iter().map(|used| self.on[used.on].base + used.at).collect() })
            }
        };
        Ok(())
    }

    /// Parses a list of names and first extents, each for `count` extents. Returns each name, with the extents if they are on a
    /// physical volume at hand.
    fn places<'b>(&self, name: &str, list: Option<&'b Value>, count: u64) -> Result<Vec<(&'b str, Option<Used>)>> {
        let malformed = |what: String| self.text.malformed("stripes", format!("{name}: {what}"));
        let Some(Value::List(list)) = list else { return Err(malformed("they are missing".into())) };
        let mut places = Vec::new();
        for pair in list.chunks(2) {
            let [Value::Text(on), Value::Number(first)] = pair else {
                return Err(malformed("they are not pairs of a name and a number".into()));
            };
            self.text.name("stripes", on)?;
            let end = u64::try_from(*first).ok().and_then(|first| Some(first..first.checked_add(count)?));
            let range = end.ok_or_else(|| malformed(format!("extent {first} of {on}")))?;
            let physical = self.physical.get(&**on);
            if physical.is_some_and(|pv| range.end > pv.extents) {
                return Err(malformed(format!("extents {} to {} of {on}, which has fewer", range.start, range.end)));
            }
            // The product cannot overflow: a larger one was computed for the physical volume.
            let used = physical.and_then(|pv| {
                let at = pv.start + range.start * self.extent_size;
                Some(Used { on: pv.here?, extents: range, at })
            });
            places.push((&**on, used));
        }
        Ok(places)
    }

    /// Checks that no extent belongs to two segments, or overlaps the metadata.
    fn check_used(&self, segments: &BTreeMap<&str, Vec<Segment<'_>>>) -> Result<()> {
        let used = segments.iter().flat_map(|(name, all)| all.iter().map(move |segment| (*name, segment)));
        let used = used.flat_map(|(name, segment)| segment.used.iter().map(move |used| (used, name)));
        let mut used: Vec<_> = used.collect();
        used.sort_by_key(|(used, _)| (used.on, used.extents.start));
        for pair in used.windows(2) {
            let [(first, one), (second, other)] = pair else { continue };
            if first.on == second.on && first.extents.end > second.extents.start {
                let what = format!("{one} and {other} both have extent {}", second.extents.start);
                return Err(self.text.malformed("stripes", what));
            }
        }
        for (Used { on, extents, at }, name) in used {
            let end = at + (extents.end - extents.start) * self.extent_size;
            if self.on[*on].reserved.iter().any(|reserved| reserved.start < end && *at < reserved.end) {
                return Err(self.text.malformed("pe_start", format!("{name} lies where the metadata are")));
            }
        }
        Ok(())
    }

    /// Which logical volumes are named by segments of others.
    fn uses<'b>(&self, all: &'b Section) -> BTreeMap<&'b str, Vec<Use<'b>>> {
        let mut uses: BTreeMap<&str, Vec<Use<'_>>> = BTreeMap::new();
        for (by, lv) in all.sections() {
            for (_, segment) in lv.sections() {
                let kind = segment.text("type").unwrap_or_default();
                let merging = kind == "snapshot" && segment.value("merging_store").is_some();
                for (field, value) in segment.values().filter(|(field, _)| !WORDS.contains(field)) {
                    // In these lists, a name means a physical volume first.
                    let physical =
                        |name: &str| matches!(field, "stripes" | "mirrors") && self.physical.contains_key(name);
                    let names = value.texts().into_iter().filter(|name| *name != by && !physical(name));
                    for (name, _) in names.filter_map(|name| all.section(name).map(|lv| (name, lv))) {
                        uses.entry(name).or_default().push(Use { by, kind, field, merging });
                    }
                }
            }
        }
        uses
    }
}

impl Use<'_> {
    /// Whether the volume can be read as if unused. It must not be written, because the other volume would show the change.
    fn only_read(&self) -> bool {
        matches!((self.kind, self.field), ("snapshot", "origin") | ("thin", "external_origin")) && !self.merging
    }

    fn read_only(&self) -> Option<String> {
        let what = if self.kind == "snapshot" { "a snapshot" } else { "a thin volume" };
        self.only_read().then(|| format!("{what} shows their shared data"))
    }

    fn refused(&self) -> String {
        match (self.kind, self.merging) {
            ("snapshot", true) => "a snapshot is being merged into its origin".to_owned(),
            ("snapshot", false) => "it is of type snapshot".to_owned(),
            (kind, _) => format!("it is a part of {}, which is of type {kind}", self.by),
        }
    }
}

/// Why the whole group is read-only, if it is.
fn group_read_only(vg: &Section) -> Option<&'static str> {
    let status = vg.texts("status");
    if status.contains(&"EXPORTED") {
        return Some("its group is exported");
    }
    (!status.contains(&WRITE)).then_some("its group is marked as read-only")
}

/// Reduces a word of the metadata to characters that are safe to show.
fn word(text: &str) -> String {
    let usual = |c: &char| c.is_ascii_alphanumeric() || "_.+-".contains(*c);
    text.chars().filter(usual).take(LONGEST_NAME).collect()
}
