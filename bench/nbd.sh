#!/usr/bin/env bash
# The whole path over NBD, side by side: our server with a plain file and with an AES-256-XTS TrueCrypt volume, nbdkit's LUKS
# filter and qemu-nbd with a LUKS image, all on files in RAM, with the same clients. Prints one line a server and test: the
# median of the rounds, and the lowest and highest. Usage: bench/nbd.sh [ROUNDS], from the root of the checkout.
set -euo pipefail
rounds=${1:-5}
claviger=${CLAVIGER:-target/release/claviger}
dir=$(mktemp -d /dev/shm/claviger-nbd.XXXXXX)
pids=()
trap 'kill "${pids[@]}" 2>/dev/null || true; wait; rm -rf "$dir"' EXIT
size=$((1 << 30))

head -c $size /dev/urandom >"$dir/plain"
printf %s secret >"$dir/pw"
"$claviger" create "$dir/tc" --size $((size + (256 << 10))) --cipher AES --quick --password-file "$dir/pw" 2>/dev/null
qemu-img create -q -f luks --object secret,id=s,file="$dir/pw" -o key-secret=s,cipher-alg=aes-256,iter-time=10 "$dir/luks" $size

"$claviger" serve --raw "$dir/plain" --socket "$dir/s.plain" --export "" >/dev/null & pids+=($!)
"$claviger" serve "$dir/tc" --password-file "$dir/pw" --socket "$dir/s.tc" --export "" >/dev/null & pids+=($!)
nbdkit -f -U "$dir/s.nbdkit" file "$dir/luks" --filter=luks passphrase=secret & pids+=($!)
# qemu-nbd takes the same image; nbdkit holds no lock on it, and the two never run at once.
qemu-nbd --fork --persistent --shared=4 --pid-file="$dir/qemu.pid" -k "$dir/s.qemu" --object secret,id=s,file="$dir/pw" \
    --image-opts driver=luks,file.filename="$dir/luks",key-secret=s,file.locking=off
pids+=("$(cat "$dir/qemu.pid")")
for server in plain tc nbdkit; do
    for _ in $(seq 100); do [ -S "$dir/s.$server" ] && break; sleep 0.1; done
done

uri() { echo "nbd+unix:///?socket=$dir/s.$1"; }
gbps() { # COMMAND…: GB/s of moving the whole image once
    local from to; from=$(date +%s%N); "$@" >/dev/null; to=$(date +%s%N)
    awk "BEGIN { print $size / ($to - $from) }"
}
iops() { # server, mode, depth: thousand operations a second
    fio --name=t --ioengine=nbd --uri="$(uri "$1")" --rw="$2" --bs=4k --iodepth="$3" --size=$size --time_based --runtime=2 \
        --iomem_align=4096 --output-format=json --output="$dir/fio.json" >/dev/null
    python3 -c 'import json, sys; j = json.load(open(sys.argv[1]))["jobs"][0]; print((j["read"]["iops"] + j["write"]["iops"]) / 1000)' \
        "$dir/fio.json"
}
test_one() { # server, test
    case $2 in
        read) gbps nbdcopy --request-size=1048576 "$(uri "$1")" null: ;;
        write) gbps nbdcopy --request-size=1048576 "$dir/plain" "$(uri "$1")" ;;
        *) iops "$1" "${2%-*}" "${2#*-}" ;;
    esac
}

for server in plain tc nbdkit qemu; do test_one $server write >/dev/null; done # warm: every page is there
for ((round = 0; round < rounds; round++)); do
    for what in read write randread-1 randread-16 randwrite-1 randwrite-16; do
        for server in plain tc nbdkit qemu; do
            test_one $server $what >>"$dir/result.$what.$server"
        done
    done
done
echo "read and write in GB/s, the others in thousand operations of 4 KiB a second at that queue depth; $rounds rounds"
for what in read write randread-1 randread-16 randwrite-1 randwrite-16; do
    for server in plain tc nbdkit qemu; do
        sort -g "$dir/result.$what.$server" | awk -v n="$what $server" '
            { v[NR] = $1 } END { printf "%-24s %8.2f  (%.2f … %.2f)\n", n, v[int((NR + 1) / 2)], v[1], v[NR] }'
    done
done
