#!/usr/bin/env bash
# Reencryption of a LUKS2 volume in the resilience mode checksum, beside what reading and writing the same file costs
# without encryption (dd over itself, flushed at the end), alternating. Prints MB/s of both (the median of the rounds,
# the lowest and the highest) and the median of the ratios. Usage: bench/reencrypt.sh [ROUNDS [MIB [SECTOR]]], from the
# root of the checkout; the file goes to $DIR (default: the current directory), which should be on the disk of interest.
# $CLAVIGER names the program, and $OPTIONS are for `claviger reencrypt`: --hotzone-size 256M.
set -euo pipefail
rounds=${1:-5} mib=${2:-1024} sector=${3:-4096}
claviger=${CLAVIGER:-target/release/claviger}
dir=$(mktemp -d "${DIR:-.}/claviger-reencrypt.XXXXXX")
trap 'rm -rf "$dir"' EXIT
printf %s secret >"$dir/pw"
"$claviger" create "$dir/luks" --format LUKS2 --size $(((mib + 16) << 20)) --sector-size "$sector" --quick \
    --kdf pbkdf2 --iterations 1000 --password-file "$dir/pw" 2>/dev/null
dd if=/dev/urandom of="$dir/luks" bs=1M seek=16 count="$mib" conv=notrunc,fsync status=none

rate() { # COMMAND…: MB/s of moving all the data once
    local from to; from=$(date +%s%N); "$@" >/dev/null 2>"$dir/errors" || { cat "$dir/errors" >&2; exit 1; }; to=$(date +%s%N)
    awk "BEGIN { print $mib * 1048576 * 1000 / ($to - $from) }"
}
plain() { dd if="$dir/luks" of="$dir/luks" bs=1M skip=16 seek=16 conv=notrunc,fsync status=none; }
reencrypt() {
    # shellcheck disable=SC2086
    "$claviger" reencrypt "$dir/luks" --yes --password-file "$dir/pw" --resilience checksum ${OPTIONS:-}
}

plain
for ((round = 0; round < rounds; round++)); do
    sync "$dir/luks"; p=$(rate plain)
    sync "$dir/luks"; r=$(rate reencrypt)
    echo "$p" >>"$dir/plain"; echo "$r" >>"$dir/reencrypt"
    awk "BEGIN { print $r / $p }" >>"$dir/ratio"
done
echo "$mib MiB, sectors of $sector bytes, $rounds rounds; MB/s"
for what in plain reencrypt ratio; do
    sort -g "$dir/$what" | awk -v n="$what" '
        { v[NR] = $1 } END { printf "%-12s %8.2f  (%.2f … %.2f)\n", n, v[int((NR + 1) / 2)], v[1], v[NR] }'
done
