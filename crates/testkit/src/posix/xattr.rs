//! Extended attributes (xattr(7)).

use std::collections::BTreeSet;
use std::path::Path;

use rustix::fs::{
    OFlags, XattrFlags, fgetxattr, flistxattr, fremovexattr, fsetxattr, getxattr, getxattr_query, lgetxattr, listxattr,
    listxattr_query, lsetxattr, removexattr, rename, setxattr, unlink,
};
use rustix::io::{Errno, Result, write};

use super::Case;
use super::context::{Ctx, Done, Stop, chmod, creat, make, open};

pub(super) const CASES: &[Case] = &[
    Case::anyone("xattr: what was set is read, listed and removed", set_and_get),
    Case::anyone("xattr: CREATE and REPLACE", create_and_replace),
    Case::anyone("xattr: sizes: none, too small, asked for", sizes),
    Case::anyone("xattr: names that are empty, too long, or of no kind", names),
    Case::anyone("xattr: values of every length", lengths),
    Case::anyone("xattr: of folders, and not of links, fifos and sockets", kinds),
    Case::anyone("xattr: by descriptor, and of a removed file", by_descriptor),
    Case::anyone("xattr: go with a rename, and away with the file", life),
    Case::anyone("xattr: set the time of change", times),
    Case::anyone("xattr: need the permission to read and to write", permissions),
    Case::root("xattr: trusted ones are root's", trusted),
    Case::root("xattr: a file's capabilities go when it is written", capabilities),
];

fn value(path: &Path, name: &str) -> Result<Vec<u8>> {
    let mut room = vec![0; 70_000];
    let len = getxattr(path, name, &mut room[..])?;
    room.truncate(len);
    Ok(room)
}

/// Names of attributes; a system may add its own.
fn listed(path: &Path) -> Result<BTreeSet<String>> {
    let mut room = vec![0; 70_000];
    let len = listxattr(path, &mut room[..])?;
    let all = room[..len].split(|&byte| byte == 0).filter(|name| name.starts_with(b"user."));
    Ok(all.map(|name| String::from_utf8_lossy(name).into_owned()).collect())
}

fn set(path: &Path, name: &str, value: &[u8]) -> Result<()> {
    setxattr(path, name, value, XattrFlags::empty())
}

fn of(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|&name| name.to_owned()).collect()
}

fn set_and_get(ctx: &Ctx) -> Done {
    let file = ctx.file("file")?;
    ctx.same("none", listed(&file), Ok(BTreeSet::new()));
    set(&file, "user.one", b"first")?;
    set(&file, "user.two", b"\0bytes\xff")?;
    set(&file, "user.ключ", b"")?;
    ctx.same("one", value(&file, "user.one"), Ok(b"first".to_vec()));
    ctx.same("two", value(&file, "user.two"), Ok(b"\0bytes\xff".to_vec()));
    ctx.same("empty", value(&file, "user.ключ"), Ok(Vec::new()));
    ctx.same("all", listed(&file), Ok(of(&["user.one", "user.two", "user.ключ"])));
    set(&file, "user.one", b"longer than before")?;
    ctx.same("changed", value(&file, "user.one"), Ok(b"longer than before".to_vec()));
    removexattr(&file, "user.one")?;
    ctx.fails("removed", value(&file, "user.one"), Errno::NODATA);
    ctx.fails("removed once more", removexattr(&file, "user.one"), Errno::NODATA);
    ctx.fails("never there", value(&file, "user.none"), Errno::NODATA);
    ctx.same("left", listed(&file), Ok(of(&["user.two", "user.ключ"])));
    Ok(())
}

fn create_and_replace(ctx: &Ctx) -> Done {
    let file = ctx.file("file")?;
    let with = |value: &[u8], flags| setxattr(&file, "user.x", value, flags);
    ctx.fails("REPLACE of nothing", with(b"1", XattrFlags::REPLACE), Errno::NODATA);
    ctx.works("CREATE", with(b"2", XattrFlags::CREATE));
    ctx.fails("CREATE once more", with(b"3", XattrFlags::CREATE), Errno::EXIST);
    ctx.same("value", value(&file, "user.x"), Ok(b"2".to_vec()));
    ctx.works("REPLACE", with(b"4", XattrFlags::REPLACE));
    ctx.same("value", value(&file, "user.x"), Ok(b"4".to_vec()));
    ctx.fails("flags nobody knows", with(b"5", XattrFlags::from_bits_retain(64)), Errno::INVAL);
    Ok(())
}

fn sizes(ctx: &Ctx) -> Done {
    let file = ctx.file("file")?;
    set(&file, "user.x", b"0123456789")?;
    ctx.same("asked for", getxattr_query(&file, "user.x"), Ok(10));
    ctx.fails("too small", getxattr(&file, "user.x", &mut [0u8; 9]), Errno::RANGE);
    ctx.same("just right", getxattr(&file, "user.x", &mut [0u8; 10]), Ok(10));
    let len = listxattr_query(&file)?;
    ctx.holds("a list holds at least that name", len > "user.x".len());
    ctx.fails("too small for a list", listxattr(&file, &mut vec![0u8; len - 1][..]), Errno::RANGE);
    ctx.same("just right for a list", listxattr(&file, &mut vec![0u8; len][..]), Ok(len));
    Ok(())
}

fn names(ctx: &Ctx) -> Done {
    let file = ctx.file("file")?;
    ctx.fails_with("an empty name", set(&file, "", b"x"), &[Errno::RANGE]);
    ctx.fails("nothing behind user.", set(&file, "user.", b"x"), Errno::INVAL);
    ctx.fails("no such kind", set(&file, "nokind.x", b"x"), Errno::OPNOTSUPP);
    ctx.fails("no kind", set(&file, "x", b"x"), Errno::OPNOTSUPP);
    let longest = format!("user.{}", "n".repeat(250));
    ctx.works("255 bytes", set(&file, &longest, b"x"));
    ctx.same("255 bytes", value(&file, &longest), Ok(b"x".to_vec()));
    ctx.fails("256 bytes", set(&file, &format!("{longest}n"), b"x"), Errno::RANGE);
    ctx.fails("reading 256 bytes", value(&file, &format!("{longest}n")), Errno::RANGE);
    Ok(())
}

fn lengths(ctx: &Ctx) -> Done {
    let file = ctx.file("file")?;
    for len in [0, 1, 255, 1000, 3000] {
        let bytes: Vec<u8> = (0..len).map(|i: u32| i as u8).collect();
        ctx.works(len, set(&file, "user.x", &bytes));
        ctx.same(len, value(&file, "user.x"), Ok(bytes));
    }
    ctx.fails("more than the kernel takes", set(&file, "user.x", &vec![0; 65_537]), Errno::TOOBIG);
    ctx.same("bytes of the last one", value(&file, "user.x").map(|v| v.len()), Ok(3000));
    Ok(())
}

fn kinds(ctx: &Ctx) -> Done {
    for (kind, path) in ctx.one_of_each()? {
        let done = lsetxattr(&path, "user.x", b"1", XattrFlags::empty());
        match kind {
            "file" | "folder" => drop(ctx.works(kind, done)),
            _ => ctx.fails(kind, done, Errno::PERM),
        }
    }
    let link = ctx.symlink("link", "a file")?;
    ctx.same("through a link", value(&link, "user.x"), Ok(b"1".to_vec()));
    ctx.fails_with("of the link", lgetxattr(&link, "user.x", &mut [0u8; 9]), &[Errno::NODATA, Errno::PERM]);
    Ok(())
}

fn by_descriptor(ctx: &Ctx) -> Done {
    let file = ctx.file("file")?;
    let fd = open(&file, OFlags::RDWR)?;
    ctx.works("setting", fsetxattr(&fd, "user.x", b"one", XattrFlags::empty()));
    ctx.same("by its name", value(&file, "user.x"), Ok(b"one".to_vec()));
    unlink(&file)?;
    let mut room = [0u8; 64];
    ctx.same("removed: getting", fgetxattr(&fd, "user.x", &mut room), Ok(3));
    ctx.works("removed: setting", fsetxattr(&fd, "user.y", b"two", XattrFlags::empty()));
    ctx.works("removed: listing", flistxattr(&fd, &mut room));
    ctx.works("removed: removing", fremovexattr(&fd, "user.x"));
    ctx.fails("removed: getting it again", fgetxattr(&fd, "user.x", &mut room), Errno::NODATA);
    Ok(())
}

fn life(ctx: &Ctx) -> Done {
    let (file, other) = (ctx.file("file")?, ctx.file("other")?);
    set(&file, "user.x", b"file")?;
    set(&other, "user.x", b"other")?;
    rename(&file, &other)?;
    ctx.same("renamed", value(&other, "user.x"), Ok(b"file".to_vec()));
    unlink(&other)?;
    creat(&other, 0o644)?;
    ctx.same("a new file", listed(&other), Ok(BTreeSet::new()));
    set(&other, "user.x", b"again")?;
    creat(&other, 0o644)?;
    ctx.same("emptied", value(&other, "user.x"), Ok(b"again".to_vec()));
    Ok(())
}

fn times(ctx: &Ctx) -> Done {
    let file = ctx.file("file")?;
    ctx.touches("setxattr", &file, "c", || set(&file, "user.x", b"1"))?;
    ctx.touches("getxattr", &file, "", || value(&file, "user.x"))?;
    ctx.touches("listxattr", &file, "", || listed(&file))?;
    ctx.touches("removexattr", &file, "c", || removexattr(&file, "user.x"))
}

fn permissions(ctx: &Ctx) -> Done {
    ctx.as_plain(|| {
        let file = ctx.file("file")?;
        set(&file, "user.x", b"1")?;
        chmod(&file, 0o400)?;
        ctx.fails("setting", set(&file, "user.x", b"2"), Errno::ACCESS);
        ctx.fails("removing", removexattr(&file, "user.x"), Errno::ACCESS);
        ctx.works("getting", value(&file, "user.x"));
        chmod(&file, 0o200)?;
        ctx.works("setting", set(&file, "user.x", b"2"));
        ctx.fails("getting", value(&file, "user.x"), Errno::ACCESS);
        ctx.works("listing", listed(&file));
        Ok(())
    })
}

fn trusted(ctx: &Ctx) -> Done {
    let file = ctx.file("file")?;
    chmod(&file, 0o666)?;
    set(&file, "trusted.x", b"1")?;
    ctx.same("root", value(&file, "trusted.x"), Ok(b"1".to_vec()));
    make("symlink", &ctx.path("link"))?;
    ctx.works("of a link", lsetxattr(ctx.path("link"), "trusted.x", b"1", XattrFlags::empty()));
    ctx.as_plain(|| {
        ctx.fails("getting", value(&file, "trusted.x"), Errno::NODATA);
        ctx.fails("setting", set(&file, "trusted.x", b"2"), Errno::PERM);
        Ok(())
    })
}

fn capabilities(ctx: &Ctx) -> Done {
    // Version 2, CAP_NET_RAW permitted (include/uapi/linux/capability.h).
    let capability: Vec<u8> = [0x0200_0000u32, 1 << 13, 0, 0, 0].iter().flat_map(|word| word.to_le_bytes()).collect();
    let file = ctx.file("file")?;
    let name = "security.capability";
    match set(&file, name, &capability) {
        Err(Errno::OPNOTSUPP | Errno::PERM) => return Err(Stop::Unsupported("no capabilities of files".into())),
        done => done?,
    }
    ctx.same("value", value(&file, name), Ok(capability.clone()));
    write(open(&file, OFlags::WRONLY)?, b"x")?;
    ctx.fails("after a write", value(&file, name), Errno::NODATA);
    set(&file, name, &capability)?;
    super::sys::truncate(&file, 0)?;
    ctx.fails("after a cut", value(&file, name), Errno::NODATA);
    set(&file, name, &capability)?;
    super::context::chown(&file, 5, 5)?;
    ctx.fails("after a change of owner", value(&file, name), Errno::NODATA);
    Ok(())
}
