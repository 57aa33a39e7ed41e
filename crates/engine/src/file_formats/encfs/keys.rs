//! The keys of an unlocked folder.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::sync::Arc;

use claviger_crypto::secret::wipe_after_sectors;
use rustix::io::Errno;

use super::chained::{ChainedTree, Chains, Paths};
use super::coder::Coder;
use super::config::Config;
use super::contents::Blocks;
use super::{HEADER, is_own};
use crate::error::Error;
use crate::file_formats::{FileKeys, FileKind, NameIv, NameRole, StoredFile, StoredFolder, cut_header, no_name};
use crate::trees::{Tree, damaged, read_only};
use crate::volume::{BlockSealing, SealedLayout, Sealing};

/// The longest name, in bytes.
const LONGEST: usize = 255;

/// Why nobody should keep data in such a folder (Taylor Hornby, EncFS Security Audit, defuse.ca/audits/encfs.htm, January 2014).
const WEAK: &str = "EncFS is not safe against somebody who sees the stored files at two or more times (Taylor Hornby's audit of 2014): \
                    convert the folder to another format.";

/// What a folder without checksums cannot show.
const UNCHECKED: &str =
    "The blocks of this folder have no checksums (block MACs): contents that were changed or damaged are not noticed.";

/// An unlocked folder.
pub(super) struct Keys {
    config: Config,
    blocks: Arc<Blocks>,
    paths: Arc<Paths>,
}

impl Keys {
    pub fn new(config: Config, coder: Arc<Coder>) -> Self {
        let Config { block, checksum, random, .. } = config;
        let blocks = Arc::new(Blocks { coder: coder.clone(), size: block, checksum, random });
        let paths = Arc::new(Paths { coder, names: config.names(), chains: Chains::default() });
        Self { config, blocks, paths }
    }

    /// The layout of a file with this IV.
    fn layout_of(&self, iv: u64) -> SealedLayout {
        SealedLayout {
            sealing: BlockSealing::Here {
                sealing: Sealing { cipher: self.blocks.clone(), tag_first: true },
                beside: iv.to_be_bytes().to_vec(),
            },
            block: self.config.block - self.config.overhead(),
            stored_at: self.config.header() as u64,
            holes: self.config.holes,
        }
    }

    /// The IV in a file's header (CipherFileIO.cpp, `initHeader`). `None` if the file is empty.
    fn iv(&self, of: StoredFile<'_>) -> io::Result<Option<u64>> {
        if !self.config.file_ivs {
            return Ok(Some(0));
        }
        let mut header = [0; HEADER];
        match of.tree.read_at(of.contents, 0, &mut header)? {
            0 => return Ok(None),
            HEADER => {}
            _ => return Err(cut_header()),
        }
        let by_path = match self.config.by_path {
            true => self.paths.chain(of.tree, of.file).ok_or_else(|| {
                damaged("header", 0, "it depends on the file's path, and a name in that does not decrypt")
            })?,
            false => None,
        };
        self.paths.coder.decrypt_stream(by_path.unwrap_or(0), &mut header);
        wipe_after_sectors();
        match u64::from_be_bytes(header) {
            0 => Err(damaged("header", 0, "the file's IV is zero")),
            iv => Ok(Some(iv)),
        }
    }

    fn chain(iv: &NameIv) -> Option<u64> {
        iv.first_chunk().map(|chain| u64::from_be_bytes(*chain))
    }
}

impl FileKeys for Keys {
    fn layout(&self, of: StoredFile<'_>) -> io::Result<FileKind> {
        Ok(self.iv(of)?.map_or(FileKind::Unfinished, |iv| FileKind::Sealed(self.layout_of(iv))))
    }

    /// Needs no header.
    fn size(&self, of: StoredFile<'_>) -> io::Result<Option<u64>> {
        let stored = of.tree.attributes(of.contents)?.size;
        match (1..self.config.header() as u64).contains(&stored) {
            true => Err(cut_header()),
            false => Ok(Some(self.layout_of(0).size(stored))),
        }
    }

    fn begin(&self, _of: StoredFile<'_>) -> io::Result<FileKind> {
        Err(read_only())
    }

    fn set_size(&self, _of: StoredFile<'_>, _size: u64) -> io::Result<()> {
        Err(read_only())
    }

    fn arranged(&self, lower: Arc<dyn Tree>) -> Arc<dyn Tree> {
        match self.paths.names.chained {
            true => Arc::new(ChainedTree { lower, paths: self.paths.clone() }),
            false => lower,
        }
    }

    fn name_iv(&self, of: StoredFolder<'_>) -> io::Result<NameIv> {
        let chain = self.paths.chain(of.tree, of.folder);
        let chain = chain.ok_or_else(|| {
            damaged("name", 0, "the folder's own name does not decrypt, and names in it depend on it")
        })?;
        Ok(chain.map(|chain| chain.to_be_bytes().into()).unwrap_or_default())
    }

    fn role(&self, stored: &OsStr, in_root: bool) -> NameRole {
        if is_own(stored, in_root) { NameRole::Own } else { NameRole::Name }
    }

    fn plain_name(&self, stored: &OsStr, iv: &NameIv) -> io::Result<Option<OsString>> {
        let Paths { coder, names, .. } = &*self.paths;
        let plain = names.decode(coder, stored.as_bytes(), Self::chain(iv));
        Ok(plain.map(|(name, _)| OsString::from_vec(name)))
    }

    fn why_no_name(&self, _stored: &OsStr) -> Error {
        no_name(match self.paths.names.chained {
            true => {
                "it does not decrypt: it is not encrypted, was changed or moved from another folder, or has another key"
            }
            false => "it does not decrypt: it is not encrypted, was changed, or has another key",
        })
    }

    fn encrypts_names(&self) -> bool {
        self.config.encrypts_names()
    }

    fn stored_name(&self, plain: &OsStr, iv: &NameIv) -> io::Result<OsString> {
        if plain.len() > LONGEST {
            return Err(Errno::NAMETOOLONG.into());
        }
        let Paths { coder, names, .. } = &*self.paths;
        match names.encode(coder, plain.as_bytes(), Self::chain(iv)) {
            stored if stored.len() > LONGEST => Err(Errno::NAMETOOLONG.into()),
            stored => Ok(OsString::from_vec(stored)),
        }
    }

    fn longest_name(&self, stored: u32) -> u32 {
        self.paths.names.longest(&self.paths.coder, stored as usize) as u32
    }

    fn plain_target(&self, stored: OsString) -> io::Result<OsString> {
        let Paths { coder, names, .. } = &*self.paths;
        let plain = names.decode_target(coder, stored.as_bytes());
        plain.map(OsString::from_vec).ok_or_else(|| damaged("target", 0, "it does not decrypt with this key"))
    }

    fn read_only(&self) -> bool {
        true
    }

    fn verifies(&self) -> bool {
        self.config.checksum > 0
    }

    fn warnings(&self) -> Vec<String> {
        let unchecked = (!self.verifies()).then_some(UNCHECKED);
        [Some(WEAK), unchecked].into_iter().flatten().map(str::to_owned).collect()
    }
}
