//! What the user can do about an error or a warning, as data. A program shows a command or an option for it, or a button.

use std::fmt;

use serde::Serialize;

/// What the user can do. `Display` has the words for programs without better ones.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Advice {
    /// Allow removing the last keyslot, which gives up the data: [`crate::formats::HeaderEditor::remove`].
    AllowRemovingLast,
    /// Allow writing unencrypted data: [`crate::Unlock::write_unencrypted`].
    AllowUnencrypted,
    /// Save the current header.
    BackUpHeader,
    /// Change the credential that opens the volume.
    ChangeCredential,
    /// Make a complete copy: this one has that many extra bytes in front or, if negative, lacks that many.
    CompleteCopy {
        /// Bytes.
        shift: i64,
    },
    /// Copy only the beginning of the file: its first bytes are the volume.
    CutOff {
        /// Bytes.
        len: u64,
    },
    /// Choose one of these logical volumes of LVM2: [`crate::logical_volumes::open`].
    ChooseLogicalVolume(Vec<String>),
    /// Choose one of these partitions: [`crate::Opening::partition`].
    ChoosePartition(Vec<u32>),
    /// Convert the LUKS1 header to LUKS2.
    ConvertToLuks2,
    /// Copy the contents to a new volume: [`crate::copy_volume`].
    CopyVolume,
    /// Give the private key of a recipient of the files.
    GivePrivateKey,
    /// Give the contents of the key file as the passphrase, so that they are hashed.
    GiveAsPassphrase,
    /// Give a credential that opens the volume: only that proves the repair right.
    GiveCredential,
    /// List the keyslots.
    ListKeyslots,
    /// Name the format: [`crate::Opening::format`].
    NameFormat,
    /// Name the file or device with the data as the volume, and this one as its header: [`crate::Opening::detached_header`].
    NameHeader,
    /// Name the keyslot: [`crate::Unlock::keyslot`].
    NameKeyslot,
    /// Open it read-only: [`crate::Opening::access`].
    OpenReadOnly,
    /// Open what is left of a truncated volume: [`crate::Unlock::truncated`].
    OpenTruncated,
    /// Repair the header from its intact parts.
    RepairHeader,
    /// Seal the passphrase of a TPM's keyslot anew: [`crate::formats::HeaderEditor::replace`].
    Reseal,
    /// Restore the header in front from the backup at the end of the volume.
    RestoreEmbedded,
    /// Restore the header from a backup.
    RestoreHeader,
    /// Resume the decryption that moves the header to a file of its own.
    ResumeDecryption,
    /// Resume the interrupted reencryption.
    ResumeReencryption,
    /// Change the credential, which rewrites every copy of the header.
    RewriteHeader,
    /// Use the files: an encrypted folder has no single plaintext.
    UseFiles,
}

impl fmt::Display for Advice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::AllowRemovingLast => "To give up the data, allow removing the last one.",
            Self::AllowUnencrypted => "Allow writing explicitly.",
            Self::BackUpHeader => "Back up the header first if you may still need it.",
            Self::ChangeCredential => "Change the credential that opens it.",
            Self::CompleteCopy { shift: shift @ ..0 } => {
                return write!(f, "A copy with {} zeros in front of it is complete.", shift.unsigned_abs());
            }
            Self::CompleteCopy { shift } => return write!(f, "A copy without its first {shift} bytes is complete."),
            Self::CutOff { len } => return write!(f, "A copy of its first {len} bytes is complete."),
            Self::ChooseLogicalVolume(names) if names.is_empty() => "None of its logical volumes can be opened.",
            Self::ChooseLogicalVolume(names) => {
                return write!(f, "It holds logical volumes. These can be opened: {}.", names.join(", "));
            }
            Self::ChoosePartition(numbers) => {
                return match &numbers[..] {
                    [] => f.write_str("This is a partitioned disk. None of its partitions looks encrypted."),
                    all => {
                        let all: Vec<_> = all.iter().map(u32::to_string).collect();
                        write!(f, "This is a partitioned disk. These partitions could be volumes: {}.", all.join(", "))
                    }
                };
            }
            Self::ConvertToLuks2 => "Convert the header to LUKS2.",
            Self::CopyVolume => "Copy the contents to a new volume.",
            Self::GivePrivateKey => "Give a private key: an exported one, or the one in the Windows user's profile.",
            Self::GiveAsPassphrase => "If its contents were hashed, give them as the passphrase instead.",
            Self::GiveCredential => "Give a credential that opens the volume.",
            Self::ListKeyslots => "The header lists the keyslots.",
            Self::NameFormat => "Name the format.",
            Self::NameHeader => {
                "Give the file or device with the data as the volume, and this one as its detached \
                 header."
            }
            Self::NameKeyslot => "Name the keyslot.",
            Self::OpenReadOnly => "Open it read-only.",
            Self::OpenTruncated => "To read what is left, allow a truncated volume.",
            Self::RepairHeader => "Repair the header.",
            Self::Reseal => "Seal the keyslot's passphrase anew.",
            Self::RestoreEmbedded => "Restore the header from the backup at the end of the volume.",
            Self::RestoreHeader => "Restore the header from a backup.",
            Self::ResumeDecryption => "Resume the decryption with the same detached header.",
            Self::ResumeReencryption => "Resume the reencryption.",
            Self::RewriteHeader => "Change the credential: that rewrites every copy of the header.",
            Self::UseFiles => "You can list, copy or mount its files.",
        })
    }
}

/// A warning about a volume: one or more whole sentences, and what the user can do.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Warning {
    /// The warning.
    pub what: String,
    /// What the user can do about it.
    pub advice: Option<Advice>,
}

impl Warning {
    /// Adds what the user can do.
    pub fn advise(self, advice: Advice) -> Self {
        Self { advice: Some(advice), ..self }
    }

    /// The text of `Display`, with the advice in the words of `say`.
    pub fn in_words(&self, say: impl Fn(&Advice) -> String) -> String {
        match &self.advice {
            Some(advice) => format!("{} {}", self.what, say(advice)),
            None => self.what.clone(),
        }
    }
}

impl<S: Into<String>> From<S> for Warning {
    fn from(what: S) -> Self {
        Self { what: what.into(), advice: None }
    }
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.in_words(Advice::to_string))
    }
}

/// Serialised as the text of `Display`.
impl Serialize for Warning {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}
