#!/usr/bin/env bash
# The time to try a password on a LUKS2 volume with Argon2id: cryptsetup, and ours (`claviger info` opens the volume,
# describes it and exits), alternating on the same volume, each from program start to exit. Milliseconds, and the median
# of the ratios. Usage: bench/opening.sh [ROUNDS [PASSES [MIB]]], from the root of the checkout.
set -euo pipefail
rounds=${1:-7} passes=${2:-4} mib=${3:-1024}
claviger=${CLAVIGER:-target/release/claviger}
dir=$(mktemp -d /dev/shm/claviger-opening.XXXXXX)
trap 'rm -rf "$dir"' EXIT
printf %s secret >"$dir/pw"
truncate -s 32M "$dir/luks"
cryptsetup luksFormat --batch-mode --type luks2 --pbkdf argon2id --pbkdf-force-iterations "$passes" \
    --pbkdf-memory $((mib << 10)) --pbkdf-parallel "$(nproc | awk '{ print $1 < 4 ? $1 : 4 }')" --key-file "$dir/pw" "$dir/luks"

ms() { # COMMAND…
    local from to; from=$(date +%s%N); "$@" >/dev/null 2>&1; to=$(date +%s%N)
    awk "BEGIN { print ($to - $from) / 1e6 }"
}
theirs() { cryptsetup open --test-passphrase --key-file "$dir/pw" "$dir/luks"; }
ours() { "$claviger" info "$dir/luks" --password-file "$dir/pw"; }

for ((round = 0; round < rounds; round++)); do
    t=$(ms theirs); o=$(ms ours)
    echo "$t" >>"$dir/cryptsetup"; echo "$o" >>"$dir/claviger"
    awk "BEGIN { print $o / $t }" >>"$dir/ratio"
done
echo "Argon2id, $passes passes over $mib MiB, $rounds rounds; ms"
for what in cryptsetup claviger ratio; do
    sort -g "$dir/$what" | awk -v n="$what" '
        { v[NR] = $1 } END { printf "%-12s %8.2f  (%.2f … %.2f)\n", n, v[int((NR + 1) / 2)], v[1], v[NR] }'
done
