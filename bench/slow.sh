#!/usr/bin/env bash
# A store that takes 1 ms for each request (nbdkit's filter delay, as a file by nbdfuse), served over NBD and FUSE past the page cache
# and through it: requests of 4 KiB per second at queue depths 1, 16 and 64, and MB/s of reads of 1 MiB. nbdfuse itself has ten
# threads, which is the limit past the cache; its writes come one at a time. Usage, as root, from the root of the checkout:
# bench/slow.sh [SECONDS]. $SERVE and $FUSE name other builds of the examples nbd_serve and fuse_serve.
set -euo pipefail
seconds=${1:-2}
serve=${SERVE:-target/release/examples/nbd_serve}
fuse=${FUSE:-target/release/examples/fuse_serve}
[ -x "$serve" ] || cargo build --release -p claviger-serve --example nbd_serve
[ -x "$fuse" ] || cargo build --release -p claviger-serve --example fuse_serve
dir=$(mktemp -d /tmp/claviger-slow.XXXXXX)
pids=()
cleanup() {
    exec 9>&- # our servers stop
    timeout 10 umount "$dir/mnt" 2>/dev/null || true
    timeout 10 umount "$dir/disk" 2>/dev/null || true
    for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
    wait
    rm -rf "$dir"
}
trap cleanup EXIT
mkdir "$dir/disk" "$dir/mnt"
mkfifo "$dir/stop"
exec 9<>"$dir/stop"
until_there() { for _ in $(seq 100); do [ -e "$1" ] && return; sleep 0.1; done; echo "$1 does not come" >&2; exit 1; }

nbdkit -f -t 64 -U "$dir/delay" --filter=delay memory 256M rdelay=1ms wdelay=1ms 9>&- & pids+=($!)
until_there "$dir/delay"
nbdfuse -C 16 "$dir/disk/file" "nbd+unix:///?socket=$dir/delay" 9>&- & pids+=($!)
until_there "$dir/disk/file"

measure() { # label, fio's options
    local label=$1; shift
    timeout 60 fio --name=t --size=256M --time_based --runtime="$seconds" --ramp_time=0.5 --output-format=json \
        --output="$dir/fio.json" "$@" >/dev/null 2>&1
    python3 -c 'import json, sys; j = json.load(open(sys.argv[1]))["jobs"][0]; r, w = j["read"], j["write"]
print(f"{sys.argv[2]:44} {r['"'iops'"'] + w['"'iops'"']:9.0f} /s {(r['"'bw_bytes'"'] + w['"'bw_bytes'"']) / 1e6:9.1f} MB/s")' "$dir/fio.json" "$label"
}
all() { # label, fio's options
    local label=$1; shift
    for mode in randread randwrite; do
        for depth in 1 16 64; do measure "$label, $mode 4k, queue depth $depth" --rw=$mode --bs=4k --iodepth=$depth "$@"; done
    done
    measure "$label, read 1m, queue depth 4" --rw=read --bs=1m --iodepth=4 "$@"
}
all "the store" --ioengine=nbd --uri="nbd+unix:///?socket=$dir/delay"
for words in "" direct "direct xts"; do
    # shellcheck disable=SC2086
    "$serve" "unix:$dir/socket" "$dir/disk/file" $words <"$dir/stop" >/dev/null 9>&- & server=$!
    until_there "$dir/socket"
    all "NBD $words" --ioengine=nbd --uri="nbd+unix:///?socket=$dir/socket"
    kill $server; wait $server 2>/dev/null || true; rm -f "$dir/socket"
done
for words in device "device direct"; do
    # shellcheck disable=SC2086
    "$fuse" "$dir/mnt" "$dir/disk/file" $words <"$dir/stop" >/dev/null 9>&- & server=$!
    until_there "$dir/mnt/volume"
    all "FUSE $words" --ioengine=libaio --direct=1 --filename="$dir/mnt/volume"
    timeout 10 umount "$dir/mnt"; wait $server || true
done
