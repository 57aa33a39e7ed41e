//! Creates nodes as another user.

use std::io;
use std::process::abort;

use rustix::fs::{Gid, Uid};
use rustix::process::{getegid, geteuid};
use rustix::thread::{CapabilitySets, capabilities, set_capabilities, set_thread_res_gid, set_thread_res_uid};

/// The owner of what is created for `owner`.
pub(super) fn user(owner: Option<(u32, u32)>) -> u32 {
    let own = geteuid();
    owner.filter(|_| own.is_root()).map_or(own.as_raw(), |(user, _)| user)
}

/// Runs `make` as `owner` if this process is root; otherwise as itself.
///
/// The kernel assigns a new node to its creator, and derives other things from that: the inherited group of a folder, default
/// permissions, quotas, the owner's rights on a network file system. Changing the owner afterwards would get each of them wrong,
/// and would briefly show the node as root's. So this thread changes its identity for one call. It keeps all its rights: the caller
/// has already checked permissions, with the user's other groups.
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

/// Changes the identity of this thread for as long as it lives. Uses the kernel's own calls, because those of the C library change
/// all threads.
struct Identity {
    own: (Uid, Gid),
}

impl Identity {
    fn change(own: (Uid, Gid), user: Uid, group: Gid) -> io::Result<Self> {
        let sets = capabilities(None)?;
        set_thread_res_gid(None, group, None)?;
        let changed = Self { own };
        set_thread_res_uid(None, user, None)?;
        // Dropping root clears the effective capabilities, which may be restored (capabilities(7)).
        let CapabilitySets { effective, permitted, inheritable } = sets;
        set_capabilities(None, CapabilitySets { effective, permitted, inheritable })?;
        Ok(changed)
    }
}

impl Drop for Identity {
    fn drop(&mut self) {
        let (user, group) = self.own;
        let back = set_thread_res_uid(None, user, None).and_then(|()| set_thread_res_gid(None, group, None));
        // This cannot fail, because the saved identity is still root. Abort rather than continue as the wrong user.
        if back.is_err() {
            abort();
        }
    }
}
