//! The integration tests, as one program: linking is most of what building them takes.

mod common;
mod documents;
mod references;
mod soak;

mod bitlocker {
    pub mod create;
    pub mod protectors;
    pub mod reencrypting;
}

mod efs {
    pub mod private_keys;
    pub mod verbs;
}

mod faults {
    pub mod endurance;
    pub mod in_use_endurance;
    #[cfg(target_arch = "x86_64")]
    pub mod injected;
    pub mod power;
    pub mod secrets;
    #[cfg(target_arch = "x86_64")]
    pub mod secrets_left;
}

mod filesystems {
    pub mod arrays;
    pub mod cryptomator;
    pub mod encfs;
    pub mod fat_kills;
    pub mod files;
    pub mod folders;
    pub mod gocryptfs;
    pub mod left_out;
    pub mod logical_volumes;
    pub mod new_filesystems;
    pub mod partitions;
}

mod lab {
    pub mod benchmark;
    pub mod costs;
    pub mod facilities;
    pub mod insight;
    pub mod kernel;
    pub mod report;
    pub mod runs;
    pub mod safety;
}

mod luks {
    pub mod damaged;
    pub mod headers;
    pub mod keyslots;
    pub mod reencrypting;
    pub mod rotation;
    pub mod sectors;
    pub mod tokens;
    pub mod tokens_clevis;
    pub mod tokens_fido2;
    pub mod tokens_tpm;
}

mod program {
    pub mod completing;
    pub mod global_options;
    pub mod guide;
    pub mod json;
    pub mod names;
    pub mod passwords;
    pub mod patience;
    pub mod progress;
    pub mod recovery;
    pub mod terminal;
}

mod serving {
    pub mod attacks;
    pub mod ceph;
    pub mod crypttab;
    pub mod images;
    pub mod in_use;
    pub mod in_use_isolated;
    pub mod kernel;
    pub mod key_process;
    pub mod key_process_folders;
    pub mod key_process_sealed;
    pub mod locking;
    pub mod mounting;
    pub mod mounting_user;
    pub mod postgres;
    pub mod remote;
    pub mod serve_verb;
    pub mod waits;
}

mod volumes {
    pub mod convert;
    pub mod credentials;
    pub mod deniability;
    pub mod explain;
    pub mod filevault2;
    pub mod finding;
    pub mod hidden;
    pub mod mishaps;
    pub mod pairs;
    pub mod reading;
    pub mod resizing;
}
