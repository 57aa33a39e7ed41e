#!/bin/bash
# Builds the program twice, each time from a copy of the sources in a folder of another name, and compares the two byte by byte.
set -euo pipefail
cd "$(dirname "$0")/.."
# The folders of the sources and of the crates are in panic messages: both builds call them the same.
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
