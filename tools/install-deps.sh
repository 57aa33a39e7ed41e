#!/bin/sh
# Installs missing packages on Debian and its derivatives, without questions: for `make try`, `make test`, the bindings' tests, the
# window's tests and pictures, and packages.
#   tools/install-deps.sh try|test|bindings|window|pictures|deb|static
set -eu

# program:package, in pairs. A C compiler links Rust programs.
try='cc:build-essential mformat:mtools nbdcopy:libnbd-bin'
test="$try"'
 cryptsetup:cryptsetup-bin dmsetup:dmsetup linux.uml:user-mode-linux modprobe:kmod tcplay:tcplay
 losetup:mount fusermount3:fuse3 mount.fuse3:fuse3 fuse2fs:fuse2fs ntfs-3g:ntfs-3g
 blkid:util-linux setpriv:util-linux setsid:util-linux unshare:util-linux sfdisk:fdisk timeout:coreutils
 qemu-img:qemu-utils qemu-io:qemu-utils nbdinfo:libnbd-bin nbdsh:python3-libnbd nbd-client:nbd-client fio:fio
 mkfs.vfat:dosfstools fsck.vfat:dosfstools mkfs.exfat:exfatprogs mount.exfat-fuse:exfat-fuse mkntfs:ntfs-3g ntfscp:ntfs-3g mkfs.xfs:xfsprogs mkfs.btrfs:btrfs-progs setfacl:acl
 mkfs.ext4:e2fsprogs mke2fs:e2fsprogs e2fsck:e2fsprogs debugfs:e2fsprogs mkswap:util-linux lvm:lvm2 mdadm:mdadm tar:tar xz:xz-utils
 systemd-cryptenroll:systemd argon2:argon2 mcopy:mtools gpg:gnupg gpgconf:gnupg openssl:openssl softhsm2-util:softhsm2 pkcs11-tool:opensc
 swtpm:swtpm tpm2_unseal:tpm2-tools clevis:clevis clevis-luks-bind:clevis-luks clevis-encrypt-tpm2:clevis-tpm2 jose:jose socat:socat
 bonnie++:bonnie++ dbench:dbench hdparm:hdparm sqlite3:sqlite3 gocryptfs:gocryptfs fido2-assert:fido2-tools ewfacquirestream:ewf-tools ewfexport:ewf-tools encfs:encfs cryfs:cryfs securefs:securefs nbdkit:nbdkit qemu-nbd:qemu-utils sshd:openssh-server
 mount.ecryptfs:ecryptfs-utils ecryptfs-add-passphrase:ecryptfs-utils dislocker-fuse:dislocker bdemount:libbde-utils fvdemount:libfvde-utils dmg2img:dmg2img curl:curl debootstrap:debootstrap chromium:chromium
 python3:python3 strace:strace man:man-db zsh:zsh fish:fish aarch64-linux-gnu-gcc:gcc-aarch64-linux-gnu qemu-aarch64:qemu-user'

# Beside what tools/bindings-requirements.txt names; the sanitizers come with the compiler.
bindings='cc:build-essential pkg-config:pkgconf cryptsetup:cryptsetup-bin openssl:openssl mmd:mtools mkfs.vfat:dosfstools python3:python3'
# 3 MB of packages beyond those of the tests.
window='cc:build-essential fusermount3:fuse3 mkfs.vfat:dosfstools mkfs.ext4:e2fsprogs desktop-file-validate:desktop-file-utils appstreamcli:appstream dbus-daemon:dbus-daemon'
# Some 150 MB, including a software renderer.
pictures="$try"' Xvfb:xvfb Xvfb:libgl1-mesa-dri Xvfb:libegl1 xvfb-run:xvfb xauth:xauth xdotool:xdotool import:imagemagick fusermount3:fuse3 mkfs.vfat:dosfstools dbus-run-session:dbus-daemon'

deb='dpkg-shlibdeps:dpkg-dev lintian:lintian debootstrap:debootstrap objcopy:binutils unshare:util-linux'

static='cc:build-essential musl-gcc:musl-tools'

case ${1-} in
    try) wanted=$try ;;
    test) wanted=$test ;;
    bindings) wanted=$bindings ;;
    window) wanted=$window ;;
    pictures) wanted=$pictures ;;
    deb) wanted=$deb ;;
    static) wanted=$static ;;
    *) echo "usage: $0 try|test|bindings|window|pictures|deb|static" >&2; exit 1 ;;
esac
for_tests=$([ "$1" != test ] || echo yes)
with_python=$([ "$1" != test ] && [ "$1" != bindings ] || echo yes)

# Python packages in a folder of their own: for the tests, readers of BitLocker, DPAPI and Cryptomator, where
# crates/testkit/src/bitlocker/oracles.rs expects them; for the bindings, what builds and tests them.
python_modules() {
    [ -n "$with_python" ] || return 0
    case $1 in
        test) needed='pybde, dissect.fve, impacket.dpapi, pycryptomator' ;;
        bindings) needed='maturin, pytest, fsspec' ;;
    esac
    place=$HOME/.cache/claviger-$1-python
    list=$(dirname "$0")/$1-requirements.txt
    cmp -s "$list" "$place/installed.txt" && "$place/bin/python3" -c "import $needed" 2>/dev/null && return 0
    echo "Installing into $place: $(sed -n 's/==.*//p' "$list" | tr '\n' ' ')" >&2
    # Built beside it first, so nobody finds it incomplete.
    rm -rf "$place.$$"
    python3 -m venv "$place.$$"
    "$place.$$/bin/python3" -m pip -q --disable-pip-version-check install --no-deps --only-binary :all: --require-hashes -r "$list" >&2
    cp "$list" "$place.$$/installed.txt"
    rm -rf "$place"
    mv -T "$place.$$" "$place"
}

# Encrypted disk images that macOS made, from the tests of two packages of crates.io, where crates/engine/tests/it/volumes/dmg.rs
# expects them. A subshell: it changes the arguments.
test_images() (
    [ -n "$for_tests" ] || return 0
    place=$HOME/.cache/claviger-test-images
    mkdir -p "$place"
    for image in \
        'dmgwiz-1.1.0 7091fb6813de08ee6a2e97592355e4f00c84dc3444a8f7e5807b7ea87094007f tests/input_aes256.dmg' \
        'fstool-0.4.31 5bdfa1f8582e5c84235fd3352b9399b088e71d3fe2e1023536a49d7319bcad49 src/block/dmg/testdata/encrcdsa_aes128_fat12_hunter2.dmg'; do
        # shellcheck disable=SC2086 # three words
        set -- $image
        file=$place/${3##*/}
        [ ! -f "$file" ] || continue
        echo "Downloading $1 for ${3##*/}" >&2
        curl -fsSL --retry 3 -o "$file.crate.$$" "https://static.crates.io/crates/${1%-*}/$1.crate"
        echo "$2  $file.crate.$$" | sha256sum -c --quiet - >&2
        tar -xzOf "$file.crate.$$" "$1/$3" >"$file.$$"
        mv "$file.$$" "$file"
        rm "$file.crate.$$"
    done
)

PATH=$PATH:/usr/sbin:/sbin
missing=
for pair in $wanted; do
    command -v "${pair%%:*}" >/dev/null || missing="$missing ${pair#*:}"
done
# A separate package on Debian, without a program.
[ -z "$with_python" ] || python3 -c 'import ensurepip' 2>/dev/null || missing="$missing python3-venv"
# Their programs are outside PATH: two servers, and the module by which tpm2-tools and systemd reach swtpm.
[ -z "$for_tests" ] || [ -x /usr/libexec/tangd ] || missing="$missing tang"
[ -z "$for_tests" ] || ls /usr/lib/*/libtss2-tcti-swtpm.so.0 >/dev/null 2>&1 || missing="$missing libtss2-tcti-swtpm0"
[ -z "$for_tests" ] || ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || missing="$missing postgresql"
# nbdkit's plugin for S3 and its Python packages.
[ -z "$for_tests" ] || ls /usr/lib/*/nbdkit/plugins/nbdkit-S3-plugin >/dev/null 2>&1 || missing="$missing nbdkit-plugin-python"
[ -z "$for_tests" ] || /usr/bin/python3 -c 'import boto3' 2>/dev/null || missing="$missing python3-boto3"
# Libraries for AArch64, which its compiler only recommends.
[ -z "$for_tests" ] || [ -e /usr/aarch64-linux-gnu/lib/libc.so ] || missing="$missing libc6-dev-arm64-cross"
[ -n "$missing" ] || { python_modules "$1"; test_images; exit 0; }

if ! command -v apt-get >/dev/null; then
    echo "Please install by hand:$missing" >&2
    exit 1
fi
root=
if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null || { echo "Please install as root:$missing" >&2; exit 1; }
    root='sudo -n'
fi
echo "Installing:$missing" >&2

# Another apt may be running. apt waits for dpkg's lock by itself, but not for those of its lists and archives (apt 2.6).
patience=600
errors=$(mktemp)
trap 'rm -f "$errors"' EXIT
apt() {
    end=$(($(date +%s) + patience))
    while :; do
        status=0
        $root env LC_ALL=C DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=$patience "$@" \
            </dev/null >&2 2>"$errors" || status=$?
        [ $status != 0 ] && grep -q 'Could not get lock' "$errors" && [ "$(date +%s)" -lt "$end" ] || break
        echo "Waiting for another apt." >&2
        sleep 5
    done
    cat "$errors" >&2
    return $status
}
apt update
# shellcheck disable=SC2086 # a list of words
apt install -y --no-install-recommends $missing
python_modules "$1"
test_images
