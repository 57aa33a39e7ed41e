//! What could be done about an error or a warning, as data: a program has a command or an option for it, others a button.

use std::fmt;

use serde::Serialize;

/// What could be done. `Display` says it for programs that have nothing better to say.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Advice {
    /// Allow that data are written which nothing encrypts: [`crate::Unlock::write_unencrypted`].
    AllowUnencrypted,
    /// Save the header that is there now.
    BackUpHeader,
    /// Make a complete copy: the file has this many surplus bytes in front or, if negative, lacks as many.
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
    /// Turn the LUKS1 header into one of LUKS2.
    ConvertToLuks2,
    /// Give a private key of somebody for whom files are encrypted.
    GivePrivateKey,
    /// Give the contents of the key file as the passphrase: they are hashed then.
    GiveAsPassphrase,
    /// Give what opens the volume: it proves what nothing else does.
    GiveCredential,
    /// Look which keyslots there are.
    ListKeyslots,
    /// Name the format: [`crate::Opening::format`].
    NameFormat,
    /// Name the file or device with the data as the volume, and this one as its header: [`crate::Opening::detached_header`].
    NameHeader,
    /// Name the keyslot: [`crate::Unlock::keyslot`].
    NameKeyslot,
    /// Open it only for reading: [`crate::Opening::access`].
    OpenReadOnly,
    /// Open what is there of a volume that was cut short: [`crate::Unlock::truncated`].
    OpenTruncated,
    /// Repair the header, by what is sound of it.
    RepairHeader,
    /// Restore the header from a backup.
    RestoreHeader,
    /// Go on with the decryption that moves the header to a file of its own.
    ResumeDecryption,
    /// Resume the reencryption that was begun.
    ResumeReencryption,
    /// Use the files: there are no bytes beside them.
    UseFiles,
}

impl fmt::Display for Advice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::AllowUnencrypted => "Writing has to be allowed.",
            Self::BackUpHeader => "Save the header first if it may still be wanted.",
            Self::CompleteCopy { shift: shift @ ..0 } => {
                return write!(f, "A copy with {} zeros in front of it is complete.", shift.unsigned_abs());
            }
            Self::CompleteCopy { shift } => return write!(f, "A copy without its first {shift} bytes is complete."),
            Self::CutOff { len } => return write!(f, "A copy of its first {len} bytes is complete."),
            Self::ChooseLogicalVolume(names) if names.is_empty() => "None of the logical volumes can be opened here.",
            Self::ChooseLogicalVolume(names) => {
                return write!(f, "It holds logical volumes; these can be opened: {}.", names.join(", "));
            }
            Self::ChoosePartition(numbers) => {
                return match &numbers[..] {
                    [] => f.write_str("This is a disk with partitions, none of which looks like a volume."),
                    all => {
                        let all: Vec<_> = all.iter().map(u32::to_string).collect();
                        write!(f, "It is a disk with partitions; these could be volumes: {}.", all.join(", "))
                    }
                };
            }
            Self::ConvertToLuks2 => "The header can be turned into one of LUKS2.",
            Self::GivePrivateKey => {
                "A private key opens it: an exported one, or that in the profile of the Windows user."
            }
            Self::GiveAsPassphrase => "If its contents were hashed, give them as the passphrase.",
            Self::GiveCredential => "Give what opens the volume.",
            Self::ListKeyslots => "The header says which keyslots there are.",
            Self::NameFormat => "Name the format.",
            Self::NameHeader => "Name the file or device with the data as the volume, and this one as its header.",
            Self::NameKeyslot => "Name the keyslot.",
            Self::OpenReadOnly => "Open it only for reading.",
            Self::OpenTruncated => "What is left can be read if a truncated volume is allowed.",
            Self::RepairHeader => "Repair the header.",
            Self::RestoreHeader => "Restore the header from a backup.",
            Self::ResumeDecryption => "Go on with the decryption, with the same detached header.",
            Self::ResumeReencryption => "Resume the reencryption.",
            Self::UseFiles => "Its files can be listed, copied and mounted.",
        })
    }
}

/// What a person must know of a volume: a whole sentence or several, and what could be done.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Warning {
    /// What is so.
    pub what: String,
    /// What could be done about it.
    pub advice: Option<Advice>,
}

impl Warning {
    /// Adds what could be done.
    pub fn advise(self, advice: Advice) -> Self {
        Self { advice: Some(advice), ..self }
    }

    /// What `Display` says, with the words that `say` has for the advice.
    pub fn told(&self, say: impl Fn(&Advice) -> String) -> String {
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
        f.write_str(&self.told(Advice::to_string))
    }
}

/// As the text that `Display` gives.
impl Serialize for Warning {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}
