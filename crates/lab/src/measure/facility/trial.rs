//! Whether a facility does what its description says: create, open, write, close, open again, and read.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::Path;

use claviger_engine::internal::random;
use claviger_engine::{Error, ErrorKind, Result};
use serde::Serialize;

use super::{Facility, FacilityTarget, Gives};
use crate::measure::lab::Lab;
use crate::measure::memory::Buffer;
use crate::model::parameters::SECTOR;

/// Bytes that are written at a place.
const BLOCK: usize = 256 << 10;

/// The bytes at the beginning of each written sector, which are later searched for.
const MARK: usize = 32;

/// What a trial showed.
#[derive(Clone, Debug, Serialize)]
pub struct FacilityTrial {
    /// Name of the facility.
    pub facility: String,
    /// Seconds that making it took, with a cheap key derivation where it has one.
    pub create_s: f64,
    /// Seconds that opening it took.
    pub open_s: f64,
    /// Bytes that it has.
    pub size: u64,
    /// Whether it is read and written around the page cache.
    pub direct: bool,
    /// How many processes serve it.
    pub processes: usize,
    /// Whether files were written into it as well.
    pub files: bool,
    /// Seconds in which it refused a wrong passphrase; `None` if it cannot.
    pub refused_s: Option<f64>,
    /// Whether the store was found to hold something other than what was written.
    pub encrypted_at_rest: bool,
}

/// Makes it, opens it, writes, closes it, looks into its store, opens it again and reads. Nothing of it is left.
///
/// # Errors
/// Those of [`FacilityTarget`]; `Io` where something is not as it was written, or is stored in plaintext although it has a
/// baseline.
pub fn try_out(facility: &Facility, lab: &Lab) -> Result<FacilityTrial> {
    let mut target = FacilityTarget::new(facility, lab)?;
    let create_s = target.create()?.seconds;
    let open_s = target.open()?.seconds;
    let processes = target.processes().len();
    let mut mark = [0; MARK];
    random::fill(&mut mark)?;
    let demand = |holds: bool, otherwise: &str| match holds {
        true => Ok(()),
        false => Err(wrong(format!("{}: {otherwise}", facility.name))),
    };

    // Files are tried first, because they are removed when the target is used as bytes.
    if facility.gives == Gives::Folder {
        write_file(&target.folder()?.join("file"), &mark)?;
    }
    let surface = target.bytes()?;
    demand(surface.len >= BLOCK as u64, "it is smaller than one block")?;
    let places =
        [0, (surface.len / 2).next_multiple_of(4096), surface.len].map(|at| at.min(surface.len - BLOCK as u64));
    let mut device = surface.device()?;
    let mut block = Buffer::new(BLOCK);
    for at in places {
        fill(&mut block, &mark);
        device.write(at, &mut block)?;
    }
    device.flush()?;
    drop(device);
    let files = facility.gives != Gives::Nbd;
    target.close()?;

    let plain = target.store_holds(&mark)?;
    demand(facility.baseline.is_some() || plain, "the store does not contain what was written")?;
    demand(facility.baseline.is_none() || !plain, "the store contains what was written as plaintext")?;

    let mut device = target.bytes()?.device()?;
    for at in places {
        device.read(at, &mut block)?;
        demand(
            block.chunks(SECTOR).all(|sector| sector.starts_with(&mark)),
            "the data read back differ from what was written",
        )?;
    }
    drop(device);
    if facility.gives == Gives::Folder {
        let stored = fs::read(target.folder()?.join("file"))?;
        demand(stored.starts_with(&mark) && stored.len() == BLOCK, "a file differs from what was written")?;
    } else if files {
        write_file(&target.folder()?.join("file"), &mark)?;
    }
    target.close()?;
    let refused_s = match target.refuse() {
        Ok(elapsed) => Some(elapsed.seconds),
        Err(e) if matches!(e.kind, ErrorKind::Unsupported { .. }) => None,
        Err(e) => return Err(e),
    };
    let (facility, direct, size, encrypted_at_rest) = (facility.name.clone(), surface.direct, surface.len, !plain);
    Ok(FacilityTrial { facility, create_s, open_s, size, direct, processes, files, refused_s, encrypted_at_rest })
}

/// Whether these bytes stand anywhere in the file or device, or in a file below the folder.
pub fn holds(path: &Path, bytes: &[u8]) -> Result<bool> {
    let metadata = fs::symlink_metadata(path).map_err(|e| Error::from(e).at(path))?;
    if metadata.is_symlink() {
        return Ok(false);
    }
    if !metadata.is_dir() {
        return file_holds(path, bytes).map_err(|e| Error::from(e).at(path));
    }
    for entry in fs::read_dir(path).map_err(|e| Error::from(e).at(path))? {
        if holds(&entry?.path(), bytes)? {
            return Ok(true);
        }
    }
    Ok(false)
}

fn file_holds(path: &Path, bytes: &[u8]) -> io::Result<bool> {
    let mut file = File::open(path)?;
    // The end of each part is kept in front of the next, because the bytes may span both.
    let mut part = vec![0; 1 << 20];
    let mut kept = 0;
    loop {
        let read = file.read(&mut part[kept..])?;
        let there = kept + read;
        if there < bytes.len() || read == 0 {
            return Ok(false);
        }
        if find(&part[..there], bytes) {
            return Ok(true);
        }
        kept = bytes.len() - 1;
        part.copy_within(there - kept..there, 0);
    }
}

fn find(mut within: &[u8], bytes: &[u8]) -> bool {
    while let Some(at) = within.iter().position(|b| *b == bytes[0]) {
        if within[at..].starts_with(bytes) {
            return true;
        }
        within = &within[at + 1..];
    }
    false
}

fn fill(block: &mut [u8], mark: &[u8]) {
    for sector in block.chunks_mut(SECTOR) {
        sector[..mark.len()].copy_from_slice(mark);
    }
}

fn write_file(path: &Path, mark: &[u8]) -> Result<()> {
    let mut block = vec![0; BLOCK];
    fill(&mut block, mark);
    let write = || {
        let mut file = File::create(path)?;
        file.write_all(&block)?;
        file.sync_all()
    };
    write().map_err(|e| Error::from(e).at(path))
}

fn wrong(what: String) -> Error {
    io::Error::new(io::ErrorKind::InvalidData, what).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_found_wherever_they_stand() {
        let dir = tempfile::tempdir().expect("a folder");
        let mark = b"the very bytes";
        fs::create_dir(dir.path().join("below")).expect("a folder");
        let path = dir.path().join("below/file");
        for at in [0, 1, (1 << 20) - 20, (1 << 20) - 5, (1 << 20), (2 << 20) - 7, (3 << 20) - mark.len()] {
            let mut contents = vec![b't'; 3 << 20];
            contents[at..][..mark.len()].copy_from_slice(mark);
            fs::write(&path, &contents).expect("written");
            assert!(holds(dir.path(), mark).expect("read"), "{at}");
            contents[at + 3] ^= 1;
            fs::write(&path, &contents).expect("written");
            assert!(!holds(dir.path(), mark).expect("read"), "{at}");
        }
        fs::write(&path, b"the").expect("written");
        assert!(!holds(dir.path(), mark).expect("read"));
    }
}
