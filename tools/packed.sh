#!/bin/bash
# Packs the crates for crates.io, and checks that they compile without the rest of the checkout. Uploads nothing.
#   tools/packed.sh CARGO TARGET
set -euo pipefail
cargo=$1
mkdir -p "$2"
target=$(realpath "$2")
here=$PWD
name() { sed -n '0,/^name = /s/^name = "\(.*\)"/\1/p' "$1/Cargo.toml"; }
folder=$target/packed/unpacked

rm -rf "$target/packed"
# Cargo would build each crate, and all below it again, without what is already there.
"$cargo" publish --dry-run --no-verify --locked --allow-dirty --workspace --target-dir "$target/packed"
mkdir "$folder"
# With the present time: packed files have an old one, and what was checked last time would count as the same.
find "$target/packed/package" -name '*.crate' -exec tar -xmzf {} -C "$folder" \;
cp Cargo.lock "$folder"
cd "$folder"
{
    printf '[workspace]\nresolver = "3"\nmembers = ["*-*"]\n\n[patch.crates-io]\n'
    for crate in *-*/; do
        printf '%s = { path = "%s" }\n' "$(name "$crate")" "${crate%/}"
    done
    # The same profile: what others wrote was checked before, by `make lint`.
    sed -n '/^\[profile\.dev\]/,/^$/p' "$here/Cargo.toml"
} >Cargo.toml
# One by one: no crate may need features that only another one switches on.
for crate in *-*/; do
    "$cargo" check --offline -p "$(name "$crate")" --target-dir "$target"
done
