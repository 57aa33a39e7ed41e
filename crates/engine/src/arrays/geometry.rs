//! Where the bytes of an array lie: plain arithmetic. Sources: Linux, drivers/md/md-linear.c, raid0.c (`create_strip_zones`,
//! `map_sector`), raid10.c (`setup_geo`, `calc_sectors`, `raid10_size`, `__raid10_find_phys`), raid5.c (`raid5_compute_sector`,
//! `raid6_idx_to_slot`, `raid5_size`) and raid5.h (`ALGORITHM_…`).

use super::RaidLevel;

/// The largest RAID 6: the powers of 2 in its field repeat after 255.
const MOST_IN_RAID6: u64 = 255;

const TOO_LARGE: &str = "an array of more than 2^64 bytes";

/// What determines where bytes lie. Sizes are in bytes.
pub(super) struct Shape<'a> {
    pub level: RaidLevel,
    pub layout: Option<u32>,
    pub chunk: u64,
    /// The bytes of data of each member, by role.
    pub sizes: &'a [u64],
}

/// A mapping from offsets in an array to offsets in the data of its members.
pub(super) struct Geometry {
    /// The size of the array, in bytes.
    pub len: u64,
    chunk: u64,
    devices: u64,
    rule: Rule,
}

enum Rule {
    /// The members one behind another: where each begins in the array.
    Concatenated(Vec<u64>),
    Striped {
        zones: Vec<Zone>,
        original: bool,
    },
    Mirrored,
    Parity {
        level: RaidLevel,
        layout: u32,
    },
    Copies(Copies),
}

/// The part of a RAID 0 in which all members that are long enough take turns.
struct Zone {
    /// Where it begins in the array, and on each member.
    start: u64,
    on_member: u64,
    members: Vec<usize>,
}

/// The copies of RAID 10.
struct Copies {
    near: u64,
    far: u64,
    /// Whether a far copy lies in the next row.
    offset: bool,
    set: u64,
    /// Distance of the far copies on a member, in bytes.
    stride: u64,
}

/// Bytes of an array that lie together.
pub(super) struct Piece {
    pub len: u64,
    pub place: Place,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// Each of these members has them: its role, and the offset in its data.
    Copies(Vec<(usize, u64)>),
    /// One member has them, and parity protects them.
    Row(Row),
}

/// A row of a RAID with parity: the same offset on all members.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Row {
    /// The offset in the data of each member.
    pub at: u64,
    /// The member that holds the data.
    pub data: usize,
    /// The member that holds the sum.
    pub p: usize,
    /// The member that holds the weighted sum.
    pub q: Option<usize>,
    /// Whether weights follow the members' positions, as in the layouts of the DDF standard.
    by_position: bool,
    devices: usize,
}

impl Row {
    /// All members that hold data.
    pub fn data_members(&self) -> impl Iterator<Item = usize> {
        (0..self.devices).filter(|role| *role != self.p && Some(*role) != self.q)
    }

    /// The weight of a data member in the weighted sum is 2 to this power.
    pub fn exponent(&self, role: usize) -> usize {
        let Some(q) = self.q.filter(|_| !self.by_position) else { return role };
        let behind_q = |role: usize| (role + self.devices - q - 1) % self.devices;
        behind_q(role) - usize::from(behind_q(self.p) < behind_q(role))
    }
}

impl Geometry {
    /// The mapping for an array of this shape.
    ///
    /// # Errors
    /// Why there is none.
    pub fn new(shape: &Shape<'_>) -> Result<Self, String> {
        let devices = shape.sizes.len() as u64;
        let (level, chunk) = (shape.level, shape.chunk);
        if devices < level.fewest_devices() {
            return Err(format!("{} of {devices} devices", level.name()));
        }
        let in_chunks = !matches!(level, RaidLevel::Linear | RaidLevel::Raid1);
        // Linux takes any whole number of sectors for RAID 0, powers of two of at least a page for the others.
        let whole = chunk.is_multiple_of(512) && (level == RaidLevel::Raid0 || chunk.is_power_of_two());
        if in_chunks && (chunk == 0 || !whole) {
            return Err(format!("{} with chunks of {chunk} bytes", level.name()));
        }
        let whole_chunks = |len: u64| if chunk == 0 { len } else { len - len % chunk };
        let smallest = shape.sizes.iter().copied().min().unwrap_or_default();
        let layout = shape.layout.unwrap_or_default();
        let (rule, len) = match level {
            RaidLevel::Linear => concatenated(shape.sizes.iter().map(|len| whole_chunks(*len)))?,
            RaidLevel::Raid0 => striped(shape, whole_chunks)?,
            RaidLevel::Raid1 => (Rule::Mirrored, Some(smallest)),
            RaidLevel::Raid4 | RaidLevel::Raid5 | RaidLevel::Raid6 => {
                check_parity(level, layout, devices)?;
                let data = devices - level.parities();
                (Rule::Parity { level, layout }, whole_chunks(smallest).checked_mul(data))
            }
            RaidLevel::Raid10 => copies(layout, devices, smallest, chunk)?,
        };
        let len = len.ok_or(TOO_LARGE)?;
        if len == 0 {
            return Err(format!("{} without room for data", level.name()));
        }
        Ok(Self { len, chunk, devices, rule })
    }

    /// The piece that begins at `offset`, which must lie within the array.
    pub fn piece(&self, offset: u64) -> Piece {
        let copies = |len, copies| Piece { len, place: Place::Copies(copies) };
        match &self.rule {
            Rule::Mirrored => {
                copies(self.len - offset, (0..self.devices as usize).map(|role| (role, offset)).collect())
            }
            Rule::Concatenated(starts) => {
                let role = starts.partition_point(|start| *start <= offset) - 1;
                let end = starts.get(role + 1).copied().unwrap_or(self.len);
                copies(end - offset, vec![(role, offset - starts[role])])
            }
            Rule::Striped { zones, original } => {
                let zone = &zones[zones.partition_point(|zone| zone.start <= offset) - 1];
                let within = offset - zone.start;
                let turns = zone.members.len() as u64;
                // Before Linux 3.14, the members' turns went on counting from the beginning of the array.
                let turn = if *original { offset } else { within } / self.chunk % turns;
                let (row, inside) = (within / self.chunk / turns, within % self.chunk);
                let at = zone.on_member + row * self.chunk + inside;
                copies(self.chunk - inside, vec![(zone.members[turn as usize], at)])
            }
            Rule::Copies(rule) => {
                copies(self.chunk - offset % self.chunk, rule.of(offset / self.chunk, offset % self.chunk, self))
            }
            Rule::Parity { level, layout } => {
                let (number, inside) = (offset / self.chunk, offset % self.chunk);
                let place = Place::Row(self.row(*level, *layout, number, inside));
                Piece { len: self.chunk - inside, place }
            }
        }
    }

    /// Whether all data can be read while only these members are present.
    pub fn readable(&self, present: impl Fn(usize) -> bool) -> bool {
        let all = 0..self.devices as usize;
        let missing = all.clone().filter(|role| !present(*role)).count() as u64;
        match &self.rule {
            Rule::Concatenated(_) | Rule::Striped { .. } => missing == 0,
            Rule::Mirrored => missing < self.devices,
            Rule::Parity { level, .. } => missing <= level.parities(),
            // After that many chunks, the members come in the same order again.
            Rule::Copies(rule) => {
                (0..self.devices).all(|number| rule.of(number, 0, self).into_iter().any(|(role, _)| present(role)))
            }
        }
    }

    fn row(&self, level: RaidLevel, layout: u32, number: u64, inside: u64) -> Row {
        let data = self.devices - level.parities();
        let (row, nth) = (number / data, number % data);
        let (p, q, member) = match level {
            RaidLevel::Raid6 => raid6(layout, self.devices, row, nth),
            RaidLevel::Raid5 => {
                let (p, member) = raid5(layout, self.devices, row, nth);
                (p, None, member)
            }
            _ => (data, None, nth),
        };
        Row {
            at: row * self.chunk + inside,
            data: member as usize,
            p: p as usize,
            q: q.map(|q| q as usize),
            by_position: (8..=10).contains(&layout),
            devices: self.devices as usize,
        }
    }
}

fn concatenated(sizes: impl Iterator<Item = u64>) -> Result<(Rule, Option<u64>), String> {
    let mut starts = Vec::new();
    let mut end = 0u64;
    for (role, size) in sizes.enumerate() {
        if size == 0 {
            return Err(format!("device {role} without room for data"));
        }
        starts.push(end);
        end = end.checked_add(size).ok_or(TOO_LARGE)?;
    }
    Ok((Rule::Concatenated(starts), Some(end)))
}

/// A zone begins where a member ends, and has the members that go on.
fn striped(shape: &Shape<'_>, whole_chunks: impl Fn(u64) -> u64) -> Result<(Rule, Option<u64>), String> {
    /// `RAID0_ORIG_LAYOUT` and `RAID0_ALT_MULTIZONE_LAYOUT`.
    const ORIGINAL: u32 = 1;
    const ALTERNATE: u32 = 2;
    let sizes: Vec<_> = shape.sizes.iter().map(|len| whole_chunks(*len)).collect();
    let mut zones = Vec::new();
    let (mut start, mut on_member) = (Some(0u64), 0);
    loop {
        let members: Vec<_> = (0..sizes.len()).filter(|role| sizes[*role] > on_member).collect();
        let Some(end) = members.iter().map(|role| sizes[*role]).min() else { break };
        let Some(begins) = start else { break };
        let len = (end - on_member).checked_mul(members.len() as u64);
        zones.push(Zone { start: begins, on_member, members });
        start = len.and_then(|len| begins.checked_add(len));
        on_member = end;
    }
    let original = match shape.layout {
        Some(ORIGINAL) => true,
        Some(ALTERNATE) => false,
        _ if zones.len() < 2 => false,
        Some(layout) => return Err(format!("RAID 0 with the layout {layout}")),
        None => {
            return Err(
                "RAID 0 of devices of unequal size without a recorded layout: it depends on the kernel that wrote it, \
                        before or since Linux 3.14"
                    .to_owned(),
            );
        }
    };
    Ok((Rule::Striped { zones, original }, start))
}

fn check_parity(level: RaidLevel, layout: u32, devices: u64) -> Result<(), String> {
    let known = match level {
        RaidLevel::Raid4 => true,
        RaidLevel::Raid5 => layout <= 5,
        _ => layout <= 5 || (8..=10).contains(&layout) || (16..=20).contains(&layout),
    };
    match known {
        false => Err(format!("{} with the layout {layout}", level.name())),
        true if level == RaidLevel::Raid6 && devices > MOST_IN_RAID6 => Err(format!("RAID 6 of {devices} devices")),
        true => Ok(()),
    }
}

/// The members with the parity and with the data of RAID 5, for the `nth` chunk of a row.
fn raid5(layout: u32, devices: u64, row: u64, nth: u64) -> (u64, u64) {
    let turn = row % devices;
    let last = devices - 1;
    match layout {
        0 => before_parity(last - turn, nth),
        1 => before_parity(turn, nth),
        2 => behind_parity(last - turn, nth, devices),
        3 => behind_parity(turn, nth, devices),
        4 => (0, nth + 1),
        _ => (last, nth),
    }
}

/// Data in the order of the members.
fn before_parity(p: u64, nth: u64) -> (u64, u64) {
    (p, nth + u64::from(nth >= p))
}

/// Data that begin behind the parity.
fn behind_parity(p: u64, nth: u64, devices: u64) -> (u64, u64) {
    (p, (p + 1 + nth) % devices)
}

/// The members with both parities and with the data of RAID 6.
fn raid6(layout: u32, devices: u64, row: u64, nth: u64) -> (u64, Option<u64>, u64) {
    let last = devices - 1;
    let turn = row % devices;
    let both_before = |p: u64| match p == last {
        true => (p, Some(0), nth + 1),
        false => (p, Some(p + 1), nth + if nth >= p { 2 } else { 0 }),
    };
    let both_behind = |p: u64| (p, Some((p + 1) % devices), (p + 2 + nth) % devices);
    match layout {
        0 => both_before(last - turn),
        1 | 8 => both_before(turn),
        2 => both_behind(last - turn),
        3 => both_behind(turn),
        4 => (0, Some(1), nth + 2),
        5 => (last - 1, Some(last), nth),
        9 => both_before(last - (row + 1) % devices),
        10 => {
            let p = last - turn;
            (p, Some((p + last) % devices), (p + 1 + nth) % devices)
        }
        // A RAID 5 with the weighted sum on the last member.
        _ => {
            let (p, member) = raid5(layout - 16, last, row, nth);
            (p, Some(last), member)
        }
    }
}

fn copies(layout: u32, devices: u64, size: u64, chunk: u64) -> Result<(Rule, Option<u64>), String> {
    let (near, far) = (u64::from(layout & 255), u64::from(layout >> 8 & 255));
    let offset = layout >> 16 & 1 != 0;
    let known = layout >> 19 == 0 && near > 0 && far > 0 && near * far <= devices;
    let set = match layout >> 17 {
        0 => devices,
        1 => devices / far.max(1),
        2 => near * far,
        _ => 0,
    };
    // Near copies that go on in the next row would lie on the far copies there.
    let overlapping = offset && near > 1 && far > 1 && !devices.is_multiple_of(near);
    if !known || set == 0 || overlapping {
        return Err(format!("RAID 10 of {devices} devices with the layout {layout:#x}"));
    }
    let chunks = |rows: u64| (rows / far).checked_mul(devices).map(|all| all / near);
    // The used chunks of each member, rounded up.
    let used = chunks(size / chunk).and_then(|all| all.checked_mul(near * far)).map(|all| all.div_ceil(devices));
    let used = used.ok_or(TOO_LARGE)?;
    let stride = if offset { chunk } else { used / far * chunk };
    let len = chunks(used).and_then(|all| all.checked_mul(chunk));
    Ok((Rule::Copies(Copies { near, far, offset, set, stride }), len))
}

impl Copies {
    /// The places of all copies of a chunk.
    fn of(&self, number: u64, inside: u64, whole: &Geometry) -> Vec<(usize, u64)> {
        let devices = whole.devices;
        let first = number * self.near;
        let row = first / devices * if self.offset { self.far } else { 1 };
        let (mut member, mut at) = (first % devices, row * whole.chunk + inside);
        let mut all = Vec::new();
        for _ in 0..self.near {
            let mut copy = member;
            for far in 0..self.far {
                all.push((copy as usize, at + far * self.stride));
                copy = self.next(copy, devices);
            }
            member += 1;
            if member == devices {
                (member, at) = (0, at + whole.chunk);
            }
        }
        all
    }

    /// The member of the next far copy. It stays within a set; the last set also has what is left over.
    fn next(&self, member: u64, devices: u64) -> u64 {
        let left_over = devices % self.set;
        let last = (devices / self.set - 1) * self.set;
        let moved = member + self.near;
        match left_over > 0 && moved > last {
            true => last + (moved - last) % (self.set + left_over),
            false => member / self.set * self.set + moved % self.set,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const CHUNK: u64 = 4096;

    fn geometry(level: RaidLevel, layout: u32, sizes: &[u64]) -> Result<Geometry, String> {
        Geometry::new(&Shape { level, layout: Some(layout), chunk: CHUNK, sizes })
    }

    /// The places of all chunks: each within its member, and none used twice.
    fn places(geometry: &Geometry, sizes: &[u64]) -> Vec<Vec<(usize, u64)>> {
        let mut used = BTreeSet::new();
        let mut all = Vec::new();
        for offset in (0..geometry.len).step_by(CHUNK as usize) {
            let copies = match geometry.piece(offset).place {
                Place::Copies(copies) => copies,
                Place::Row(row) => vec![(row.data, row.at)],
            };
            for (role, at) in &copies {
                assert!(at + CHUNK <= sizes[*role] && used.insert((*role, *at)), "{offset}: {role} {at}");
            }
            all.push(copies);
        }
        all
    }

    #[test]
    fn rows_have_each_member_once_and_weights_that_differ() {
        for devices in 4..9usize {
            let sizes = vec![40 * CHUNK; devices];
            let layouts = (0..6).chain(8..11).chain(16..21);
            let shapes =
                layouts.map(|layout| (RaidLevel::Raid6, layout)).chain((0..6).map(|layout| (RaidLevel::Raid5, layout)));
            for (level, layout) in shapes.chain([(RaidLevel::Raid4, 0)]) {
                let geometry = geometry(level, layout, &sizes).expect("a shape");
                assert_eq!(geometry.len, 40 * CHUNK * (devices as u64 - level.parities()));
                places(&geometry, &sizes);
                for offset in (0..geometry.len).step_by(CHUNK as usize) {
                    let Place::Row(row) = geometry.piece(offset).place else { panic!("{level:?} has rows") };
                    let data: Vec<_> = row.data_members().collect();
                    assert!(
                        data.contains(&row.data) && data.len() as u64 == devices as u64 - level.parities(),
                        "{row:?}"
                    );
                    let weights: BTreeSet<_> = data.iter().map(|role| row.exponent(*role)).collect();
                    assert!(weights.len() == data.len() && weights.iter().all(|weight| *weight < devices), "{row:?}");
                }
            }
        }
    }

    /// Also near and far copies together, which mdadm does not make.
    #[test]
    fn copies_are_on_different_members() {
        for devices in 2..9u32 {
            let sizes = vec![48 * CHUNK; devices as usize];
            for near in 1..4 {
                for far in 1..4 {
                    for variant in [0, 1 << 16, 2 << 17] {
                        let layout = near | far << 8 | variant;
                        let Ok(geometry) = geometry(RaidLevel::Raid10, layout, &sizes) else {
                            let wraps = variant == 1 << 16 && near > 1 && far > 1 && devices % near != 0;
                            assert!(near * far > devices || wraps, "{layout:#x} of {devices}");
                            continue;
                        };
                        let (most, len) = (48 * u64::from(devices) / u64::from(near * far), geometry.len / CHUNK);
                        assert!(len <= most && len + 2 * u64::from(devices) > most, "{layout:#x}: {len} of {most}");
                        for copies in places(&geometry, &sizes) {
                            let members: BTreeSet<_> = copies.iter().map(|(role, _)| *role).collect();
                            assert_eq!(members.len() as u32, near * far, "{layout:#x} of {devices}: {copies:?}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn zones_and_members_follow_one_another() {
        let sizes = [2, 5, 3].map(|chunks| chunks * CHUNK);
        for layout in [1, 2] {
            let zoned = geometry(RaidLevel::Raid0, layout, &sizes).expect("a shape");
            let places = places(&zoned, &sizes).concat();
            let roles: Vec<_> = places.iter().map(|(role, _)| *role).collect();
            // From the seventh chunk on, two members take turns; the last two are on one.
            assert_eq!(roles, [0, 1, 2, 0, 1, 2, 1, 2, 1, 1]);
            assert_eq!(places[6..], [(1, 2 * CHUNK), (2, 2 * CHUNK), (1, 3 * CHUNK), (1, 4 * CHUNK)]);
        }
        let odd = geometry(RaidLevel::Raid0, 1, &[CHUNK, 2 * CHUNK, 2 * CHUNK]).expect("a shape");
        // The fourth chunk of the array takes the second turn of two.
        assert_eq!(places(&odd, &[CHUNK, 2 * CHUNK, 2 * CHUNK])[3], [(2, CHUNK)]);
        let linear = geometry(RaidLevel::Linear, 0, &sizes).expect("a shape");
        let starts: Vec<_> = places(&linear, &sizes).concat().iter().map(|(role, _)| *role).collect();
        assert_eq!(starts, [0, 0, 1, 1, 1, 1, 1, 2, 2, 2]);
    }
}
