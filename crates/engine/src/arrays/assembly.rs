//! Chooses the members of one array from the stores that were given, and says what is missing. Sources: Linux, drivers/md/md.c
//! (`analyze_sbs`, `super_1_validate`), for which members belong together; mdadm, Assemble.c, for what it refuses without `--force`.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::store::{SliceStore, Store};

use super::geometry::{Geometry, Shape};
use super::store::{ArrayStore, Member};
use super::superblock::{FAULTY, JOURNAL, SPARE, Superblock};
use super::{ArrayMember, FoundMember, found};

/// Linux takes a member whose count is one behind: the array was stopped between the updates of two members.
const BEHIND: u64 = 1;

/// An array that was put together.
#[non_exhaustive]
pub struct AssembledArray {
    /// Its newest member.
    pub member: ArrayMember,
    /// Its contents.
    pub store: ArrayStore,
    /// The positions of devices that are missing, from 0.
    pub missing: Vec<u32>,
    /// Warnings for the user, such as about a missing device; whole sentences.
    pub warnings: Vec<String>,
}

/// A member with the name it is called by in messages.
struct NamedMember {
    name: String,
    superblock: Superblock,
    store: Arc<dyn Store>,
}

/// Assembles an array of the members in these stores, each with a name for messages. They may also be in partitions of the stores.
/// `choice` is the name or the UUID of one of several arrays.
///
/// # Errors
/// `Misuse` if a store has no member, if the members belong to several arrays and `choice` names none of them, if a member is there
/// twice, and if too many are missing; `Unsupported` for arrays that are changing their shape, and for levels and layouts that are not known;
/// `Malformed`; `Io`.
pub fn assemble(stores: Vec<(String, Arc<dyn Store>)>, choice: Option<&str>) -> Result<AssembledArray> {
    let mut members = chosen(all_members(stores)?, choice)?;
    // The member that was used longest knows which others left the array.
    members.sort_by_key(|member| std::cmp::Reverse(member.superblock.events));
    check_twice(&members)?;
    let newest = members.first().map(|member| member.superblock.clone()).ok_or_else(|| Error::misuse("no member"))?;
    check_shape(&newest)?;
    let mut warnings = Vec::new();
    let current = current(members, &newest, &mut warnings);
    let by_role = by_role(current, &newest)?;
    let facts = ArrayMember::of(&newest, None);
    let geometry = geometry(&newest, &by_role)?;
    let missing: Vec<_> = (0..newest.devices).filter(|role| !by_role.contains_key(&(*role as usize))).collect();
    let complete = |role: usize| by_role.get(&role).is_some_and(|member| member.superblock.rebuilt.is_none());
    if !geometry.readable(complete) {
        return Err(too_few(&facts, (0..newest.devices).filter(|role| !complete(*role as usize))));
    }
    let incomplete = (0..newest.devices as usize).any(|role| !complete(role));
    warnings.extend(about_missing(&facts, &missing));
    warnings.extend(about_state(&newest, incomplete));
    let store = ArrayStore::new(geometry, stores_of(by_role, newest.devices)?, newest.chunk);
    Ok(AssembledArray { member: facts, store, missing, warnings })
}

fn all_members(stores: Vec<(String, Arc<dyn Store>)>) -> Result<Vec<NamedMember>> {
    let mut all = Vec::new();
    for (name, store) in stores {
        let members = found(&store).map_err(|e| e.at(name.as_ref()))?;
        if members.is_empty() {
            let what = "not a member of a Linux RAID array: no md superblock, here or in a partition";
            return Err(Error::misuse(what).at(name.as_ref()).hint("Give only members of the array."));
        }
        all.extend(members.into_iter().map(|FoundMember { superblock, partition, store }| {
            let name = partition.map_or_else(|| name.clone(), |number| format!("{name} (partition {number})"));
            NamedMember { name, superblock, store }
        }));
    }
    Ok(all)
}

/// The members of the array that `choice` names, or of the only one.
fn chosen(members: Vec<NamedMember>, choice: Option<&str>) -> Result<Vec<NamedMember>> {
    let mut arrays: BTreeMap<String, Vec<NamedMember>> = BTreeMap::new();
    members.into_iter().for_each(|member| arrays.entry(member.superblock.uuid.clone()).or_default().push(member));
    let list: Vec<_> =
        arrays.values().filter_map(|members| members.first()).map(|one| in_words(&one.superblock)).collect();
    let list = list.join("; ");
    let is_named = |members: &Vec<NamedMember>, choice: &str| {
        members.iter().any(|member| {
            let Superblock { uuid, name, .. } = &member.superblock;
            uuid.eq_ignore_ascii_case(choice)
                || name.as_deref() == Some(choice)
                || member.superblock.short_name() == Some(choice)
        })
    };
    let mut named: Vec<_> =
        arrays.into_values().filter(|all| choice.is_none_or(|choice| is_named(all, choice))).collect();
    let how = "Choose one by its name or UUID: `claviger identify md:NAME@STORE,STORE,…`.";
    match (named.pop(), choice) {
        (Some(one), _) if named.is_empty() => Ok(one),
        (Some(_), _) => Err(Error::misuse(format!("these are members of several RAID arrays: {list}")).hint(how)),
        (None, choice) => {
            let what = format!("there is no RAID array {}; existing: {list}", choice.unwrap_or_default());
            Err(Error::misuse(what).hint(how))
        }
    }
}

fn in_words(superblock: &Superblock) -> String {
    let Superblock { uuid, level, devices, .. } = superblock;
    let name = superblock.short_name().map(|name| format!("{name}, ")).unwrap_or_default();
    format!("{name}{uuid} ({}, {devices} devices)", level.name())
}

/// Refuses two members that are the same one, or copies of it.
fn check_twice(members: &[NamedMember]) -> Result<()> {
    for (i, one) in members.iter().enumerate() {
        let is_same = |other: &&NamedMember| match (one.superblock.device_uuid, other.superblock.device_uuid) {
            (Some(one), Some(other)) => one == other,
            _ => one.superblock.number == other.superblock.number && one.superblock.events == other.superblock.events,
        };
        if let Some(other) = members[i + 1..].iter().find(is_same) {
            let what =
                format!("{} and {} are the same member of the RAID array, or copies of it", one.name, other.name);
            return Err(Error::misuse(what).hint("Omit one of them."));
        }
    }
    Ok(())
}

fn check_shape(newest: &Superblock) -> Result<()> {
    if newest.reshaping {
        let what = format!("the RAID array {} is being reshaped, and its data lie in two layouts", in_words(newest));
        return Err(Error::unsupported(what).hint("Let mdadm finish that first: `mdadm --assemble`."));
    }
    let most = newest.roles.len();
    match newest.devices {
        0 => Err(Error::unsupported("a RAID array without devices")),
        devices if devices as usize > most => {
            Err(Error::unsupported(format!("a RAID array of {devices} devices: its metadata have room for {most}")))
        }
        _ => Ok(()),
    }
}

/// The members that hold the newest state. Says which others were left out.
fn current(members: Vec<NamedMember>, newest: &Superblock, warnings: &mut Vec<String>) -> Vec<NamedMember> {
    let mut left_out = |member: &NamedMember, why: &str| warnings.push(format!("{} is not used: {why}.", member.name));
    members
        .into_iter()
        .filter(|member| {
            let Superblock { events, .. } = member.superblock;
            let (own, listed) = (member.superblock.role_in(&member.superblock), member.superblock.role_in(newest));
            match (own, listed) {
                _ if events.saturating_add(BEHIND) < newest.events => {
                    let why = format!(
                        "it holds an older state of the array (event {events}; the newest has {})",
                        newest.events
                    );
                    left_out(member, &why);
                }
                (JOURNAL, _) => left_out(member, "it is the array's journal"),
                (SPARE, _) => left_out(member, "it is a spare and holds no data"),
                (FAULTY, _) | (_, FAULTY) => left_out(member, "the array marked it as faulty"),
                (own, listed) if own != listed => left_out(member, "the other members say that it left the array"),
                _ => return true,
            }
            false
        })
        .collect()
}

/// The members by their position. A replacement only counts where the member to replace is missing.
fn by_role(members: Vec<NamedMember>, newest: &Superblock) -> Result<BTreeMap<usize, NamedMember>> {
    let mut by_role: BTreeMap<usize, NamedMember> = BTreeMap::new();
    let (replacements, members): (Vec<_>, Vec<_>) =
        members.into_iter().partition(|member| member.superblock.replacement);
    for member in members {
        let role = usize::from(member.superblock.role_in(newest));
        if role >= newest.devices as usize {
            return Err(Error::unsupported(format!("{} is device {role} of {}", member.name, newest.devices)));
        }
        if let Some(other) = by_role.get(&role) {
            let what = format!("{} and {} are both device {} of the RAID array", other.name, member.name, role + 1);
            return Err(Error::misuse(what).hint("Omit the one that was not in the array last."));
        }
        by_role.insert(role, member);
    }
    for member in replacements {
        by_role.entry(usize::from(member.superblock.role_in(newest))).or_insert(member);
    }
    by_role.retain(|role, _| *role < newest.devices as usize);
    Ok(by_role)
}

/// The mapping of the newest superblock. Only levels without redundancy, which need all members, use members' own sizes.
fn geometry(newest: &Superblock, by_role: &BTreeMap<usize, NamedMember>) -> Result<Geometry> {
    let Superblock { level, layout, chunk, len, .. } = *newest;
    for member in by_role.values().filter(|_| level.has_redundancy()) {
        if member.superblock.len != len {
            let what = format!(
                "{}: its superblock names another size ({} bytes) than the newest ({len})",
                member.name, member.superblock.len
            );
            return Err(Error::unsupported(what));
        }
    }
    let size = |role: u32| match by_role.get(&(role as usize)) {
        Some(member) => member.superblock.len,
        None => len,
    };
    let sizes: Vec<_> = (0..newest.devices).map(size).collect();
    Geometry::new(&Shape { level, layout, chunk, sizes: &sizes }).map_err(Error::unsupported)
}

fn stores_of(mut by_role: BTreeMap<usize, NamedMember>, devices: u32) -> Result<Vec<Option<Member>>> {
    let of = |member: NamedMember| -> Result<Member> {
        let Superblock { data, len, rebuilt, bad, write_mostly, .. } = member.superblock;
        let area = SliceStore::new(member.store, data, len).map_err(|e| Error::from(e).at(member.name.as_ref()))?;
        Ok(Member { data: area, valid: rebuilt.unwrap_or(len).min(len), bad, write_mostly })
    };
    (0..devices as usize).map(|role| by_role.remove(&role).map(of).transpose()).collect()
}

fn too_few(facts: &ArrayMember, missing: impl Iterator<Item = u32>) -> Error {
    let missing: Vec<_> = missing.map(|role| (role + 1).to_string()).collect();
    let what = format!(
        "{} ({}) cannot be read: of {} devices, these are missing or not complete: {}",
        facts.array(),
        facts.level.name(),
        facts.devices,
        missing.join(", ")
    );
    Error::misuse(what).hint("Give the other members, too: `claviger identify md:STORE,STORE,…`.")
}

fn about_missing(facts: &ArrayMember, missing: &[u32]) -> Option<String> {
    let how = if facts.level.parities() > 0 { "are computed from the others" } else { "are read from their copies" };
    let numbers: Vec<_> = missing.iter().map(|role| (role + 1).to_string()).collect();
    let (devices, numbers) = (facts.devices, numbers.join(", "));
    let named = facts.array();
    match missing {
        [] => None,
        [_] => Some(format!("Device {numbers} of {devices} of {named} is missing. Its data {how}.")),
        _ => Some(format!("Devices {numbers} of {devices} of {named} are missing. Their data {how}.")),
    }
}

fn about_state(newest: &Superblock, incomplete: bool) -> Vec<String> {
    let mut all = Vec::new();
    let interrupted = !newest.clean && incomplete && newest.level.parities() > 0;
    if interrupted && newest.ppl {
        all.push(
            "The array was not in sync, and a device is missing. Its partial parity log is not read here, so data \
             next to the last writes, or behind an interrupted resync, may be wrong."
                .to_owned(),
        );
    } else if interrupted {
        all.push(
            "The array was not in sync, and a device is missing: data next to the last writes, or behind an \
             interrupted resync, may be wrong. mdadm assembles such an array only with --force."
                .to_owned(),
        );
    }
    if newest.journal {
        all.push("The array has a write journal, which is not read here: the last writes may be missing.".to_owned());
    }
    all
}
