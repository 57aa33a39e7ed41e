//! Header backups in the format of `cryptsetup luksHeaderBackup` (2.6.1, lib/luks1/keymanage.c, `LUKS_hdr_backup`): everything up
//! to the end of the last keyslot, in whole blocks of 4096 bytes.

use claviger_crypto::dmcrypt::Sectors;
use claviger_crypto::{Acceleration, Secret};

use super::NAME;
use super::create::ALIGNMENT;
use super::header::{Phdr, SIZE};
use super::unlock::open_key;
use crate::advice::{Advice, Warning};
use crate::credential::Unlock;
use crate::edit::{Edit, Seen, Step};
use crate::error::{Error, ErrorKind, Result};
use crate::filesystems::magic;
use crate::formats::luks::{self, Doubt};
use crate::formats::{HeaderBackup, Prepared, RestoreFrom};
use crate::store::Store;

/// Returns the contents of a backup.
pub(super) fn back_up(store: &dyn Store) -> Result<HeaderBackup> {
    let header = Phdr::find(store)?;
    header.sound()?;
    let end = header.areas_end();
    let mut bytes = vec![0; end.next_multiple_of(ALIGNMENT) as usize];
    // The data may begin after the last area.
    store.read_at(0, &mut bytes[..end as usize])?;
    // Between header and first keyslot there may be old signatures.
    let first = header.slots.iter().map(|slot| slot.area(header.key_len).start).min().unwrap_or(0);
    bytes[SIZE..first as usize].fill(0);
    Ok(HeaderBackup { bytes, format: NAME, headers: vec!["primary"], warnings: Vec::new() })
}

/// Replaces the header with that of a backup.
///
/// Keyslot areas that differ are written first, then the header. After an interruption, restore the same file again. If only the
/// header was damaged, nothing else is written.
pub(super) fn restore(store: &dyn Store, from: RestoreFrom<'_>, with: &Unlock<'_>, unproven: bool) -> Result<Prepared> {
    let RestoreFrom::Backup(file) = from else {
        // This error names the format if it is another one, which may have backups too.
        Phdr::read(store)?;
        return Err(Error::misuse("a LUKS1 volume has no embedded backup header").advise(Advice::RestoreHeader));
    };
    let backup = Phdr::read(file)?;
    backup.sound()?;
    if backup.areas_end() > store.len() || backup.payload != 0 && backup.data_start() >= store.len() {
        return Err(Error::misuse("the header in the backup belongs to a larger volume")
            .hint("Nothing was changed. The backup may be another volume's, or the volume was cut short."));
    }
    let key = match with.credentials {
        [] => None,
        _ => Some(open_key(&backup, file, with)?.key),
    };
    let there = present(store)?;
    let doubt = doubt(store, &backup, there.as_ref(), key.as_ref())?;
    let mut warnings: Vec<_> = Doubt::settle(doubt, unproven)?.into_iter().collect();
    let mut steps = areas(store, file, &backup)?;
    let mut now = [0; SIZE];
    store.read_at(0, &mut now)?;
    steps.extend(backup.steps(&now, store)?);
    if !steps.is_empty() && there.is_some() {
        let lost = Warning::from("The current header and keyslots will be lost.");
        warnings.push(lost.advise(Advice::BackUpHeader));
    }
    let edit = Edit::new(steps).made_for(vec![Seen { at: 0, bytes: now.to_vec() }]);
    Ok(Prepared { edit, format: NAME, hidden: false, keyslot: None, derivation: None, warnings })
}

/// The header in front, if there is one.
fn present(store: &dyn Store) -> Result<Option<Phdr>> {
    match Phdr::find(store) {
        Ok(header) => Ok(Some(header)),
        Err(e) if matches!(e.kind, ErrorKind::Io(_)) => Err(e),
        Err(_) => Ok(None),
    }
}

/// Why the backup may belong to another volume.
fn doubt(store: &dyn Store, backup: &Phdr, there: Option<&Phdr>, key: Option<&Secret>) -> Result<Option<Doubt>> {
    let doubt = |what: String, hint| Ok(Some(Doubt { what, hint }));
    let Some(there) = there else { return nothing_there(store, backup, key) };
    // A digest has its own salt, and does not change while the key stays the same.
    let digest = |header: &Phdr| (header.digest_salt().to_vec(), header.digest().to_vec());
    if digest(there) != digest(backup) {
        let what = "the volume's key is not that of the header in the backup: the data would be unreadable".to_owned();
        return doubt(
            what,
            "The backup is another volume's, or this one was recreated. If that is intended, force it.",
        );
    }
    if there.payload != backup.payload || there.key_len != backup.key_len {
        let what = format!(
            "the volume's data begin at byte {} with a {}-bit key, the backup's at byte {} with a {}-bit key",
            there.data_start(),
            there.key_len * 8,
            backup.data_start(),
            backup.key_len * 8
        );
        return doubt(what, "One of the two headers is damaged. If the one in the backup is right, force it.");
    }
    Ok(None)
}

/// If there is no header any more, the data are the evidence: with a credential, they must decrypt to more than noise.
fn nothing_there(store: &dyn Store, backup: &Phdr, key: Option<&Secret>) -> Result<Option<Doubt>> {
    if let Some(key) = key
        && makes_sense(store, backup, key)?
    {
        return Ok(None);
    }
    let mut start = vec![0; store.len().min(1 << 17) as usize];
    store.read_at(0, &mut start)?;
    let is = magic::known(&start).unwrap_or("something other than a LUKS header");
    let what = format!("nothing shows that the backup belongs here: the volume begins with {is}");
    let hint = match key {
        None => {
            "Give a passphrase to check it against the data. If you are sure that it is the right volume, force \
             it."
        }
        Some(_) => {
            "With the backup's key the data decrypt to noise: the volume is empty, or the wrong one. If you are sure \
             that it is the right volume, force it."
        }
    };
    Ok(Some(Doubt { what, hint }))
}

/// Whether the data decrypt to something under this key.
fn makes_sense(data: &dyn Store, backup: &Phdr, key: &[u8]) -> Result<bool> {
    match backup.cipher()?.with_key(key, Sectors::default(), Acceleration::On) {
        Ok(cipher) => luks::makes_sense(data, backup.data_start(), &*cipher),
        Err(_) => Ok(false),
    }
}

/// The steps that restore those keyslot areas that differ from the backup.
fn areas(store: &dyn Store, file: &dyn Store, backup: &Phdr) -> Result<Vec<Step>> {
    let mut steps = Vec::new();
    for (number, slot) in backup.slots.iter().enumerate() {
        let area = slot.area(backup.key_len);
        let len = (area.end - area.start) as usize;
        let (mut now, mut then) = (vec![0; len], vec![0; len]);
        store.read_at(area.start, &mut now)?;
        file.read_at(area.start, &mut then)?;
        if now != then {
            steps.push(Step { what: format!("the area of keyslot {number}"), at: area.start, bytes: then });
        }
    }
    Ok(steps)
}
