//! The contents of an assembled array as a store.

use std::io;
use std::ops::Range;

use crate::store::{Bypass, SliceStore, Store, check_range, largest_sector};

use super::geometry::{Geometry, Place, Row};
use super::parity::{self, Recovery};

/// The most bytes that are read or computed at once.
const AT_ONCE: u64 = 128 << 10;

/// After a failed read, the piece is read again in parts of this size: a disk's physical sector.
const PART: u64 = 4096;

/// The contents of an array. It is only read.
pub struct ArrayStore {
    geometry: Geometry,
    /// By role; `None` for those that are missing.
    members: Vec<Option<Member>>,
    sector_size: u64,
}

/// A member's data.
pub(super) struct Member {
    /// The data area.
    pub data: SliceStore,
    /// Where a rebuild has got to: what lies behind is not yet valid.
    pub valid: u64,
    /// Parts that could not be written, in order.
    pub bad: Vec<Range<u64>>,
    /// Whether other copies are preferred.
    pub write_mostly: bool,
}

impl Member {
    /// Whether the member has the byte at this offset, and how far that stays so.
    fn run(&self, at: u64) -> (bool, u64) {
        if at >= self.valid {
            return (false, u64::MAX);
        }
        let bad = self.bad.iter().find(|bad| at < bad.end);
        match bad {
            Some(bad) if bad.start <= at => (false, bad.end - at),
            Some(bad) => (true, bad.start.min(self.valid) - at),
            None => (true, self.valid - at),
        }
    }
}

impl ArrayStore {
    pub(super) fn new(geometry: Geometry, members: Vec<Option<Member>>, chunk: u64) -> Self {
        let sectors = members.iter().flatten().map(|member| member.data.sector_size());
        let sector_size = largest_sector(sectors.max().unwrap_or_default(), geometry.len | chunk);
        Self { geometry, members, sector_size }
    }

    /// Whether the member of this role has the byte at this offset in its data, and how far that stays so.
    fn run(&self, role: usize, at: u64) -> (bool, u64) {
        self.members.get(role).and_then(Option::as_ref).map_or((false, u64::MAX), |member| member.run(at))
    }

    fn read_member(&self, role: usize, at: u64, out: &mut [u8]) -> io::Result<()> {
        let member = self.members.get(role).and_then(Option::as_ref);
        member.ok_or_else(|| nobody(1))?.data.read_at(at, out)
    }

    /// Reads a beginning of `out`, and returns its length.
    fn read_piece(&self, place: &Place, out: &mut [u8]) -> io::Result<usize> {
        match place {
            Place::Copies(copies) => self.read_copy(copies, out),
            Place::Row(row) => self.read_row(row, out),
        }
    }

    fn read_copy(&self, copies: &[(usize, u64)], out: &mut [u8]) -> io::Result<usize> {
        let later = |role: usize| self.members[role].as_ref().is_some_and(|member| member.write_mostly);
        let in_turn =
            [false, true].into_iter().flat_map(|last| copies.iter().filter(move |copy| later(copy.0) == last));
        let mut failure = None;
        for (role, at) in in_turn {
            let (usable, len) = self.run(*role, *at);
            if !usable {
                continue;
            }
            let len = shorter(len, out, failure.is_some());
            match self.read_member(*role, *at, &mut out[..len]) {
                Ok(()) => return Ok(len),
                Err(e) => failure = Some(e),
            }
        }
        // The same member may have the beginning of what failed.
        match failure {
            Some(_) if out.len() as u64 > PART => self.read_copy(copies, &mut out[..PART as usize]),
            failure => Err(failure.unwrap_or_else(|| nobody(copies.len()))),
        }
    }

    fn read_row(&self, row: &Row, out: &mut [u8]) -> io::Result<usize> {
        let (usable, len) = self.run(row.data, row.at);
        if usable {
            let len = shorter(len, out, false);
            match self.read_member(row.data, row.at, &mut out[..len]) {
                Ok(()) => return Ok(len),
                Err(e) => {
                    let part = shorter(PART, out, true);
                    return self.rebuilt(row, &mut out[..part], Some(e));
                }
            }
        }
        let runs = (0..self.members.len()).map(|role| self.run(role, row.at).1);
        let len = shorter(runs.min().unwrap_or_default(), out, false);
        self.rebuilt(row, &mut out[..len], None)
    }

    /// Computes data that their own member lacks, without members whose reads fail. `failure` is that of the data's own member.
    fn rebuilt(&self, row: &Row, out: &mut [u8], mut failure: Option<io::Error>) -> io::Result<usize> {
        let mut lost: Vec<_> = (0..self.members.len())
            .filter(|role| *role == row.data || !self.covers(*role, row.at, out.len()))
            .collect();
        loop {
            let missing = |role: &usize| lost.contains(role);
            let also: Vec<_> = row.data_members().filter(|role| *role != row.data && missing(role)).collect();
            let powers: Vec<_> = also.iter().map(|role| row.exponent(*role)).collect();
            let (p, q) = (!missing(&row.p), row.q.is_some_and(|q| !missing(&q)));
            let Some(recovery) = parity::recovery(row.exponent(row.data), &powers, p, q) else {
                return Err(failure.unwrap_or_else(|| nobody(lost.len())));
            };
            match self.recover(row, &recovery, &lost, out) {
                Ok(()) => return Ok(out.len()),
                Err((role, e)) => {
                    lost.push(role);
                    failure.get_or_insert(e);
                }
            }
        }
    }

    /// Whether the member of this role has all these bytes.
    fn covers(&self, role: usize, at: u64, len: usize) -> bool {
        let (usable, run) = self.run(role, at);
        usable && run >= len as u64
    }

    /// Fills `out` with the lost data. An error comes with the member that failed.
    fn recover(
        &self,
        row: &Row,
        recovery: &Recovery,
        lost: &[usize],
        out: &mut [u8],
    ) -> Result<(), (usize, io::Error)> {
        let mut block = vec![0; out.len()];
        let mut weighted = vec![0; if recovery.uses_weighted() { out.len() } else { 0 }];
        let read = |role, block: &mut [u8]| self.read_member(role, row.at, block).map_err(|e| (role, e));
        out.fill(0);
        for role in row.data_members().filter(|role| !lost.contains(role)) {
            read(role, &mut block)?;
            parity::add(out, &block);
            parity::add_weighted(&mut weighted, &block, row.exponent(role));
        }
        if recovery.uses_sum() {
            read(row.p, &mut block)?;
            parity::add(out, &block);
        }
        if let Some(q) = row.q.filter(|_| recovery.uses_weighted()) {
            read(q, &mut block)?;
            parity::add(&mut weighted, &block);
        }
        recovery.finish(out, &mut weighted);
        Ok(())
    }
}

/// A length of at most `len` and all of `out`, in whole parts after a failure.
fn shorter(len: u64, out: &[u8], failed: bool) -> usize {
    let most = if failed { PART } else { AT_ONCE };
    len.min(most).min(out.len() as u64) as usize
}

fn nobody(members: usize) -> io::Error {
    let what =
        format!("these bytes of the RAID array are on {members} members that are missing or cannot be read there");
    io::Error::other(what)
}

impl Store for ArrayStore {
    fn len(&self) -> u64 {
        self.geometry.len
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        check_range(offset, out.len(), self.geometry.len)?;
        let mut done = 0;
        while done < out.len() {
            let piece = self.geometry.piece(offset + done as u64);
            let most = shorter(piece.len, &out[done..], false);
            done += self.read_piece(&piece.place, &mut out[done..done + most])?;
        }
        Ok(())
    }

    fn write_clobbering(&self, _offset: u64, _data: &mut [u8]) -> io::Result<()> {
        Err(io::Error::new(io::ErrorKind::PermissionDenied, super::READ_ONLY))
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    fn still_whole(&self) -> io::Result<()> {
        self.members.iter().flatten().try_for_each(|member| member.data.still_whole())
    }

    fn sector_size(&self) -> u64 {
        self.sector_size
    }

    fn writable(&self) -> bool {
        false
    }

    fn bypass_cache(&self, what: Bypass) -> bool {
        // All are asked, also after one that cannot.
        self.members.iter().flatten().filter(|member| !member.data.bypass_cache(what)).count() == 0
    }

    fn bypasses_cache(&self) -> bool {
        self.members.iter().flatten().any(|member| member.data.bypasses_cache())
    }
}
