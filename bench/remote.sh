#!/usr/bin/env bash
# Reads of a LUKS2 volume (AES-256-XTS, sectors of 4096 bytes) in nbdkit's memory over a Unix socket, by `claviger cat` to nowhere and through a pipe, beside
# nbdcopy of the same export to nowhere. Prints GB/s, medians of rounds by turns, and medians of the ratios to nbdcopy in each round.
# Usage: bench/remote.sh [ROUNDS [PROGRAM…]], from the root of the checkout.
set -euo pipefail
rounds=${1:-5}; [ $# -eq 0 ] || shift
programs=("${@:-target/release/claviger}")
dir=$(mktemp -d /dev/shm/claviger-remote.XXXXXX)
pid=
trap 'kill $pid 2>/dev/null || true; wait; rm -rf "$dir"' EXIT
size=$((2 << 30))
nbdkit -f -U "$dir/s" memory $size & pid=$!
while [ ! -S "$dir/s" ]; do sleep 0.1; done
uri="nbd+unix:///?socket=$dir/s"
echo -n secret >"$dir/pw"
head -c $size /dev/urandom >"$dir/volume"
cryptsetup luksFormat -q --sector-size 4096 --pbkdf pbkdf2 --pbkdf-force-iterations 1000 "$dir/volume" "$dir/pw"
nbdcopy "$dir/volume" "$uri"; rm "$dir/volume"
gbps() { local from to; from=$(date +%s%N); "$@"; to=$(date +%s%N); awk "BEGIN { print $size / ($to - $from) }"; }
nowhere() { "$1" cat --password-file "$dir/pw" "$uri" >/dev/null; }
pipe() { "$1" cat --password-file "$dir/pw" "$uri" | cat >/dev/null; }
one() { "$1" cat --password-file "$dir/pw" --length 4096 "$uri" >/dev/null; }
for ((r = 0; r < rounds; r++)); do
    echo "nbdcopy $(gbps nbdcopy "$uri" null:)"
    for i in "${!programs[@]}"; do
        echo "cat$i $(gbps nowhere "${programs[i]}")"
        echo "pipe$i $(gbps pipe "${programs[i]}")"
        echo "open$i $(gbps one "${programs[i]}")"
    done
done | python3 -c '
import statistics, sys
got = {}
for line in sys.stdin:
    what, rate = line.split()
    got.setdefault(what, []).append(float(rate))
for what, rates in got.items():
    ratio = statistics.median(a / b for a, b in zip(rates, got["nbdcopy"]))
    print(f"{what:8} {statistics.median(rates):.2f} GB/s ({min(rates):.2f}-{max(rates):.2f}), {ratio:.2f}")
'
