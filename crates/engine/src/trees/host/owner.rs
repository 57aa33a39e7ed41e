//! Making nodes as somebody else.

use std::io;
use std::process::abort;

use rustix::fs::{Gid, Uid};
use rustix::process::{getegid, geteuid};
use rustix::thread::{CapabilitySets, capabilities, set_capabilities, set_thread_res_gid, set_thread_res_uid};

/// The user who owns what is made for `owner`.
pub(super) fn user(owner: Option<(u32, u32)>) -> u32 {
    let own = geteuid();
    owner.filter(|_| own.is_root()).map_or(own.as_raw(), |(user, _)| user)
}

/// Does `make` as `owner`, where this process is root; else as itself.
///
/// The kernel gives what is made to whoever makes it, and knows best what else follows from that: the group of a folder that
/// hands it on, default permissions of the folder, quotas, the owner's rights on a network file system. Changing the owner
/// afterwards would do each of them wrong, and show the node as root's meanwhile. So this thread is somebody else for one call.
/// All rights that it had it keeps: who may make something here was asked above, where also the other groups of that
/// somebody are known.
pub(super) fn acting_as<T>(owner: Option<(u32, u32)>, make: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let own = (geteuid(), getegid());
    let other = owner.map(|(user, group)| (Uid::from_raw(user), Gid::from_raw(group)));
    match other {
        Some((user, group)) if own.0.is_root() && (user, group) != own => {
            let _until_done = Identity::change(own, user, group)?;
            make()
        }
        _ => make(),
    }
}

/// This thread is somebody else as long as it lives. Only this thread: the calls are the kernel's own, not those of the C
/// library, which tells all threads.
struct Identity {
    own: (Uid, Gid),
}

impl Identity {
    fn change(own: (Uid, Gid), user: Uid, group: Gid) -> io::Result<Self> {
        let sets = capabilities(None)?;
        set_thread_res_gid(None, group, None)?;
        let changed = Self { own };
        set_thread_res_uid(None, user, None)?;
        // Whoever stops being root loses the effective ones, and may take them back (capabilities(7)).
        let CapabilitySets { effective, permitted, inheritable } = sets;
        set_capabilities(None, CapabilitySets { effective, permitted, inheritable })?;
        Ok(changed)
    }
}

impl Drop for Identity {
    fn drop(&mut self) {
        let (user, group) = self.own;
        let back = set_thread_res_uid(None, user, None).and_then(|()| set_thread_res_gid(None, group, None));
        // The saved identity is still root's, so that it cannot be refused. Nothing may go on as the wrong one.
        if back.is_err() {
            abort();
        }
    }
}
