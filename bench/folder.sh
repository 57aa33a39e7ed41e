#!/usr/bin/env bash
# A mounted folder, side by side in one run: the bare folder, the same kind of folder through our mount as it is, and through
# gocryptfs, which encrypts. One large file written and read, in sequence and at random places, and thousands of small ones made, opened
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
dir=$(mktemp -d "${BENCH_DIR:-/var/tmp}/claviger-folder.XXXXXX")
contenders="bare ours gocryptfs"
pids=()
cleanup() {
    for name in ours gocryptfs; do
        ! mountpoint -q "$dir/$name" || timeout 60 umount "$dir/$name" || umount -l "$dir/$name"
    done
    for pid in "${pids[@]}"; do wait "$pid" || true; done
    rm -rf "$dir"
}
trap cleanup EXIT

mkdir "$dir"/{bare,ours,gocryptfs,lower.ours,lower.gocryptfs}
command=${command//LOWER/$dir/lower.ours}
command=${command//PASSWORD/$dir/password}
echo bench >"$dir/password"
# It may stay in front or go to the background by itself.
bash -c "${command//DIR/$dir/ours}" </dev/null >"$dir/ours.out" 2>&1 &
pids+=($!)
gocryptfs -q -init -scryptn 10 -passfile "$dir/password" "$dir/lower.gocryptfs"
gocryptfs -q -nosyslog -passfile "$dir/password" "$dir/lower.gocryptfs" "$dir/gocryptfs"
for name in ours gocryptfs; do
    for _ in $(seq 100); do ! mountpoint -q "$dir/$name" || break; sleep 0.1; done
    mountpoint -q "$dir/$name" || { echo "nothing was mounted on $dir/$name: $(cat "$dir/ours.out")" >&2; exit 1; }
done

cat >"$dir/measure.py" <<'PYTHON'
import os, random, sys, time
test, folder, mib, count = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
# A hundred small files to a folder.
small = [f"{folder}/small/{i // 100}/{i}" for i in range(count)]
large, block, room = folder + "/large", os.urandom(1 << 20), bytearray(1 << 20)

def write():
    with open(large, "wb", buffering=0) as file:
        for _ in range(mib):
            file.write(block)
        os.fsync(file.fileno())

def read():
    with open(large, "rb", buffering=0) as file:
        while file.readinto(room):
            pass

def places():
    order = list(range(mib * 256))
    random.Random(7).shuffle(order)
    return [number * 4096 for number in order[:20000]]

def random_read():
    fd, all = os.open(large, os.O_RDONLY), places()
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
    for place in all:
        os.pread(fd, 4096, place)
    os.close(fd)

def random_write():
    fd = os.open(large, os.O_WRONLY)
    for place in places():
        os.pwrite(fd, block[:4096], place)
    os.fsync(fd)
    os.close(fd)

def create():
    for path in small:
        fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        os.write(fd, block[:1000])
        os.close(fd)

def open_and_read():
    for path in small:
        fd = os.open(path, os.O_RDONLY)
        os.read(fd, 4096)
        os.close(fd)

def stat():
    for path in small:
        os.stat(path)

def list_all():
    for number in range(count // 100):
        with os.scandir(f"{folder}/small/{number}") as entries:
            for entry in entries:
                entry.stat(follow_symlinks=False)

def remove():
    for path in small:
        os.unlink(path)

if test == "create":
    for i in range(0, count, 100):
        os.makedirs(f"{folder}/small/{i // 100}", exist_ok=True)
name = test.removesuffix("-warm").removesuffix("-cold")
if "random" in name:
    count = min(20000, mib * 256)
begin = time.perf_counter()
{
    "write": write, "read": read, "random-read": random_read, "random-write": random_write,
    "create": create, "list": list_all, "open": open_and_read, "stat": stat, "remove": remove,
}[name]()
seconds = time.perf_counter() - begin
print((mib << 20 if name in ("write", "read") else count) / seconds)
PYTHON
tests="write read-cold read-warm random-read-cold random-write create list-cold open-cold open-warm stat-cold stat-warm remove"
for ((round = 0; round <= rounds; round++)); do
    for test in $tests; do
        for name in $contenders; do
            sync
            [[ $test != *-cold ]] || echo 3 >/proc/sys/vm/drop_caches
            # What the test before left in the kernel, the cold ones of others have dropped.
            [[ $test != *-warm ]] || timeout 600 python3 "$dir/measure.py" "$test" "$dir/$name" "$mib" "$files" >/dev/null
            result=$(timeout 600 python3 "$dir/measure.py" "$test" "$dir/$name" "$mib" "$files")
            # The first round warms up.
            [ $round = 0 ] || echo "$test $name $round $result" >>"$dir/results"
        done
    done
    rm "$dir"/{bare,ours,gocryptfs}/large
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
EOF
