//! The integration tests, as one program: linking is most of what building them takes.

mod examples;
mod floors;
mod in_order;
mod names_of_formats;
mod support;
mod torture;

mod bitlocker {
    pub mod conversion;
    pub mod create;
    pub mod damaged;
    pub mod judged;
    pub mod protectors;
    pub mod states;
    pub mod windows;
}

mod cryptomator {
    pub mod changes;
    pub mod damaged;
    pub mod folders;
    pub mod format_6;
}

mod ecryptfs {
    pub mod damaged;
    pub mod folders_inside;
    pub mod host_folder;
    pub mod kernel;
    pub mod stacked;
    pub mod vectors;
}

mod efs {
    pub mod files;
    pub mod private_keys;
    pub mod private_keys_card;
    pub mod private_keys_windows;
}

mod encfs {
    pub mod damaged;
    pub mod folders;
}

mod filesystems {
    pub mod arrays;
    pub mod detect;
    pub mod fat;
    pub mod free_tail;
    pub mod fsx;
    pub mod logical_volumes;
    pub mod partitioned;
    pub mod partitions;
    pub mod read;
}

mod gocryptfs {
    pub mod changes;
    pub mod damaged;
    pub mod folders;
    pub mod reverse;
}

mod luks {
    pub mod integrity;
    pub mod integrity_linux;
    pub mod integritysetup;
    pub mod luks1;
    pub mod luks1_changes;
    pub mod luks1_damaged;
    pub mod luks2;
    pub mod luks2_changes;
    pub mod luks2_damaged;
    pub mod luks2_reencryption;
    pub mod luks2_reencryption_oracles;
    pub mod luks_changes_oracles;
}

mod truecrypt {
    pub mod hidden;
    pub mod truecrypt_create;
    pub mod truecrypt_damaged;
    pub mod truecrypt_oracles;
    pub mod truecrypt_resize;
    pub mod truecrypt_samples;
    pub mod veracrypt_create;
    pub mod veracrypt_damaged;
    pub mod veracrypt_oracles;
    pub mod veracrypt_samples;
}

mod volumes {
    pub mod around;
    pub mod direct;
    pub mod dmg;
    pub mod edit;
    pub mod filevault2;
    pub mod forensic;
    pub mod header_changes;
    pub mod header_oracles;
    pub mod headerless_oracles;
    pub mod hostile_images;
    pub mod key_process;
    pub mod opening;
    pub mod opening_writes_nothing;
    pub mod store;
    pub mod takes;
    pub mod vast;
    pub mod volume;
}
