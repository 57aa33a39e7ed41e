#!/usr/bin/env bash
# What it costs to have the keys of a folder in a process of their own: the same kind of folder of eCryptfs, in RAM, mounted in one process
# and with --isolate-keys, by turns in each round. Prints the median of the rounds for both, and the median of the ratios in each round.
# Usage, as root, from the root of the checkout: bench/key-process-folder.sh [ROUNDS [MIB [FILES]]]
set -euo pipefail
rounds=${1:-5}
mib=${2:-256}
files=${3:-5000}
measure=$(dirname "$0")/folder.py
claviger=${CLAVIGER:-${CARGO_TARGET_DIR:-target}/release/claviger}
dir=$(mktemp -d /dev/shm/claviger-key-process.XXXXXX)
cleanup() {
    for how in one isolated; do "$claviger" unmount "$dir/$how" >/dev/null 2>&1 || true; done
    rm -rf "$dir"
}
trap cleanup EXIT

printf %s secret >"$dir/pw"
for how in one isolated; do
    mkdir "$dir/$how" "$dir/lower.$how"
    options=(--format eCryptfs --password-file "$dir/pw")
    [ $how = one ] || options+=(--isolate-keys)
    "$claviger" mount "${options[@]}" "$dir/lower.$how" "$dir/$how" >/dev/null 2>&1
done
tests="write read-cold random-read-cold random-write create list-cold open-cold stat-cold remove"
for ((round = 0; round <= rounds; round++)); do
    for test in $tests; do
        for how in one isolated; do
            sync
            [[ $test != *-cold ]] || echo 3 >/proc/sys/vm/drop_caches
            result=$(python3 "$measure" "$test" "$dir/$how" "$mib" "$files")
            # The first round warms up.
            [ $round = 0 ] || echo "$result" >>"$dir/result.$test.$how"
        done
    done
    rm "$dir"/{one,isolated}/large
done
median() { sort -g | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'; }
echo "Bytes or operations a second in one process, isolated, and the ratio; medians of $rounds rounds"
for test in $tests; do
    result="$dir/result.$test"
    printf '%-18s %14.0f %14.0f   %.2f\n' "$test" "$(median <"$result.one")" "$(median <"$result.isolated")" \
        "$(paste "$result.isolated" "$result.one" | awk '{ print $1 / $2 }' | median)"
done
