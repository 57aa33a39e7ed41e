#!/usr/bin/env bash
# A line with latency. 10,000 small files of an ext4 in a LUKS2 volume, copied out by `claviger cp`, beside nbdfuse, a loop device and cp for the same file system
# in clear; and one large read of the volume by `claviger cat`, in per cent of what the line gives. nbdkit's filters are the line: each request takes
# 5 ms, and 1 Gbit/s, of which no more than a hundredth of a second is let through at once (2 s by default: all of what is read here). As root.
# Usage: bench/far.sh [PROGRAM], from the root of the checkout.
set -euo pipefail
claviger=${1:-target/release/claviger}
dir=$(mktemp -d /dev/shm/claviger-far.XXXXXX)
pids=()
trap 'umount "$dir/m" 2>/dev/null || true; [ -z "${loop-}" ] || losetup -d "$loop"; umount "$dir/fuse" 2>/dev/null || true; kill "${pids[@]}" 2>/dev/null || true; wait; rm -rf "$dir"' EXIT
mkdir "$dir"/{files,m,fuse}
for ((n = 0; n < 10000; n++)); do mkdir -p "$dir/files/$((n / 100))"; head -c $((1000 + n % 6000)) /dev/urandom >"$dir/files/$((n / 100))/$n"; done
truncate -s 256M "$dir/clear"; mkfs.ext4 -q -d "$dir/files" "$dir/clear"
head -c 272M /dev/urandom >"$dir/luks"; echo -n secret >"$dir/pw"
cryptsetup luksFormat -q --pbkdf pbkdf2 --pbkdf-force-iterations 1000 "$dir/luks" "$dir/pw"
"$claviger" serve --password-file "$dir/pw" "$dir/luks" --run "nbdcopy '$dir/clear' \"\$uri\"" >/dev/null
line() { nbdkit -f -U "$dir/$1.sock" --filter=delay --filter=rate file "$dir/$1" rdelay=5ms rate=1G burstiness=0.01 & pids+=($!); while [ ! -S "$dir/$1.sock" ]; do sleep 0.1; done; }
line clear; line luks
uri() { echo "nbd+unix:///?socket=$dir/$1.sock"; }
seconds() { local from to; from=$(date +%s%N); "$@" >"$dir/said" 2>&1 || { cat "$dir/said" >&2; exit 1; }; to=$(date +%s%N); awk "BEGIN { printf \"%.2f\", ($to - $from) / 1e9 }"; }
kernel() {
    nbdfuse "$dir/fuse/clear" "$(uri clear)" & pids+=($!)
    while [ ! -e "$dir/fuse/clear" ]; do sleep 0.1; done
    loop=$(losetup --find --show --read-only "$dir/fuse/clear"); mount -o ro,noload "$loop" "$dir/m"; cp -r "$dir/m" "$dir/kernel"
}
large() { "$claviger" cat --password-file "$dir/pw" "$(uri luks)" >/dev/null; }
echo "claviger cp: $(seconds "$claviger" cp -r --password-file "$dir/pw" "$(uri luks)" :/ "$dir/ours") s"
echo "nbdfuse, loop, cp: $(seconds kernel) s"
diff -r "$dir/files" "$dir/ours" | grep -v lost+found | head -3 || true
echo "claviger cat: $(seconds large) s for 256 MiB; the line takes 2.15"
echo "nbdcopy: $(seconds nbdcopy "$(uri luks)" null:) s"
