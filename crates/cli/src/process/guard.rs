//! What keeps secrets in this process.

use rustix::process::{DumpableBehavior, Resource, Rlimit, set_dumpable_behavior, setrlimit};

/// No core dumps, and no other process of the same user may look into this one (PR_SET_DUMPABLE). Called before any
/// secret is read.
pub fn no_dumps() {
    // Neither can fail on a Linux that we run on; if one does, the other still holds, and secrets are kept out of core
    // dumps page by page as well.
    let _ = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
    let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
}
