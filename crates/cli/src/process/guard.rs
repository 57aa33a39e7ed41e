//! Protects the secrets of this process.

use rustix::process::{DumpableBehavior, Resource, Rlimit, set_dumpable_behavior, setrlimit};

/// Disables core dumps, and prevents other processes of the same user from reading this one (PR_SET_DUMPABLE). Called before
/// any secret is read.
pub fn no_dumps() {
    // Neither call can fail on a supported Linux. If one does, the other still holds, and secrets are also kept out of core
    // dumps page by page.
    let _ = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
    let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
}
