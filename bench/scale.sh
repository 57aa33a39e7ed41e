#!/usr/bin/env bash
# What one volume costs its host, for docs/scale.md: memory, threads, descriptors and idle processor time of serving and mounting, at rest and after a client
# has read all of it; the same by hundreds at once; changing a passphrase; a volume of 1 PiB. Takes some two minutes, and as root 2 GiB of memory.
# Usage: bench/scale.sh [PROGRAM [SERVERS]], from the root of the checkout. It wants nbdkit, nbdcopy, mkfs.ext4 and /usr/bin/time, and else an idle machine.
set -euo pipefail
claviger=$(realpath "${1:-target/release/claviger}") servers=${2:-400}
dir=$(mktemp -d /dev/shm/claviger-scale.XXXXXX)
export XDG_RUNTIME_DIR=$dir/run
mkdir "$dir"/{run,many,m1,m2,m3}; cd "$dir"
pids=()
trap 'for m in m1 m2 m3; do "$claviger" unmount $m >/dev/null 2>&1 || true; done; umount m3 2>/dev/null || true
      kill "${pids[@]}" 2>/dev/null || true; wait; cd /; rm -rf "$dir"' EXIT
echo -n secret >pw; echo -n other >new
cheap=(--kdf pbkdf2 --iterations 1000)
luks2() { "$claviger" create --quick --format LUKS2 "${cheap[@]}" --password-file pw "$@" >/dev/null; }
until_there() { local n; for ((n = 0; n < 600; n++)); do [ ! -e "$1" ] || return 0; sleep 0.1; done; echo "$1 is not there" >&2; exit 1; }
tree() { local pid; echo "$1"; for pid in $(pgrep -P "$1"); do tree "$pid"; done; }
sum() { local field=$1; shift; cat "${@/%//status}" | awk -v f="$field:" '$1 == f { n += $2 } END { print n + 0 }'; }
# Nanoseconds on a processor, and times that a thread went to sleep, of all threads so far.
nanoseconds() { local p; for p; do cat "$p"/task/*/schedstat; done | awk '{ n += $1 } END { printf "%.0f", n }'; }
switches() { local p; for p; do cat "$p"/task/*/status; done | awk '/^voluntary/ { n += $2 } END { print n }'; }
descriptors() { local p; for p; do ls "$p/fd"; done | wc -l; }
mappings() { cat "${@/%//maps}" | wc -l; }
connections() { ss -xpH state connected | grep -c "$1" || true; }

volume() { truncate -s 64M clear; mkfs.ext4 -q -F -b 4096 clear; luks2 --size 80M "$1"; "$claviger" serve --password-file pw "$1" --run 'nbdcopy clear "$uri"' >/dev/null 2>&1; }
for name in file key-process mount fuse user far far-key-process; do volume $name; done
for name in far far-key-process; do nbdkit -f -U $name.nbd file $name 2>"$name.nbdkit" & pids+=($!); until_there $name.nbd; done

names=() roots=()
start() { local name=$1; shift; "$@" >"$name.log" 2>&1 </dev/null & pids+=($!); names+=("$name"); roots+=($!); }
serve() { local name=$1; shift; start "$name" "$claviger" serve --socket "${#names[@]}.s" --password-file pw "$@"; }
serve serve file
serve "serve --isolate-keys" --isolate-keys key-process
serve "serve nbd+unix" "nbd+unix:///?socket=$dir/far.nbd"
serve "serve nbd+unix --isolate-keys" --isolate-keys "nbd+unix:///?socket=$dir/far-key-process.nbd"
start "mount --filesystem none" "$claviger" mount --foreground --filesystem none --password-file pw fuse m1
start "mount (ext4)" "$claviger" mount --foreground --password-file pw mount m2
if [ "$(id -u)" = 0 ] && command -v fuse2fs >/dev/null; then
    chmod 755 .; chmod 644 pw; chown -R 65534 user m3; mkdir run/user; chown 65534 run/user
    start "mount (ext4) by a user" setpriv --reuid 65534 --regid 65534 --clear-groups env XDG_RUNTIME_DIR="$dir/run/user" HOME="$dir/run/user" \
        "$claviger" mount --foreground --password-file pw user m3
fi
sleep 5
all=(); for i in "${!names[@]}"; do mapfile -t found < <(tree "${roots[i]}"); all+=("${found[*]/#//proc/}"); done
from=(); for i in "${!names[@]}"; do from+=("$(nanoseconds ${all[i]}) $(switches ${all[i]})"); done
sleep "${IDLE:-20}"
for i in "${!names[@]}"; do
    read -r ns woken <<<"${from[i]}"
    idle+=("$(awk "BEGIN { printf \"%.0f us/s, %.1f\", ($(nanoseconds ${all[i]}) - $ns) / ${IDLE:-20} / 1000, ($(switches ${all[i]}) - $woken) / ${IDLE:-20} }")")
    rest+=("$(sum RssAnon ${all[i]})")
done
for s in *.s; do nbdcopy "nbd+unix:///?socket=$dir/$s" null:; done
for m in m1 m2 m3; do cat $m/* >/dev/null 2>&1 || true; done
echo "| $(date +%F), $("$claviger" --version), $(uname -r), $(nproc) processors | anonymous memory | after a client | locked | page tables | processes, threads | descriptors | mappings | idle, wake-ups/s |"
echo "| --- | --- | --- | --- | --- | --- | --- | --- | --- |"
for i in "${!names[@]}"; do
    p=${all[i]}; set -- $p
    echo "| ${names[i]} | ${rest[i]} KiB | $(sum RssAnon $p) | $(sum VmLck $p) | $(sum VmPTE $p) | $#, $(sum Threads $p) | $(descriptors $p) | $(mappings $p) | ${idle[i]} |"
done
for name in far far-key-process; do echo "connections of $name: $(($(connections $name.nbd)))"; done
# Servers first: what they serve is then still there.
end() {
    for m in m1 m2 m3; do "$claviger" unmount $m >/dev/null 2>&1 || true; done
    for some in "${roots[*]}" "${pids[*]}"; do kill $some 2>/dev/null || true; wait $some 2>/dev/null || true; done
    pids=()
}
end; grep -H '^claviger: [^w]' *.log || true

echo; echo "| servers at once | seconds until all serve | memory the host lost, KiB each | anonymous, page tables, stacks of the kernel, KiB each | locked, all |"; echo "| --- | --- | --- | --- | --- |"
seconds() { local from to; from=$(date +%s%N); "$@"; to=$(date +%s%N); awk "BEGIN { printf \"%.2f\", ($to - $from) / 1e9 }"; }
available() { sleep 1; awk '/^MemAvailable/ { print $2 }' /proc/meminfo; }
luks2 --size 20M one
many() {
    local n; for ((n = 0; n < $1; n++)); do "$claviger" serve --socket many/$n.s --password-file pw $2 many/$n >/dev/null 2>many/$n.log </dev/null & pids+=($!); done
    for ((n = 0; n < $1; n++)); do until_there many/$n.s; done
}
for how in "" --isolate-keys; do
    for n in $((servers / 4)) $servers; do
        for ((i = 0; i < n; i++)); do cp --sparse=always one many/$i; done
        before=$(available); from=$(date +%s%N); many $n "$how"; to=$(date +%s%N); sleep 2; after=$(available)
        mapfile -t p < <(for root in "${pids[@]}"; do tree $root; done); p=("${p[@]/#//proc/}")
        echo "| $n serve $how | $(awk "BEGIN { printf \"%.1f\", ($to - $from) / 1e9 }") | $(((before - after) / n)) | $(($(sum RssAnon "${p[@]}") / n)), $(($(sum VmPTE "${p[@]}") / n)), $(($(sum Threads "${p[@]}") * 16 / n)) | $(sum VmLck "${p[@]}") |"
        cat many/*.log | sort | uniq -c; end; rm many/*
    done
done

echo; echo "| one run | seconds | processor | peak memory, KiB |"; echo "| --- | --- | --- | --- |"
timed() { local name=$1; shift; /usr/bin/time -f "| $name | %e | %U + %S | %M |" "$@" 2>&1 >/dev/null | grep '^|'; }
change() { local name=$1; shift; luks2 --size 20M --force --yes changed; for _ in 1 2 3; do timed "$name" "$claviger" keyslot change --password-file pw --new-password-file pw "$@" changed; done; rm changed; }
change "keyslot change, PBKDF2, 1000 iterations" "${cheap[@]}"
change "keyslot change, Argon2id, 1 GiB, 4 iterations, 4 lanes" --kdf argon2id --iterations 4 --kdf-memory 1G --kdf-parallel 4
change "keyslot change, Argon2id as measured"
nbdkit -f -U peta.nbd memory 1P & pids+=($!); until_there peta.nbd; peta="nbd+unix:///?socket=$dir/peta.nbd"
timed "create --quick, 1 PiB" "$claviger" create --quick --force --yes --format LUKS2 "${cheap[@]}" --password-file pw "$peta"
timed "cat of the last 4 KiB of 1 PiB" "$claviger" cat --offset 1125899890061312 --length 4096 --password-file pw "$peta"
timed "serve, and its size asked for" "$claviger" serve --password-file pw "$peta" --run 'nbdinfo --size "$uri"'
