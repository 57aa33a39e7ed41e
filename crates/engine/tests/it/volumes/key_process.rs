//! A layout whose keys somebody else holds, against the same layout with its keys.

use std::io;
use std::sync::Arc;

use claviger_crypto::modes::aead::AeadSpecification;
use claviger_engine::key_process::volume::{KeylessLayout, Keys};
use claviger_engine::key_process::{KeyProcess, PartAccess, Refused, StoredAccess};
use claviger_engine::store::MemoryStore;
use claviger_engine::volume::integrity;
use claviger_engine::{Acceleration, Layout, Sectors, Store, Volume};

use crate::volumes::volume::{Dice, mixed};

/// Holds the keys in this process, and the data in memory of its own.
pub struct Here(pub Keys);

impl Here {
    /// Which sector has a wrong tag.
    fn carry_out(
        &self,
        encrypt: bool,
        segment: u32,
        into: u64,
        run: &mut [u8],
        tags: &mut [u8],
    ) -> io::Result<Option<u32>> {
        let range = self.0.range(encrypt, segment, into, run.len());
        Ok(range.map_err(|Refused| io::Error::other("refused"))?.carry_out(0, run, tags).err())
    }
}

impl KeyProcess for Here {
    fn decrypt(&self, segment: u32, into: u64, out: &mut [u8], read: &mut PartAccess<'_>) -> io::Result<()> {
        let mut room = vec![0; out.len()];
        read(0, &mut room)?;
        self.carry_out(false, segment, into, &mut room, &mut [])?;
        out.copy_from_slice(&room);
        Ok(())
    }

    fn encrypt(&self, segment: u32, into: u64, data: &mut [u8], write: &mut PartAccess<'_>) -> io::Result<()> {
        let mut room = data.to_vec();
        self.carry_out(true, segment, into, &mut room, &mut [])?;
        write(0, &mut room)
    }

    fn decrypt_tagged(
        &self,
        segment: u32,
        into: u64,
        out: &mut [u8],
        tags: usize,
        read: &mut StoredAccess<'_>,
    ) -> io::Result<Option<u32>> {
        let mut room = vec![0; out.len() + tags];
        read(&mut room)?;
        let (run, tags) = room.split_at_mut(out.len());
        let wrong = self.carry_out(false, segment, into, run, tags)?;
        out.copy_from_slice(run);
        Ok(wrong)
    }

    fn encrypt_tagged(
        &self,
        segment: u32,
        into: u64,
        data: &[u8],
        tags: usize,
        write: &mut StoredAccess<'_>,
    ) -> io::Result<()> {
        let mut room = [data, &vec![0; tags]].concat();
        let (run, tags) = room.split_at_mut(data.len());
        self.carry_out(true, segment, into, run, tags)?;
        write(&mut room)
    }
}

/// The layout as the other process has it, after a transfer as text.
fn without_keys(layout: &Layout, store: &dyn Store) -> Layout {
    let outline = KeylessLayout::of(layout, store).expect("it has keys");
    let text = serde_json::to_string(&outline).expect("plain data");
    let key_process: Arc<dyn KeyProcess> = Arc::new(Here(Keys::of(layout, true)));
    let outline: KeylessLayout = serde_json::from_str(&text).expect("as it was");
    outline.with_key_process(&key_process, store).expect("a layout")
}

#[test]
fn a_volume_without_its_keys_is_the_same_volume() {
    let (here, _, stored_here) = mixed();
    let stored = Arc::new(MemoryStore::new(stored_here.to_vec()));
    let kept = Volume::new(Arc::clone(&stored) as Arc<dyn Store>, without_keys(&here.layout(), &stored));
    assert_eq!((here.len(), here.sector_size()), (kept.len(), kept.sector_size()));
    let mut dice = Dice(7);
    for round in 0..3000 {
        let (offset, len) = dice.range(here.len() as usize);
        let (mut one, mut other) = (vec![0; len], vec![0; len]);
        if dice.below(2) == 0 {
            one.fill(round as u8);
            other.fill(round as u8);
            let (one, other) =
                (here.write_clobbering(offset as u64, &mut one), kept.write_clobbering(offset as u64, &mut other));
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
    let layout = without_keys(&here.layout(), here.store()).with_protected(2000..2001);
    let part = layout.part(1000 + 1024, 4096 + 3000).expect("whole sectors");
    let expected = here.layout().part(1000 + 1024, 4096 + 3000).expect("whole sectors");
    let (_, _, stored) = mixed();
    let stored: Arc<dyn Store> = stored;
    let (part, expected) = (Volume::new(Arc::clone(&stored), part), Volume::new(stored, expected));
    let (mut one, mut other) = (vec![0; part.len() as usize], vec![0; expected.len() as usize]);
    part.read_at(0, &mut one).expect("read");
    expected.read_at(0, &mut other).expect("read");
    assert!(one == other);
    let clear = Layout::clear(4096).expect("a layout").with_protected(7..9);
    let again = KeylessLayout::of(&clear, here.store()).expect("no keys elsewhere");
    let key_process: Arc<dyn KeyProcess> = Arc::new(Here(Keys::of(&here.layout(), true)));
    assert_eq!(
        again.with_key_process(&key_process, here.store()).expect("a layout").protected().first(),
        Some(&(7..9))
    );
}

/// `mixed` has sectors of 512 bytes in its segments 1 and 4, of which the latter is read-only, and of 4096 in segment 3.
#[test]
fn keys_are_used_for_whole_sectors_of_their_segment_alone() {
    let (here, ..) = mixed();
    let keys = Keys::of(&here.layout(), true);
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
    let reading = Keys::of(&here.layout(), false);
    assert!(reading.range(false, 1, 0, 512).is_ok() && reading.range(true, 1, 0, 512).is_err());
}

#[test]
fn an_outline_that_no_layout_has_is_refused() {
    let (here, ..) = mixed();
    let key_process: Arc<dyn KeyProcess> = Arc::new(Here(Keys::of(&here.layout(), true)));
    let outline = KeylessLayout::of(&here.layout(), here.store()).expect("keys");
    // Two processes that do not mean the same store.
    let other = MemoryStore::new(vec![0; here.store().len() as usize + 512]);
    assert!(outline.clone().with_key_process(&key_process, &other).is_err());
    let good = serde_json::to_value(outline).expect("plain data");
    let outside = here.store().len() - 512;
    for (at, value) in [("at", 1u64), ("len", u64::MAX), ("len", 0), ("stored_at", u64::MAX), ("stored_at", outside)] {
        let mut bad = good.clone();
        bad["segments"][1][at] = value.into();
        let outline: KeylessLayout = serde_json::from_value(bad).expect("of its shape");
        assert!(outline.with_key_process(&key_process, here.store()).is_err(), "{at} {value}");
    }
    let mut bad = good;
    bad["segments"][1]["holds"]["Encrypted"] = 0.into();
    let outline: KeylessLayout = serde_json::from_value(bad).expect("of its shape");
    assert!(outline.with_key_process(&key_process, here.store()).is_err());
}

#[test]
fn sectors_with_tags_are_the_same_without_their_keys() {
    const LEN: usize = 2 << 20;
    // One whose vectors are random, and one whose tags are all there is beside a sector.
    for (cipher, mode, key, sector) in
        [("aes-gcm-random", "aead", 32, 4096), ("aes-xts-plain64", "hmac(sha256)", 96, 512)]
    {
        let specification = AeadSpecification::parse(cipher, mode).expect("it is known");
        let sectors = Sectors { size: sector, ..Sectors::default() };
        let cipher = specification.with_key(&vec![7; key], sectors, Acceleration::On).expect("it fits");
        let stored = Arc::new(MemoryStore::new(vec![0; LEN]));
        integrity::format(&*stored, 0, LEN as u64, &*cipher, &mut |_, _| Ok(())).expect("there is room");
        let opened = || {
            let area = integrity::open(&stored, 0, LEN as u64, cipher.tag_size(), sector).expect("it is good");
            let segment = integrity::segment(Arc::new(area), 0, Arc::clone(&cipher), true).expect("they fit");
            let layout = Layout::new(vec![segment]).expect("a layout");
            // A part begins with another sector than the area does.
            layout.part(2 * sector as u64, layout.len() - 2 * sector as u64).expect("whole sectors")
        };
        let kept = Volume::new(Arc::clone(&stored) as Arc<dyn Store>, without_keys(&opened(), &stored));
        let mut model = vec![0; kept.len() as usize];
        let mut dice = Dice(3);
        for round in 1..200u8 {
            let (offset, len) = dice.range(model.len());
            model[offset..][..len].fill(round);
            kept.write_clobbering(offset as u64, &mut vec![round; len]).expect("written");
            let (offset, len) = dice.range(model.len());
            let mut out = vec![0; len];
            kept.read_at(offset as u64, &mut out).expect("read");
            assert!(out == model[offset..][..len], "{round}: {len} bytes at {offset}");
        }
        drop(kept);
        // The process with the keys reads the same, and a changed sector is wrong for both.
        let read = |volume: &Volume| {
            let mut out = vec![0; model.len()];
            volume.read_at(0, &mut out).map(|()| out).map_err(|e| e.to_string())
        };
        let volumes = || {
            let kept = Volume::new(Arc::clone(&stored) as Arc<dyn Store>, without_keys(&opened(), &stored));
            (Volume::new(Arc::clone(&stored) as Arc<dyn Store>, opened()), kept)
        };
        let (here, kept) = volumes();
        assert!(read(&here).expect("read") == model && read(&kept).expect("read") == model);
        drop((here, kept));
        let last = LEN as u64 - 4096;
        let mut damaged = [0];
        stored.read_at(last, &mut damaged).expect("read");
        stored.write_clobbering(last, &mut [damaged[0] ^ 1]).expect("written");
        let (here, kept) = volumes();
        let (here, kept) = (read(&here).expect_err("damaged"), read(&kept).expect_err("damaged"));
        assert!(here == kept && here.contains("tag is wrong"), "{here} {kept}");
    }
}
