#!/bin/bash
# Builds everything that is published for a version: docs/releasing.md.
#   tools/release.sh TARGET
set -euo pipefail
cd "$(dirname "$0")/.."
target=$(realpath "$1")
version=$(sed -n '/^version/{s/^version = "\(.*\)"/\1/p;q}' Cargo.toml)
processor=$(uname -m)
refuse() {
    echo "No release: $1." >&2
    exit 1
}

# The changelog of this version, without its heading.
changes() {
    awk -v version="$version" '/^## /{on = ($2 == version); next} on' CHANGELOG.md
}

[ -z "$(git status --porcelain)" ] || refuse "there are changes that are not committed. Run: git status"
tagged=$(git rev-parse -q --verify "v$version^{commit}" || true)
[ -z "$tagged" ] || [ "$tagged" = "$(git rev-parse HEAD)" ] || refuse "the tag v$version is at another commit. Raise the version in Cargo.toml"
[ -n "$(changes | tr -d '[:space:]')" ] || refuse "CHANGELOG.md says nothing of $version"
out=$target/release-$version
rm -rf "$out"
mkdir -p "$out"

SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH
# Keeps both folders' names out of the binaries.
export RUSTFLAGS="--remap-path-prefix=$PWD=/claviger --remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=/cargo"
# pack NAME FOLDER: a reproducible archive.
pack() {
    tar -C "$2" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" -cJf "$out/$1.tar.xz" .
}

git archive --prefix="claviger-$version/" HEAD | xz -9 >"$out/claviger-$version.tar.xz"
changes >"$out/CHANGES.md"
make sbom
cp "$target/claviger.cdx.json" "$out/claviger-$version.cdx.json"

cargo build --release --locked --manifest-path window/Cargo.toml --target-dir "$target/window"
make deb-test
cp "$target"/deb/*.deb "$out"

make static
static=$target/static
rm -rf "$static"
make install DESTDIR="$static" PREFIX=/usr HELPERS=/usr/sbin
install -m 755 "$target/$processor-unknown-linux-musl/release/claviger" "$static/usr/bin/claviger"
strip "$static/usr/bin/claviger"
rm -rf "$static/usr/lib/debug" "$static/usr/bin/claviger-window" "$static/usr/share/"{applications,metainfo,mime,icons}
tools/dependencies.py notices "$static/NOTICES"
cp LICENSE-* "$static"
pack "claviger-$version-$processor-linux" "$static"

make bindings
cp "$target"/bindings/release/*.whl "$out"
make bindings-install DESTDIR="$target/c" PREFIX=/usr
pack "claviger-c-$version-$processor-linux" "$target/c"

make package
# cargo chooses the folder below.
find "$target/packed/package" -name '*.crate' -exec cp {} "$out" \;
ls "$out"/*.crate >/dev/null

(cd "$out" && sha256sum -- * >"$target/SHA256SUMS" && mv "$target/SHA256SUMS" .)
echo "In $out:"
ls -l "$out"
