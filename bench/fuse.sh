#!/usr/bin/env bash
# The mounted image file, side by side in one run: our server with a plain file and with its AES-256-XTS plaintext, over
# /dev/fuse and over io_uring; a plain file served by the crate fuser with one thread and with two; and ext4 on a loop
# device on these (but fuser with one thread) and on the plain file itself. All files are in RAM. Prints one line per server and
# test (the median of the rounds, the lowest and the highest), then the ratios, each the median of the rounds.
# Usage, as root, from the root of the checkout: bench/fuse.sh [ROUNDS [SECONDS]]: SECONDS is the length of each test.
set -euo pipefail
rounds=${1:-5}
seconds=${2:-3}
target=${CARGO_TARGET_DIR:-target}
serve=${SERVE:-$target/release/examples/fuse_serve}
fuser=${FUSER:-${CARGO_TARGET_DIR:-bench/fuser/target}/release/claviger-bench-fuser}
[ -x "$serve" ] || cargo build --release -p claviger-serve --example fuse_serve
[ -x "$fuser" ] || cargo build --release --manifest-path bench/fuser/Cargo.toml
dir=$(mktemp -d /dev/shm/claviger-fuse.XXXXXX)
size=$((512 << 20))
before=$(cat /sys/module/fuse/parameters/enable_uring)
echo Y >/sys/module/fuse/parameters/enable_uring

servers="plain-device xts-device plain-uring xts-uring fuser-1 fuser-2"
stacks="file plain-device xts-device plain-uring xts-uring fuser-2"
loops=()
pids=()
cleanup() {
    for device in "${loops[@]}"; do
        umount "$dir/inside.${device#*=}" 2>/dev/null || true
        losetup -d "${device%%=*}" || true
    done
    exec 9>&- # our servers stop
    for server in $servers; do timeout 20 umount "$dir/$server" 2>/dev/null || umount -l "$dir/$server" 2>/dev/null || true; done
    for pid in "${pids[@]}"; do wait "$pid" || true; done
    echo "$before" >/sys/module/fuse/parameters/enable_uring
    rm -rf "$dir"
}
trap cleanup EXIT
mkfifo "$dir/stop"
exec 9<>"$dir/stop"

head -c $size /dev/urandom >"$dir/backing.file"
for server in $servers; do
    mkdir "$dir/$server"
    cp "$dir/backing.file" "$dir/backing.$server"
    case $server in
        fuser-*) "$fuser" "$dir/$server" "$dir/backing.$server" "${server#*-}" 9>&- & ;;
        plain-*) "$serve" "$dir/$server" "$dir/backing.$server" "${server#*-}" <"$dir/stop" >/dev/null 9>&- & ;;
        xts-*) "$serve" "$dir/$server" "$dir/backing.$server" xts "${server#*-}" <"$dir/stop" >/dev/null 9>&- & ;;
    esac
    pids+=($!)
    for _ in $(seq 100); do mountpoint -q "$dir/$server" && break; sleep 0.1; done
done

# file, mode, block, jobs, further options: bytes per second
measure() {
    timeout 120 fio --name=t --filename="$1" --rw="$2" --bs="$3" --numjobs="$4" --size=$size --time_based \
        --runtime="$seconds" --ioengine=psync --iomem_align=4096 --allow_file_create=0 --group_reporting \
        --output-format=json --output="$dir/fio.json" "${@:5}" >/dev/null
    python3 -c 'import json, sys; j = json.load(open(sys.argv[1]))["jobs"][0]; print(j["read"]["bw_bytes"] + j["write"]["bw_bytes"])' \
        "$dir/fio.json"
}
tests="read:1m:1 write:1m:1 randread:4k:1 randwrite:4k:1 randread:4k:4 randwrite:4k:4"
for ((round = 0; round <= rounds; round++)); do
    for what in $tests; do
        IFS=: read -r mode block jobs <<<"$what"
        for server in $servers; do
            result=$(measure "$dir/$server/volume" "$mode" "$block" "$jobs")
            # The first round is a warm-up.
            [ $round = 0 ] || echo "$what $server $round $result" >>"$dir/results"
        done
    done
done

# Each makes its own: the ciphertext of a file system would not be one.
fio_size=$((size * 3 / 4))
for stack in $stacks; do
    image=$dir/$stack/volume
    [ "$stack" != file ] || image=$dir/backing.file
    device=$(losetup --find --show --direct-io=on "$image" 2>/dev/null || losetup --find --show "$image")
    loops+=("$device=$stack")
    mkfs.ext4 -q -E lazy_itable_init=0,lazy_journal_init=0,nodiscard "$device"
    mkdir "$dir/inside.$stack"
    mount "$device" "$dir/inside.$stack"
    head -c $fio_size /dev/urandom >"$dir/inside.$stack/file"
done
sync
size=$fio_size
loop_tests="read:1m:1:--direct=1 write:1m:1:--direct=1 write:1m:1:--end_fsync=1 randread:4k:4:--direct=1 randwrite:4k:4:--direct=1 randwrite:4k:1:--direct=1,--ioengine=libaio,--iodepth=16"
for ((round = 0; round <= rounds; round++)); do
    for what in $loop_tests; do
        IFS=: read -r mode block jobs more <<<"$what"
        for stack in $stacks; do
            # shellcheck disable=SC2086
            result=$(measure "$dir/inside.$stack/file" "$mode" "$block" "$jobs" ${more//,/ })
            [ $round = 0 ] || echo "ext4:$what $stack $round $result" >>"$dir/results"
        done
    done
done

python3 - "$dir/results" <<'EOF'
import sys
from statistics import median
rows, tests = {}, {}
for line in open(sys.argv[1]):
    test, server, round, value = line.split()
    rows.setdefault((test, server), {})[round] = float(value)
    tests.setdefault(test, []).append(server) if server not in tests.get(test, []) else None
for test, servers in tests.items():
    small = ":4k:" in test
    for server in servers:
        values = sorted(v / (4096e3 if small else 1e9) for v in rows[test, server].values())
        unit = "thousand/s" if small else "GB/s"
        print(f"{test:32} {server:14} {median(values):8.2f} {unit:10} ({values[0]:.2f} … {values[-1]:.2f})")
def ratio(test, a, b, target):
    per_round = [rows[test, a][r] / rows[test, b][r] for r in rows[test, a]]
    print(f"{test:32} {a} / {b}: {median(per_round):.2f}  ({min(per_round):.2f} … {max(per_round):.2f}), target {target}")
print()
for test in tests:
    if test.startswith("ext4"):
        for way in ("device", "uring"):
            ratio(test, f"xts-{way}", f"plain-{way}", 0.70)
            ratio(test, f"xts-{way}", "file", "none")
            ratio(test, f"xts-{way}", "fuser-2", "none")
        continue
    for way in ("device", "uring"):
        ratio(test, f"xts-{way}", f"plain-{way}", 0.85)
    for fuser in ("fuser-1", "fuser-2"):
        ratio(test, "xts-uring", fuser, 1.5 if test == "randread:4k:4" else 0.9)
EOF
