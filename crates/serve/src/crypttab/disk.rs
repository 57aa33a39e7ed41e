//! Finds the disk of a partition in /sys (sysfs-block: `partition`, `uevent`).

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// The disk and the partition's number on it; none for a file, a whole disk or a missing path.
pub fn of_partition(device: &Path) -> Option<(PathBuf, u32)> {
    let metadata = fs::metadata(device).ok().filter(|m| m.file_type().is_block_device())?;
    let (major, minor) = (rustix::fs::major(metadata.rdev()), rustix::fs::minor(metadata.rdev()));
    // A link to …/sda/sda1: the partition's folder lies in the disk's.
    from_folder(&fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")).ok()?)
}

fn from_folder(partition: &Path) -> Option<(PathBuf, u32)> {
    let number = fs::read_to_string(partition.join("partition")).ok()?.trim().parse().ok()?;
    let disk = fs::read_to_string(partition.parent()?.join("uevent")).ok()?;
    let name = disk.lines().find_map(|line| line.strip_prefix("DEVNAME="))?;
    Some((Path::new("/dev").join(name), number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partition_lies_in_the_folder_of_its_disk() {
        let sys = tempfile::tempdir().expect("a folder");
        let part = sys.path().join("cciss!c0d0/cciss!c0d0p2");
        fs::create_dir_all(&part).expect("folders");
        fs::write(part.join("partition"), "2\n").expect("written");
        fs::write(part.join("uevent"), "MAJOR=104\nMINOR=2\nDEVNAME=cciss/c0d0p2\n").expect("written");
        fs::write(part.parent().expect("a disk").join("uevent"), "MAJOR=104\nDEVNAME=cciss/c0d0\n").expect("written");
        assert_eq!(from_folder(&part), Some(("/dev/cciss/c0d0".into(), 2)));
        assert_eq!(from_folder(part.parent().expect("a disk")), None, "a whole disk");
        assert_eq!(of_partition(&part.join("uevent")), None, "a file");
    }
}
