//! A layout whose keys somebody else holds, against the same layout with its keys.

use std::io;
use std::sync::Arc;

use claviger_engine::store::MemoryStore;
use claviger_engine::volume::kept::{Access, Keeper, Keys, Outline, Refused};
use claviger_engine::{Layout, Store, Volume};

use crate::volume::{Dice, mixed};

/// Holds the keys in this process, and the data in memory of its own.
struct Here(Keys);

impl Here {
    fn carry_out(&self, encrypt: bool, segment: u32, into: u64, run: &mut [u8]) -> io::Result<()> {
        let range = self.0.range(encrypt, segment, into, run.len());
        range.map_err(|Refused| io::Error::other("refused"))?.carry_out(0, run);
        Ok(())
    }
}

impl Keeper for Here {
    fn decrypt(&self, segment: u32, into: u64, out: &mut [u8], read: &mut Access<'_>) -> io::Result<()> {
        let mut room = vec![0; out.len()];
        read(&mut room)?;
        self.carry_out(false, segment, into, &mut room)?;
        out.copy_from_slice(&room);
        Ok(())
    }

    fn encrypt(&self, segment: u32, into: u64, data: &[u8], write: &mut Access<'_>) -> io::Result<()> {
        let mut room = data.to_vec();
        self.carry_out(true, segment, into, &mut room)?;
        write(&mut room)
    }
}

/// What another process has of the layout: it went there as text.
fn without_keys(layout: &Layout) -> Layout {
    let outline = Outline::of(layout).expect("it has no tags");
    let text = serde_json::to_string(&outline).expect("plain data");
    let keeper: Arc<dyn Keeper> = Arc::new(Here(Keys::of(layout, true)));
    let outline: Outline = serde_json::from_str(&text).expect("as it was");
    outline.kept_by(&keeper).expect("a layout")
}

#[test]
fn a_volume_without_its_keys_is_the_same_volume() {
    let (here, _, stored_here) = mixed();
    let stored = Arc::new(MemoryStore::new(stored_here.to_vec()));
    let kept = Volume::new(Arc::clone(&stored) as Arc<dyn Store>, without_keys(here.layout()));
    assert_eq!((here.len(), here.sector_size()), (kept.len(), kept.sector_size()));
    let mut dice = Dice(7);
    for round in 0..3000 {
        let (offset, len) = dice.range(here.len() as usize);
        let (mut one, mut other) = (vec![0; len], vec![0; len]);
        if dice.below(2) == 0 {
            one.fill(round as u8);
            other.fill(round as u8);
            let (one, other) = (here.write_at(offset as u64, &mut one), kept.write_at(offset as u64, &mut other));
            assert_eq!(one.map_err(|e| e.to_string()), other.map_err(|e| e.to_string()), "{round}");
        } else {
            here.read_at(offset as u64, &mut one).expect("read");
            kept.read_at(offset as u64, &mut other).expect("read");
            assert!(one == other, "{round}: {len} bytes at {offset}");
        }
    }
    assert!(stored.to_vec() == stored_here.to_vec());
}

#[test]
fn a_part_of_it_keeps_its_tweaks_and_its_protection() {
    let (here, ..) = mixed();
    let layout = without_keys(here.layout()).with_protected(2000..2001);
    let part = layout.part(1000 + 1024, 4096 + 3000).expect("whole sectors");
    let expected = here.layout().part(1000 + 1024, 4096 + 3000).expect("whole sectors");
    let (_, _, stored) = mixed();
    let stored: Arc<dyn Store> = stored;
    let (part, expected) = (Volume::new(Arc::clone(&stored), part), Volume::new(stored, expected));
    let (mut one, mut other) = (vec![0; part.len() as usize], vec![0; expected.len() as usize]);
    part.read_at(0, &mut one).expect("read");
    expected.read_at(0, &mut other).expect("read");
    assert!(one == other);
    let again = Outline::of(&Layout::clear(4096).expect("a layout").with_protected(7..9)).expect("no tags");
    let keeper: Arc<dyn Keeper> = Arc::new(Here(Keys::of(here.layout(), true)));
    assert_eq!(again.kept_by(&keeper).expect("a layout").protected().first(), Some(&(7..9)));
}

/// `mixed` has sectors of 512 bytes in its segments 1 and 4, of which the latter is read-only, and of 4096 in segment 3.
#[test]
fn keys_are_used_for_whole_sectors_of_their_segment_alone() {
    let (here, ..) = mixed();
    let keys = Keys::of(here.layout(), true);
    for (encrypt, segment, into, len) in
        [(false, 1, 0, 5120), (true, 1, 4608, 512), (false, 3, 4096, 4096), (false, 4, 0, 1024)]
    {
        assert!(keys.range(encrypt, segment, into, len).is_ok(), "{segment} {into} {len}");
    }
    for (encrypt, segment, into, len) in [
        (false, 0, 0, 512),
        (false, 2, 0, 512),
        (false, 6, 0, 512),
        (false, u32::MAX, 0, 512),
        (false, 1, 0, 0),
        (false, 1, 0, 5632),
        (false, 1, 5120, 512),
        (false, 1, 1, 512),
        (false, 1, 0, 511),
        (false, 3, 512, 4096),
        (false, 1, u64::MAX - 511, 512),
        (false, 1, u64::MAX - 511, 1 << 30),
        (false, 1, 1 << 63, 512),
        (false, 1, 0, usize::MAX & !511),
        (true, 4, 0, 512),
    ] {
        assert!(keys.range(encrypt, segment, into, len).is_err(), "{segment} {into} {len}");
    }
    let reading = Keys::of(here.layout(), false);
    assert!(reading.range(false, 1, 0, 512).is_ok() && reading.range(true, 1, 0, 512).is_err());
}

#[test]
fn an_outline_that_no_layout_has_is_refused() {
    let (here, ..) = mixed();
    let keeper: Arc<dyn Keeper> = Arc::new(Here(Keys::of(here.layout(), true)));
    let good = serde_json::to_value(Outline::of(here.layout()).expect("no tags")).expect("plain data");
    for (at, value) in [("at", 1u64), ("len", u64::MAX), ("len", 0), ("stored_at", u64::MAX)] {
        let mut bad = good.clone();
        bad["segments"][1][at] = value.into();
        let outline: Outline = serde_json::from_value(bad).expect("of its shape");
        assert!(outline.kept_by(&keeper).is_err(), "{at} {value}");
    }
    let mut bad = good;
    bad["segments"][1]["holds"]["Encrypted"] = 0.into();
    let outline: Outline = serde_json::from_value(bad).expect("of its shape");
    assert!(outline.kept_by(&keeper).is_err());
}
