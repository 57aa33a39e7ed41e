#!/usr/bin/env bash
# What a developer does in a mounted folder, side by side in one run: the bare folder, the same through our mount of eCryptfs, and through
# gocryptfs. The source of this program is unpacked (tar x, and sync), listed (`ls -lR`, cold), and read (`grep -r`, cold), a small
# program in C is compiled (make -j2: 80 files and as many headers, cold), and all is removed. Prints a line a folder and step, the median
# of the rounds in seconds and the lowest and highest, and then how many times as fast ours is, the median of its value in each round.
# Usage, as root, from the root of the checkout, after `cargo build --release -p claviger`: bench/source-tree.sh [ROUNDS]
# The folders are made in $BENCH_DIR, or else in /var/tmp, which should be on a disk.
set -euo pipefail
rounds=${1:-5}
program=${CARGO_TARGET_DIR:-target}/release/claviger
dir=$(mktemp -d "${BENCH_DIR:-/var/tmp}/claviger-source.XXXXXX")
contenders="bare ours gocryptfs"
cleanup() {
    for name in ours gocryptfs; do
        ! mountpoint -q "$dir/$name" || timeout 60 umount "$dir/$name" || umount -l "$dir/$name"
    done
    wait
    rm -rf "$dir"
}
trap cleanup EXIT

mkdir "$dir"/{bare,ours,gocryptfs,lower.ours,lower.gocryptfs,c}
echo bench >"$dir/password"
git archive HEAD >"$dir/source.tar"
{
    echo "all: program"
    echo "program: \$(patsubst %,part%.o,\$(shell seq 80)); cc -o program *.o"
} >"$dir/c/Makefile"
for ((i = 1; i <= 80; i++)); do
    echo "int part$i(int);" >"$dir/c/part$i.h"
    {
        printf '#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n'
        for ((j = 1; j <= 80; j++)); do echo "#include \"part$j.h\""; done
        echo "int part$i(int n) { return n < 1 ? $i : part$((i % 80 + 1))(n - 1) + (int)strlen(getenv(\"HOME\")); }"
        [ $i != 1 ] || echo 'int main(void) { printf("%d\n", part1(1)); return 0; }'
    } >"$dir/c/part$i.c"
done

"$program" mount --foreground --format eCryptfs --password-file "$dir/password" "$dir/lower.ours" "$dir/ours" </dev/null >"$dir/ours.out" 2>&1 &
gocryptfs -q -init -scryptn 10 -passfile "$dir/password" "$dir/lower.gocryptfs"
gocryptfs -q -nosyslog -passfile "$dir/password" "$dir/lower.gocryptfs" "$dir/gocryptfs"
for name in ours gocryptfs; do
    for _ in $(seq 100); do ! mountpoint -q "$dir/$name" || break; sleep 0.1; done
    mountpoint -q "$dir/$name" || { echo "nothing was mounted on $dir/$name: $(cat "$dir/ours.out")" >&2; exit 1; }
done

step() {
    case $1 in
        unpack) mkdir "$2/source" && tar -xf "$dir/source.tar" -C "$2/source" && sync -f "$2/source" ;;
        list) ls -lR "$2/source" >/dev/null ;;
        grep) grep -r "no such words anywhere" "$2/source" || true ;;
        compile) make -s -j2 -C "$2/c" && "$2/c/program" >/dev/null ;;
        remove) rm -r "$2/source" "$2/c" ;;
    esac
}

for ((round = 0; round <= rounds; round++)); do
    for name in $contenders; do cp -r "$dir/c" "$dir/$name/c"; done
    for step in unpack list grep compile remove; do
        for name in $contenders; do
            sync
            [[ $step = unpack || $step = remove ]] || echo 3 >/proc/sys/vm/drop_caches
            begin=$(date +%s.%N)
            step $step "$dir/$name"
            # The first round warms up.
            [ $round = 0 ] || echo "$step $name $round $begin $(date +%s.%N)" >>"$dir/results"
        done
    done
done

python3 - "$dir/results" <<'EOF'
import sys
from statistics import median
rows, steps = {}, []
for line in open(sys.argv[1]):
    step, name, round, begin, end = line.split()
    rows.setdefault((step, name), {})[round] = float(end) - float(begin)
    if step not in steps:
        steps.append(step)
for step in steps:
    for name in ("bare", "ours", "gocryptfs"):
        values = sorted(rows[step, name].values())
        print(f"{step:8} {name:10} {median(values):6.2f} s  ({values[0]:.2f} … {values[-1]:.2f})")
print()
for step in steps:
    for other in ("gocryptfs", "bare"):
        times = [rows[step, other][r] / rows[step, "ours"][r] for r in rows[step, "ours"]]
        print(f"{step:8} ours is {median(times):.2f} times as fast as {other}  ({min(times):.2f} … {max(times):.2f})")
EOF
