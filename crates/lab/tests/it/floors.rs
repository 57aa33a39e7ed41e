//! The three floors of the lab: each knows only those below it.

use std::path::Path;

use claviger_testkit::floors;

#[test]
fn no_floor_knows_one_above_it() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    floors::check(&src, &[&["hostile", "model"], &["measure"], &["show"]]);
}
