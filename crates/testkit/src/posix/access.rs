//! Permissions: mode bits of files and folders, groups, and folders that pass on their group.

use std::path::Path;

use rustix::fs::{Access, AtFlags, CWD, OFlags, accessat, lstat, mkdir, symlink};
use rustix::io::{Errno, Result};

use super::Case;
use super::context::{Ctx, Done, PLAIN, STRANGER, chmod, chown, creat, make, mode, open, rename_with, second_group};

pub(super) const CASES: &[Case] = &[
    Case::anyone("access: the owner's bits are the owner's only ones", own_bits),
    Case::root("access: bits of the owner, the group, the second group and all others", every_class),
    Case::root("access: root may, whatever the bits say, but not run what nobody may", root_may),
    Case::anyone("access: a folder's bits to list, to search and to change", folder_bits),
    Case::root("access: a set-group-id folder hands its group on", set_group_id),
    Case::anyone("access: a new set-group-id file keeps the bit only where the group is one's own", new_set_id),
    Case::root("access: a sticky folder lets all create and look", sticky_creates),
    Case::root("access: permissions count when a file is opened, not later", counted_once),
    Case::root("access: NOREPLACE and EXCHANGE ask for both folders", both_folders),
];

fn may(path: &Path, access: Access) -> Result<()> {
    // The kernel's own answer, for the effective user.
    accessat(CWD, path, access, AtFlags::EACCESS)
}

/// A user's access to a file, as three bits.
fn bits(path: &Path) -> u32 {
    let ways = [(Access::READ_OK, 4), (Access::WRITE_OK, 2), (Access::EXEC_OK, 1)];
    ways.into_iter().filter(|&(way, _)| may(path, way).is_ok()).map(|(_, bit)| bit).sum()
}

/// access(2) and open(2) must agree.
fn same_bits(ctx: &Ctx, what: &str, path: &Path, expected: u32) {
    ctx.same(format_args!("access: {what}"), bits(path), expected);
    for (flags, needed) in [(OFlags::RDONLY, 4), (OFlags::WRONLY, 2), (OFlags::RDWR, 6)] {
        let opened = open(path, flags);
        if expected & needed == needed {
            ctx.works(format_args!("{flags:?}: {what}"), opened);
        } else {
            ctx.fails(format_args!("{flags:?}: {what}"), opened, Errno::ACCESS);
        }
    }
}

fn own_bits(ctx: &Ctx) -> Done {
    ctx.as_plain(|| {
        let file = ctx.file("file")?;
        for own in 0..8 {
            chmod(&file, own << 6 | 0o077)?;
            same_bits(ctx, &format!("{own}77"), &file, own);
        }
        Ok(())
    })
}

fn every_class(ctx: &Ctx) -> Done {
    let file = ctx.file("file")?;
    let classes = [
        ("owner", PLAIN, 77, 0o421),
        ("group", STRANGER, PLAIN, 0o241),
        ("second group", STRANGER, second_group(PLAIN), 0o124),
        ("others", STRANGER, STRANGER, 0o412),
    ];
    for (class, user, group, permissions) in classes {
        chown(&file, user, group)?;
        chmod(&file, permissions)?;
        let shift = match class {
            "owner" => 6,
            "others" => 0,
            _ => 3,
        };
        ctx.as_plain(|| {
            same_bits(ctx, class, &file, permissions >> shift & 7);
            Ok(())
        })?;
    }
    Ok(())
}

fn root_may(ctx: &Ctx) -> Done {
    let file = ctx.file("file")?;
    chown(&file, PLAIN, PLAIN)?;
    chmod(&file, 0)?;
    ctx.works("reading and writing", open(&file, OFlags::RDWR));
    ctx.same("mode 0", bits(&file), 6);
    chmod(&file, 0o010)?;
    ctx.same("mode 010", bits(&file), 7);
    let folder = ctx.folder("folder")?;
    chown(&folder, PLAIN, PLAIN)?;
    chmod(&folder, 0)?;
    ctx.works("a file in a shut folder", creat(&folder.join("new"), 0o644));
    Ok(())
}

fn folder_bits(ctx: &Ctx) -> Done {
    ctx.as_plain(|| {
        let folder = ctx.folder("folder")?;
        let file = ctx.file("folder/file")?;
        for permissions in 0..8 {
            chmod(&folder, permissions << 6)?;
            let (list, change, search) = (permissions & 4 != 0, permissions & 2 != 0, permissions & 1 != 0);
            let seen = open(&folder, OFlags::RDONLY | OFlags::DIRECTORY).err();
            ctx.same(format_args!("listing {permissions}00"), seen, (!list).then_some(Errno::ACCESS));
            let seen = open(&file, OFlags::RDONLY).err();
            ctx.same(format_args!("looking up {permissions}00"), seen, (!search).then_some(Errno::ACCESS));
            let new = folder.join(permissions.to_string());
            let seen = creat(&new, 0o644).err();
            ctx.same(format_args!("creating {permissions}00"), seen, (!(change && search)).then_some(Errno::ACCESS));
        }
        Ok(())
    })
}

fn set_group_id(ctx: &Ctx) -> Done {
    let (group, folder) = (second_group(PLAIN), ctx.folder("folder")?);
    chown(&folder, PLAIN, group)?;
    chmod(&folder, 0o2777)?;
    let plain = ctx.folder("plain")?;
    chmod(&plain, 0o777)?;
    ctx.as_plain(|| {
        for kind in ["file", "folder", "fifo", "symlink"] {
            make(kind, &folder.join(kind))?;
            let stat = lstat(folder.join(kind))?;
            ctx.same(kind, (stat.st_uid, stat.st_gid), (PLAIN, group));
            let inherits = kind == "folder";
            ctx.same(format_args!("{kind} hands it on"), stat.st_mode & 0o2000 != 0, inherits);
            make(kind, &plain.join(kind))?;
            ctx.same(format_args!("{kind} elsewhere"), lstat(plain.join(kind))?.st_gid, PLAIN);
        }
        Ok(())
    })
}

fn new_set_id(ctx: &Ctx) -> Done {
    ctx.as_plain(|| {
        creat(&ctx.path("own"), 0o6755)?;
        ctx.mode_is("own group", &ctx.path("own"), 0o6755);
        Ok(())
    })?;
    if ctx.is_root() {
        let folder = ctx.folder("folder")?;
        chown(&folder, PLAIN, STRANGER)?;
        chmod(&folder, 0o2777)?;
        ctx.as_plain(|| {
            creat(&folder.join("file"), 0o6755)?;
            // Otherwise they could run programs as a group they are not in.
            ctx.mode_is("a group of others", &folder.join("file"), 0o4755);
            Ok(())
        })?;
    }
    Ok(())
}

fn sticky_creates(ctx: &Ctx) -> Done {
    let folder = ctx.folder("folder")?;
    chmod(&folder, 0o1777)?;
    let theirs = ctx.file("folder/theirs")?;
    chmod(&theirs, 0o666)?;
    ctx.as_plain(|| {
        ctx.works("creating", creat(&folder.join("own"), 0o600));
        ctx.works("a folder", mkdir(folder.join("own folder"), mode(0o700)));
        ctx.works("a link", symlink("x", folder.join("own link")));
        ctx.works("reading another's", open(&theirs, OFlags::RDONLY));
        Ok(())
    })
}

fn counted_once(ctx: &Ctx) -> Done {
    let file = ctx.file("file")?;
    chmod(&file, 0o666)?;
    let mut opened = None;
    ctx.as_plain(|| {
        opened = Some(open(&file, OFlags::RDWR)?);
        Ok(())
    })?;
    chmod(&file, 0)?;
    ctx.as_plain(|| {
        let fd = opened.as_ref().ok_or(Errno::BADF)?;
        ctx.works("writing", rustix::io::write(fd, b"x"));
        ctx.works("reading", rustix::io::pread(fd, &mut [0; 1], 0));
        ctx.fails("opening", open(&file, OFlags::RDONLY), Errno::ACCESS);
        Ok(())
    })
}

fn both_folders(ctx: &Ctx) -> Done {
    let (shut, open) = (ctx.folder("shut")?, ctx.folder("open")?);
    chmod(&open, 0o777)?;
    ctx.file("shut/file")?;
    ctx.file("open/file")?;
    ctx.as_plain(|| {
        for flags in [rustix::fs::RenameFlags::NOREPLACE, rustix::fs::RenameFlags::EXCHANGE] {
            let new = if flags == rustix::fs::RenameFlags::NOREPLACE { "new" } else { "file" };
            ctx.fails("out", rename_with(&shut.join("file"), &open.join(new), flags), Errno::ACCESS);
            ctx.fails("in", rename_with(&open.join("file"), &shut.join(new), flags), Errno::ACCESS);
        }
        Ok(())
    })
}
