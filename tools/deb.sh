#!/bin/sh
# Makes Debian packages from a folder of `make install`: claviger, and claviger-window if it was built.
#   tools/deb.sh STAGED OUT
# VERSION overrides Cargo.toml's version. SOURCE_DATE_EPOCH (default: the last commit) is the time of all files, so the same sources
# give the same packages.
set -eu
staged=$(realpath "$1")
out=$(realpath "$2")
cd "$(dirname "$0")/.."
version=${VERSION:-$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)}
# Sources from an archive have no history.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || stat -c %Y CHANGELOG.md)}
export SOURCE_DATE_EPOCH
# The maintainer is the person who builds the package.
maintainer=${MAINTAINER:-$(git log -1 --format='%an <%ae>' 2>/dev/null || echo "root <root@$(hostname)>")}
architecture=$(dpkg --print-architecture)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# dpkg-shlibdeps needs a source package.
mkdir "$work/debian"
printf 'Source: claviger\n\nPackage: claviger\nArchitecture: any\n' >"$work/debian/control"

# control NAME "OTHER PACKAGES" "SYNOPSIS" reads the description and further fields.
control() {
    libraries=$(cd "$work" && dpkg-shlibdeps -O "$work/$1/usr/bin/$1" | sed -n 's/^shlibs:Depends=//p')
    cat <<END
Package: $1
Version: $version
Architecture: $architecture
Maintainer: $maintainer
Installed-Size: $(du -k -s --apparent-size "$work/$1" | cut -f 1)
Depends: $libraries${2:+, $2}
Section: $3
Priority: optional
END
    cat
}

# Licence, changes, compressed manual pages, checksums, and the package itself.
pack() {
    root=$work/$1
    doc=$root/usr/share/doc/$1
    mkdir -p "$doc" "$root/DEBIAN"
    cp dist/debian/copyright "$doc/copyright"
    gzip -9 -n -c CHANGELOG.md >"$doc/CHANGES.md.gz"
    printf '%s (%s) unstable; urgency=medium\n\n  * See CHANGES.md.gz.\n\n -- %s  %s\n' "$1" "$version" "$maintainer" \
        "$(date -u -R -d "@$SOURCE_DATE_EPOCH")" | gzip -9 -n >"$doc/changelog.gz"
    find "$root/usr/share/man" -name '*.1' -exec gzip -9 -n {} + 2>/dev/null || true
    control "$1" "$2" "$3" >"$root/DEBIAN/control"
    (cd "$root" && find usr -type f -exec md5sum {} + | LC_ALL=C sort -k 2) >"$root/DEBIAN/md5sums"
    find "$root" -newermt "@$SOURCE_DATE_EPOCH" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
    dpkg-deb --root-owner-group -Zxz --build "$root" "$out/${1}_${version}_$architecture.deb"
}

# The pages for users of the program, in the folders of this checkout. Links to other pages become their names in the sources; the
# list of pages loses their lines.
guide() {
    mkdir -p "$1/guide/pictures"
    for page in facilities glossary performance reliability security; do
        cp "docs/$page.md" "$1/"
    done
    cp docs/guide/*.md docs/guide/*.sh "$1/guide/"
    cp docs/guide/pictures/report.svg "$1/guide/pictures/"
    grep -v README.md docs/SUMMARY.md >"$1/README.md"
    for page in dependencies design releasing scale studies guide/c guide/embedding guide/python guide/window; do
        rm -f "$1/$page.md"
        sed -i "\|]($page\.md)|d" "$1/README.md"
        sed -i -E "s|\[([^]]*)\]\((\.\./)?${page#guide/}\.md(#[^)]*)?\)|\1 (docs/$page.md in the sources)|g" "$1"/*.md "$1"/guide/*.md
    done
    chmod -R u=rwX,go=rX "$1"
}

mkdir "$work/claviger"
cp -a "$staged/." "$work/claviger/"
strip "$work/claviger/usr/bin/"*
# Line tables are for debugging and stay in the build folder.
rm -rf "$work/claviger/usr/lib/debug"
mkdir "$work/claviger/usr/share/man/man8"
for helper in mount.claviger mount.fuse.claviger; do
    ln -sf ../bin/claviger "$work/claviger/usr/sbin/$helper"
    ln -s ../man1/claviger-mount.1.gz "$work/claviger/usr/share/man/man8/$helper.8.gz"
done
install -D -m 644 dist/systemd/claviger-lock@.service "$work/claviger/usr/lib/systemd/system/claviger-lock@.service"
tools/dependencies.py notices "$work/notices"
install -D -m 644 "$work/notices" "$work/claviger/usr/share/doc/claviger/NOTICES"
gzip -9 -n "$work/claviger/usr/share/doc/claviger/NOTICES"
guide "$work/claviger/usr/share/doc/claviger"

if [ -x "$work/claviger/usr/bin/claviger-window" ]; then
    for part in bin/claviger-window share/applications share/metainfo share/mime share/icons; do
        mkdir -p "$work/claviger-window/usr/$(dirname $part)"
        mv "$work/claviger/usr/$part" "$work/claviger-window/usr/$part"
    done
    # The window loads these at its start, so no program links to them.
    pack claviger-window "claviger (= $version), libegl1, libxkbcommon0, libxkbcommon-x11-0, libx11-6, libx11-xcb1, libxcursor1, libxi6, libwayland-client0" utils <dist/debian/claviger-window
fi
pack claviger '' utils <dist/debian/claviger
