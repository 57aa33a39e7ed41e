#!/usr/bin/env bash
# What a mounted folder of eCryptfs takes of memory while many of its files are looked up, open and read, and when the kernel has
# forgotten them again. Prints the server's memory in MB, and its open descriptors, at each step.
# Usage, as root, from the root of the checkout, after `cargo build --release -p claviger`: bench/open-files.sh [FILES]
# Each file takes two descriptors: the limit (ulimit -Hn) has to be twice as high. The folder is made in $BENCH_DIR, or else in /dev/shm.
set -euo pipefail
files=${1:-100000}
program=${CARGO_TARGET_DIR:-target}/release/claviger
dir=$(mktemp -d "${BENCH_DIR:-/dev/shm}/claviger-open-files.XXXXXX")
cleanup() {
    ! mountpoint -q "$dir/mounted" || umount "$dir/mounted" || umount -l "$dir/mounted"
    wait
    rm -rf "$dir"
}
trap cleanup EXIT

mkdir "$dir/plain" "$dir/mounted"
echo bench >"$dir/password"
python3 - "$dir/plain" "$files" <<'PYTHON'
import os, sys
for i in range(int(sys.argv[2])):
    folder = f"{sys.argv[1]}/{i // 1000}"
    os.makedirs(folder, exist_ok=True)
    with open(f"{folder}/{i}", "wb") as file:
        file.write(b"x" * 1000)
PYTHON
"$program" convert --raw-source --format eCryptfs --new-password-file "$dir/password" "$dir/plain" "$dir/lower" >/dev/null
rm -r "$dir/plain"
"$program" mount --foreground --password-file "$dir/password" "$dir/lower" "$dir/mounted" >/dev/null &
until mountpoint -q "$dir/mounted"; do sleep 0.1; done

python3 - "$dir/mounted" "$files" $! <<'PYTHON'
import os, resource, sys, time
folder, count, server = sys.argv[1], int(sys.argv[2]), sys.argv[3]
most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
paths = [f"{folder}/{i // 1000}/{i}" for i in range(count)]
def tell(step):
    lines = [line.split() for line in open(f"/proc/{server}/status")]
    memory = {line[0]: int(line[1]) / 1000 for line in lines if line[0] in ("VmRSS:", "RssAnon:", "VmLck:")}
    descriptors = len(os.listdir(f"/proc/{server}/fd"))
    print(f"{step:10}", *(f"{name} {mb:6.1f} MB" for name, mb in memory.items()), f"{descriptors:7} descriptors", flush=True)
tell("mounted")
for path in paths:
    os.stat(path)
tell("looked up")
files = [os.open(path, os.O_RDONLY) for path in paths]
tell("opened")
for file in files:
    os.read(file, 4096)
tell("read")
for file in files:
    os.close(file)
time.sleep(2)
tell("closed")
with open("/proc/sys/vm/drop_caches", "w") as file:
    file.write("2\n")
time.sleep(5)
tell("forgotten")
PYTHON
