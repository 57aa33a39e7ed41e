#!/usr/bin/env bash
# A mounted folder, side by side in one run: the bare folder, the same kind of folder through our mount over /dev/fuse and over io_uring, and
# through gocryptfs, which encrypts. One large file written and read, in sequence and at random places, and thousands of small ones made, opened
# and read, looked at, and listed, with what the kernel has in its caches (warm) and without (cold). Prints a line a folder and test, the
# median of the rounds and the lowest and highest, and then the ratios, each the median of its value in each round.
# Usage, as root, from the root of the checkout: bench/folder.sh COMMAND [ROUNDS [MIB [FILES]]], where COMMAND mounts LOWER on DIR:
#   bench/folder.sh 'target/release/claviger mount --format clear LOWER DIR'
#   bench/folder.sh 'target/release/claviger mount --format eCryptfs --password-file PASSWORD LOWER DIR'
# The folders are made in $BENCH_DIR, or else in /var/tmp: on a disk, since that is where such folders are.
set -euo pipefail
command=${1:?the command that mounts LOWER on DIR}
rounds=${2:-5}
mib=${3:-1024}
files=${4:-10000}
measure=$(dirname "$0")/folder.py
dir=$(mktemp -d "${BENCH_DIR:-/var/tmp}/claviger-folder.XXXXXX")
contenders="bare ours uring gocryptfs"
switch=/sys/module/fuse/parameters/enable_uring
before=$(cat $switch)
pids=()
cleanup() {
    echo "$before" >$switch
    for name in ours uring gocryptfs; do
        ! mountpoint -q "$dir/$name" || timeout 60 umount "$dir/$name" || umount -l "$dir/$name"
    done
    for pid in "${pids[@]}"; do wait "$pid" || true; done
    rm -rf "$dir"
}
trap cleanup EXIT

mkdir "$dir"/{bare,ours,uring,gocryptfs,lower.ours,lower.uring,lower.gocryptfs}
command=${command//PASSWORD/$dir/password}
echo bench >"$dir/password"
for name in ours uring; do
    [ $name = uring ] && echo Y >$switch || echo N >$switch
    one=${command//LOWER/$dir/lower.$name}
    # It may stay in front or go to the background by itself.
    bash -c "${one//DIR/$dir/$name}" </dev/null >"$dir/$name.out" 2>&1 &
    pids+=($!)
    for _ in $(seq 100); do ! mountpoint -q "$dir/$name" || break; sleep 0.1; done
done
gocryptfs -q -init -scryptn 10 -passfile "$dir/password" "$dir/lower.gocryptfs"
gocryptfs -q -nosyslog -passfile "$dir/password" "$dir/lower.gocryptfs" "$dir/gocryptfs"
for name in ours uring gocryptfs; do
    mountpoint -q "$dir/$name" || { echo "nothing was mounted on $dir/$name: $(cat "$dir/$name.out")" >&2; exit 1; }
done

tests="write read-cold read-warm random-read-cold random-write create list-cold open-cold open-warm stat-cold stat-warm remove"
for ((round = 0; round <= rounds; round++)); do
    for test in $tests; do
        for name in $contenders; do
            sync
            [[ $test != *-cold ]] || echo 3 >/proc/sys/vm/drop_caches
            # What the test before left in the kernel, the cold ones of others have dropped.
            [[ $test != *-warm ]] || timeout 600 python3 "$measure" "$test" "$dir/$name" "$mib" "$files" >/dev/null
            result=$(timeout 600 python3 "$measure" "$test" "$dir/$name" "$mib" "$files")
            # The first round warms up.
            [ $round = 0 ] || echo "$test $name $round $result" >>"$dir/results"
        done
    done
    rm "$dir"/{bare,ours,uring,gocryptfs}/large
done

python3 - "$dir/results" <<'EOF'
import sys
from statistics import median
rows, tests = {}, {}
for line in open(sys.argv[1]):
    test, name, round, value = line.split()
    rows.setdefault((test, name), {})[round] = float(value)
    tests.setdefault(test, []).append(name) if name not in tests.get(test, []) else None
for test, names in tests.items():
    scale, unit = (1e9, "GB/s") if test.startswith(("read", "write")) else (1e3, "thousand/s")
    for name in names:
        values = sorted(value / scale for value in rows[test, name].values())
        print(f"{test:12} {name:12} {median(values):8.2f} {unit:10} ({values[0]:.2f} … {values[-1]:.2f})")
print()
def ratio(test, a, b, target):
    per_round = [rows[test, a][r] / rows[test, b][r] for r in rows[test, a]]
    print(f"{test:12} {a} / {b}: {median(per_round):.2f}  ({min(per_round):.2f} … {max(per_round):.2f}), target {target}")
for test in tests:
    ratio(test, "ours", "bare", 0.8 if test.startswith(("read", "write")) else "none")
    ratio(test, "gocryptfs", "bare", "none")
    ratio(test, "ours", "gocryptfs", 2 if test.startswith(("open", "stat")) else "none")
    ratio(test, "uring", "gocryptfs", "none")
    ratio(test, "uring", "ours", "none")
EOF
