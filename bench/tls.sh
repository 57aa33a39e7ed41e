#!/usr/bin/env bash
# NBD over TLS, side by side: our server with a file in RAM, and nbdkit with its memory plugin, which has no file below it; both demand a
# client's certificate. nbdcopy over loopback TCP reads and writes 256 MiB. Prints GB/s of each server, the median of the rounds, and the median of the
# ratios in each round of ours to nbdkit.
# Usage: bench/tls.sh [ROUNDS], from the root of the checkout; $CLAVIGER is the program.
set -euo pipefail
rounds=${1:-5}
claviger=${CLAVIGER:-target/release/claviger}
dir=$(mktemp -d /dev/shm/claviger-tls.XXXXXX)
pids=()
trap 'kill "${pids[@]}" 2>/dev/null || true; wait; rm -rf "$dir"' EXIT
size=$((256 << 20))

(
    cd "$dir"
    new="openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30"
    $new -subj "/CN=an authority" -addext keyUsage=critical,keyCertSign,cRLSign -keyout ca-key.pem -out ca-cert.pem
    for who in server client; do
        $new -extensions usr_cert -CA ca-cert.pem -CAkey ca-key.pem -subj /CN=$who -addext subjectAltName=DNS:localhost \
            -addext extendedKeyUsage=${who}Auth -keyout $who-key.pem -out $who-cert.pem
    done
) 2>/dev/null
head -c $size /dev/urandom >"$dir/plain"
"$claviger" serve "$dir/plain" --raw --tcp 127.0.0.1:10911 --tls "$dir" >/dev/null & pids+=($!)
nbdkit -f -i 127.0.0.1 -p 10912 --tls=require --tls-certificates="$dir" --tls-verify-peer memory $size & pids+=($!)
uri() { echo "nbds://localhost:$1/?tls-certificates=$dir"; }
for port in 10911 10912; do
    for _ in $(seq 100); do nbdinfo --size "$(uri $port)" >/dev/null 2>&1 && break; sleep 0.1; done
done
gbps() { # COMMAND…: GB/s of moving all of it once
    local from to; from=$(date +%s%N); "$@"; to=$(date +%s%N)
    awk "BEGIN { print $size / ($to - $from) }"
}
copy() { # port, what
    case $2 in
        read-1) gbps nbdcopy --connections=1 --requests=1 --request-size=1048576 "$(uri "$1")" null: ;;
        read) gbps nbdcopy --request-size=1048576 "$(uri "$1")" null: ;;
        write) gbps nbdcopy --request-size=1048576 "$dir/plain" "$(uri "$1")" ;;
    esac
}
for port in 10911 10912; do copy $port write >/dev/null; copy $port read >/dev/null; done
for ((round = 0; round < rounds; round++)); do
    for what in read-1 read write; do
        echo "$what $(copy 10911 $what) $(copy 10912 $what)"
    done
done | python3 -c '
import statistics, sys
rounds = {}
for line in sys.stdin:
    what, ours, theirs = line.split()
    rounds.setdefault(what, []).append((float(ours), float(theirs)))
for what, pairs in rounds.items():
    ours, theirs = (statistics.median(p[i] for p in pairs) for i in (0, 1))
    ratio = statistics.median(a / b for a, b in pairs)
    print(f"{what:7} ours {ours:.2f}, nbdkit {theirs:.2f} GB/s, ratio {ratio:.2f}")
'
