//! LUKS2 to LUKS1 and back.

use crate::error::{Error, Result};
use crate::formats::Prepared;
use crate::store::Store;

pub(super) fn to_luks1(_store: &dyn Store, to: &str, _detached: bool) -> Result<Prepared> {
    Err(Error::unsupported(format!("turning LUKS2 into {to}")))
}
