#!/usr/bin/env bash
# What it costs to have the keys in a process of their own: the same LUKS2 volume (AES-256-XTS, sectors of 4096 bytes), in RAM, served in
# one process, with --isolate-keys, and with --keys-in-registers besides where the processor has VAES with AVX-512, by turns in each round.
# Over NBD and as a file over FUSE, 1 MiB and 4 KiB at two queue depths. Prints the median of the rounds for each, and the medians of the
# ratios in each round: isolated to one process, and registers to isolated.
# Usage, as root for FUSE, from the root of the checkout: bench/key-process.sh [ROUNDS [SECONDS]]; it needs fio with the nbd engine.
set -euo pipefail
rounds=${1:-5}
seconds=${2:-2}
claviger=${CLAVIGER:-${CARGO_TARGET_DIR:-target}/release/claviger}
hows=
dir=$(mktemp -d /dev/shm/claviger-key-process.XXXXXX)
size=$((256 << 20))
pids=()
cleanup() {
    for how in $hows; do "$claviger" unmount "$dir/mnt.$how" 2>/dev/null || true; done
    kill "${pids[@]}" 2>/dev/null || true
    wait
    rm -rf "$dir"
}
trap cleanup EXIT

printf %s secret >"$dir/pw"
hows="one isolated"
if grep -qw vaes /proc/cpuinfo && grep -qw avx512bw /proc/cpuinfo; then hows+=" registers"; fi
ways=nbd
[ "$(id -u)" != 0 ] || ways="nbd fuse"
for way in $ways; do
    for how in $hows; do
        "$claviger" create "$dir/$way.$how" --size $((size + (16 << 20))) --format LUKS2 --cipher aes-xts-plain64 --sector-size 4096 --quick \
            --kdf pbkdf2 --iterations 1000 --password-file "$dir/pw" 2>/dev/null >/dev/null
        options=(--password-file "$dir/pw")
        [ $how = one ] || options+=(--isolate-keys)
        [ $how != registers ] || options+=(--keys-in-registers)
        if [ $way = nbd ]; then
            "$claviger" serve "$dir/$way.$how" "${options[@]}" --socket "$dir/s.$how" >/dev/null & pids+=($!)
            for _ in $(seq 100); do [ -S "$dir/s.$how" ] && break; sleep 0.1; done
        else
            mkdir "$dir/mnt.$how"
            "$claviger" mount "$dir/$way.$how" "$dir/mnt.$how" "${options[@]}" --filesystem none >/dev/null
        fi
    done
done

measure() { # way, how, mode, block size, depth: MiB/s
    local engine
    case $1 in
        nbd) engine=(--ioengine=nbd --uri="nbd+unix:///?socket=$dir/s.$2") ;;
        fuse) engine=(--ioengine=libaio --direct=1 --filename="$dir/mnt.$2/volume") ;;
    esac
    fio --name=t "${engine[@]}" --rw="$3" --bs="$4" --iodepth="$5" --size=$size --time_based --runtime="$seconds" \
        --iomem_align=4096 --output-format=json --output="$dir/fio.json" >/dev/null
    python3 -c 'import json, sys; j = json.load(open(sys.argv[1]))["jobs"][0]; print((j["read"]["bw"] + j["write"]["bw"]) / 1024)' \
        "$dir/fio.json"
}

tests="read:1M:4 write:1M:4 randread:4k:1 randwrite:4k:1 randread:4k:16 randwrite:4k:16"
for way in $ways; do
    for how in $hows; do measure $way $how write 1M 4 >/dev/null; done # warm: every page is there
done
for ((round = 0; round < rounds; round++)); do
    for way in $ways; do
        for what in $tests; do
            IFS=: read -r mode block depth <<<"$what"
            for how in $hows; do
                measure $way $how "$mode" "$block" "$depth" >>"$dir/result.$way.$what.$how"
            done
        done
    done
done
median() { sort -g | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'; }
echo "MiB/s: $hows; then the ratios; medians of $rounds rounds"
for way in $ways; do
    for what in $tests; do
        result="$dir/result.$way.$what"
        printf '%-24s' "$way $what"
        for how in $hows; do printf ' %9.1f' "$(median <"$result.$how")"; done
        before=one
        for how in ${hows#one}; do
            printf '   %.2f' "$(paste "$result.$how" "$result.$before" | awk '{ print $1 / $2 }' | median)"
            before=$how
        done
        echo
    done
done
echo "memory of each, and of what holds the keys, in KiB"
for pid in "${pids[@]}"; do
    for process in $pid $(pgrep -P "$pid" || true); do
        awk -v n="$process" '/^(Pss|Private_Dirty):/ { printf "%s %s %s  ", n, $1, $2 } END { print "" }' "/proc/$process/smaps_rollup"
    done
done
