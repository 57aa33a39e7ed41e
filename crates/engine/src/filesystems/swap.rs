//! Linux swap areas: their first page (Linux, include/linux/swap.h, `union swap_header`, as written by util-linux's mkswap).
//!
//! ```text
//!      0  space for a boot loader
//!   1024  version, 1                    numbers are those of the machine
//!   1028  number of the last page
//!   1032  count of bad pages
//!   1036  UUID                                                         16
//!   1052  label                                                        16
//!   page − 10  "SWAPSPACE2"
//! ```

use crate::error::{Error, Result};
use crate::random;
use crate::store::Store;

/// The last bytes of a swap area's first page.
const MAGIC: &[u8] = b"SWAPSPACE2";

/// The fewest pages that mkswap accepts (util-linux, disk-utils/mkswap.c, `MIN_GOODPAGES`).
const LEAST_PAGES: u64 = 10;

/// The page sizes of Linux, in bytes.
const PAGES: [usize; 5] = [4096, 8192, 16_384, 32_768, 65_536];

/// The bytes that replace [`MAGIC`] while a system is hibernated in the swap area (Linux, kernel/power/swap.c, `HIBERNATE_SIG`,
/// which is `S1SUSPEND`; the others are from libblkid's superblocks/swap.c).
const ASLEEP: [&[u8]; 5] = [b"S1SUSPEND", b"S2SUSPEND", b"ULSUSPEND", b"LINHIB0001", b"TuxOnIce"];

/// Makes `store` a swap area, for a machine with pages of `page` bytes. Overwrites only the first page.
///
/// # Errors
/// `Misuse` if the store is too small, or no machine has such pages; `Io`.
pub fn make(store: &dyn Store, page: usize) -> Result<()> {
    if !PAGES.contains(&page) {
        return Err(Error::misuse(format!("no machine has {page}-byte pages")));
    }
    let pages = store.len() / page as u64;
    if pages < LEAST_PAGES {
        let least = LEAST_PAGES * page as u64;
        return Err(Error::misuse(format!("{} bytes are too few: a swap area needs {least}", store.len())));
    }
    let mut uuid = [0; 16];
    random::fill(&mut uuid)?;
    // A random UUID (RFC 9562, section 5.4).
    uuid[6] = uuid[6] & 0x0f | 0x40;
    uuid[8] = uuid[8] & 0x3f | 0x80;
    let last = u32::try_from(pages - 1).unwrap_or(u32::MAX);
    let mut first = vec![0; page];
    first[1024..1028].copy_from_slice(&1u32.to_ne_bytes());
    first[1028..1032].copy_from_slice(&last.to_ne_bytes());
    first[1036..1052].copy_from_slice(&uuid);
    first[page - MAGIC.len()..].copy_from_slice(MAGIC);
    store.write_clobbering(0, &mut first)?;
    Ok(store.flush()?)
}

/// Whether a system is hibernated in the swap area in `store`.
///
/// # Errors
/// `Io`.
pub(crate) fn is_asleep(store: &dyn Store) -> Result<bool> {
    for page in PAGES.into_iter().filter(|page| *page as u64 <= store.len()) {
        let mut end = [0; 10];
        store.read_at((page - end.len()) as u64, &mut end)?;
        if ASLEEP.iter().any(|mark| end.starts_with(mark)) {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use claviger_testkit::tools;
    use std::process::Command;

    use super::*;
    use crate::filesystems::{Kind, detect};
    use crate::store::MemoryStore;

    #[test]
    fn the_page_is_that_of_mkswap_but_for_its_uuid() {
        for page in PAGES {
            let store = MemoryStore::new(vec![0; 1 << 20]);
            make(&store, page).expect("room enough");
            let found = detect(&store).expect("it is read");
            if page != 32_768 {
                assert_eq!(found.expect("known").kind, Kind::Swap);
            }
            let Some(mkswap) = tools::program("mkswap") else { return };
            let theirs = tempfile::NamedTempFile::new().expect("a file");
            theirs.as_file().set_len(1 << 20).expect("a size");
            let made = Command::new(mkswap).args(["--pagesize", &page.to_string()]).arg(theirs.path()).output();
            assert!(made.expect("it runs").status.success());
            let (mut ours, mut theirs) = (store.to_vec(), std::fs::read(theirs.path()).expect("the file"));
            assert!(ours[1036..1052] != [0; 16]);
            ours[1036..1052].fill(0);
            theirs[1036..1052].fill(0);
            assert!(ours == theirs, "pages of {page} bytes");
        }
    }

    #[test]
    fn what_is_too_small_is_refused_and_who_sleeps_is_seen() {
        assert!(make(&MemoryStore::new(vec![0; 9 * 4096]), 4096).is_err());
        assert!(make(&MemoryStore::new(vec![0; 1 << 20]), 1000).is_err());
        let mut area = vec![0; 1 << 20];
        assert!(!is_asleep(&MemoryStore::new(area.clone())).expect("read"));
        area[4086..4095].copy_from_slice(b"S1SUSPEND");
        assert!(is_asleep(&MemoryStore::new(area)).expect("read"));
        assert!(!is_asleep(&MemoryStore::new(vec![0; 100])).expect("read"));
    }
}
