#!/usr/bin/env bash
# The whole path over NBD, side by side: our server with a plain file, with an AES-256-XTS TrueCrypt volume, a LUKS2
# volume and a LUKS1 image, nbdkit's LUKS filter and qemu-nbd with that same image (they know LUKS1 only), all on files
# in RAM, with the same clients. Prints one line per server and test: the median of the rounds, the lowest and the
# highest; then, for LUKS1 and LUKS2, the medians of the ratios in each round to qemu-nbd and to our plain file.
# Usage: bench/nbd.sh [ROUNDS], from the root of the checkout; it needs 6 GiB of RAM. $SERVERS selects from plain tc
# luks2 luks1 nbdkit qemu.
set -euo pipefail
rounds=${1:-5}
servers=${SERVERS:-plain tc luks2 luks1 nbdkit qemu}
claviger=${CLAVIGER:-target/release/claviger}
dir=$(mktemp -d /dev/shm/claviger-nbd.XXXXXX)
pids=()
trap 'kill "${pids[@]}" 2>/dev/null || true; wait; rm -rf "$dir"' EXIT
size=$((1 << 30))

head -c $size /dev/urandom >"$dir/plain"
printf %s secret >"$dir/pw"
wanted() { [[ " $servers " == *" $1 "* ]]; }
serve() { # server, image, options: ours
    wanted "$1" || return 0
    "$claviger" serve "$dir/$2" "${@:3}" --socket "$dir/s.$1" --export "" >/dev/null & pids+=($!)
}
if wanted tc; then
    "$claviger" create "$dir/tc" --size $((size + (256 << 10))) --format TrueCrypt --cipher AES --quick --password-file "$dir/pw" 2>/dev/null
fi
if wanted luks2; then
    "$claviger" create "$dir/luks2" --size $((size + (16 << 20))) --format LUKS2 --cipher aes-xts-plain64 --sector-size 512 --quick \
        --kdf pbkdf2 --iterations 1000 --password-file "$dir/pw" 2>/dev/null
fi
qemu-img create -q -f luks --object secret,id=s,file="$dir/pw" -o key-secret=s,cipher-alg=aes-256,iter-time=10 "$dir/luks" $size

serve plain plain --raw
serve tc tc --password-file "$dir/pw"
serve luks2 luks2 --password-file "$dir/pw"
# nbdkit and qemu-nbd share one image, without locks, but never run at once; ours, which locks what it serves, has a
# copy.
if wanted luks1; then cp --reflink=auto "$dir/luks" "$dir/luks1"; fi
serve luks1 luks1 --password-file "$dir/pw"
if wanted nbdkit; then
    nbdkit -f -U "$dir/s.nbdkit" file "$dir/luks" --filter=luks passphrase=secret & pids+=($!)
fi
if wanted qemu; then
    qemu-nbd --fork --persistent --shared=4 --pid-file="$dir/qemu.pid" -k "$dir/s.qemu" --object secret,id=s,file="$dir/pw" \
        --image-opts driver=luks,file.filename="$dir/luks",key-secret=s,file.locking=off
    pids+=("$(cat "$dir/qemu.pid")")
fi
for server in $servers; do
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

for server in $servers; do test_one $server write >/dev/null; done # warm: every page is there
for ((round = 0; round < rounds; round++)); do
    for what in read write randread-1 randread-16 randwrite-1 randwrite-16; do
        for server in $servers; do
            test_one $server $what >>"$dir/result.$what.$server"
        done
    done
done
echo "read and write in GB/s, the others in thousand operations of 4 KiB a second at that queue depth; $rounds rounds"
for what in read write randread-1 randread-16 randwrite-1 randwrite-16; do
    for server in $servers; do
        sort -g "$dir/result.$what.$server" | awk -v n="$what $server" '
            { v[NR] = $1 } END { printf "%-24s %8.2f  (%.2f … %.2f)\n", n, v[int((NR + 1) / 2)], v[1], v[NR] }'
    done
done

echo "ratios, medians over the rounds"
for what in read write randread-1 randread-16 randwrite-1 randwrite-16; do
    for ours in luks1 luks2; do
        for other in qemu plain; do
            if ! wanted $ours || ! wanted $other; then continue; fi
            paste "$dir/result.$what.$ours" "$dir/result.$what.$other" | awk '{ print $1 / $2 }' | sort -g | awk -v n="$what $ours/$other" '
                { v[NR] = $1 } END { printf "%-28s %8.2f  (%.2f … %.2f)\n", n, v[int((NR + 1) / 2)], v[1], v[NR] }'
        done
    done
done
