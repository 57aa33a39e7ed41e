#!/bin/bash
# Builds the program twice, from copies of the sources in differently named folders, and compares the results byte by byte.
set -euo pipefail
cd "$(dirname "$0")/.."
# Panic messages contain the folders of sources and crates: both builds use the same names.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for copy in one another-one; do
    mkdir "$work/$copy"
    git archive HEAD | tar -x -C "$work/$copy"
    (cd "$work/$copy" &&
        CARGO_TARGET_DIR="$work/$copy/target" \
        RUSTFLAGS="--remap-path-prefix=$work/$copy=/claviger --remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=/cargo" \
        cargo build --release --locked -p claviger)
    sha256sum "$work/$copy/target/release/claviger"
done
cmp "$work"/{one,another-one}/target/release/claviger
echo "Both builds are identical."
