#!/usr/bin/env bash
# A large file that EFS encrypts, in an NTFS in an image, side by side in one run: read by ntfsdecrypt, by us, and the same in clear by
# us. It is decrypted to nowhere, and copied to a file in /dev/shm. Prints a line for each and what was done, the median of the rounds
# and the lowest and highest, and then the ratios, each the median of its value in each round.
# Usage, as root, from the root of the checkout, after `cargo build --release -p claviger`:
#   bench/efs.sh [ROUNDS [MIB [CIPHER…]]], where the ciphers are aes-256 (alone, if none is named), 3des and desx
# The image is made in $BENCH_DIR, or else in /var/tmp; what it holds is in the kernel's cache when it is read (warm) or not (cold).
set -euo pipefail
rounds=${1:-5}
mib=${2:-1024}
[ $# -ge 2 ] && shift 2 || shift $#
ciphers=${*:-aes-256}
programs=${CARGO_TARGET_DIR:-target}/release
dir=$(mktemp -d "${BENCH_DIR:-/var/tmp}/claviger-efs.XXXXXX")
out=$(mktemp -d /dev/shm/claviger-efs.XXXXXX)
cleanup() {
    ! mountpoint -q "$dir/mounted" || umount "$dir/mounted" || umount -l "$dir/mounted"
    rm -rf "$dir" "$out"
}
trap cleanup EXIT

# Debian's ntfsdecrypt cuts the last character of a purpose off: so it is there twice.
openssl req -x509 -newkey rsa:2048 -nodes -days 30 -subj /CN=bench -keyout "$dir/key.pem" -out "$dir/certificate.pem" \
    -addext extendedKeyUsage=1.3.6.1.4.1.311.10.3.4,1.3.6.1.4.1.311.10.3.40 2>/dev/null
openssl pkcs12 -export -keypbe PBE-SHA1-3DES -certpbe PBE-SHA1-3DES -macalg sha1 -passout pass:bench \
    -inkey "$dir/key.pem" -in "$dir/certificate.pem" -out "$dir/key.pfx"
printf bench >"$dir/password"

# The file is in the image in clear and once for each cipher; encrypting needs room for one more.
image=$dir/image
truncate -s $(((mib + 16) * ($(wc -w <<<"$ciphers") + 2) + 64))M "$image"
mkntfs -F -Q -q "$image" 2>"$dir/mkntfs.out"
mkdir "$dir/mounted"
ntfs-3g -o no_detach,efs_raw,big_writes "$image" "$dir/mounted" >"$dir/ntfs-3g.out" 2>&1 &
until mountpoint -q "$dir/mounted"; do sleep 0.1; done
head -c "${mib}M" /dev/urandom >"$dir/mounted/clear"
for cipher in $ciphers; do
    cp "$dir/mounted/clear" "$dir/mounted/$cipher"
done
sum=$(sha256sum <"$dir/mounted/clear")
umount "$dir/mounted"
# It writes what is left and ends when umount has returned.
wait
for cipher in $ciphers; do
    "$programs/claviger" efs encrypt "$image" ":/$cipher" --for "$dir/certificate.pem" --file-cipher "$cipher" >/dev/null
done

# ntfsdecrypt reads its password from a terminal only.
cat >"$dir/ntfsdecrypt.py" <<'PYTHON'
import os, pty, sys
pid, terminal = pty.fork()
if pid == 0:
    os.dup2(os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 1)
    os.execvp("ntfsdecrypt", ["ntfsdecrypt", "-k", *sys.argv[2:]])
said = b""
try:
    while not said.endswith(b"encrypted: "):
        said += os.read(terminal, 1000)
    os.write(terminal, b"bench\n")
    while True:
        said += os.read(terminal, 1000)
except OSError:
    pass
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
PYTHON
# What reads the file $2 to $3.
theirs() { python3 "$dir/ntfsdecrypt.py" "$3" "$dir/key.pfx" "$image" "/$2"; }
ours() {
    local key=(--certificate "$dir/key.pfx" --certificate-password-file "$dir/password")
    [ "$2" != clear ] || key=()
    case $1 in
    read) "$programs/claviger" cat "${key[@]}" "$image" "/$2" >"$3" ;;
    copy) "$programs/claviger" cp "${key[@]}" "$image" ":/$2" "$3" >/dev/null ;;
    esac
}
measure() { # CONTENDER TEST FILE
    local to=/dev/null begin
    [ "$2" = copy ] && to=$out/copy
    sync
    [ "$temperature" = warm ] && cat "$image" >/dev/null || echo 3 >/proc/sys/vm/drop_caches
    begin=$(date +%s.%N)
    "$1" "$2" "$3" "$to"
    # The first round warms up, and shows that all have read the same.
    [ "$round" = 0 ] || echo "$2-$temperature $3 $1 $round $(date +%s.%N) $begin" >>"$dir/results"
    if [ "$2" = copy ]; then
        [ "$round" != 0 ] || [ "$(sha256sum <"$out/copy")" = "$sum" ] || { echo "$1 reads something else of $3" >&2; exit 1; }
        rm "$out/copy"
    fi
}
for ((round = 0; round <= rounds; round++)); do
    for temperature in warm cold; do
        for test in read copy; do
            measure ours $test clear
            for cipher in $ciphers; do
                measure theirs $test "$cipher"
                measure ours $test "$cipher"
            done
        done
    done
done

python3 - "$dir/results" "$mib" "$ciphers" <<'PYTHON'
import sys
from statistics import median
rows, mib = {}, int(sys.argv[2])
for line in open(sys.argv[1]):
    test, file, who, round, end, begin = line.split()
    rows.setdefault((test, file, who), {})[round] = (mib << 20) / (float(end) - float(begin)) / 1e9
for (test, file, who), values in rows.items():
    values = sorted(values.values())
    print(f"{test:10} {file:8} {who:7} {median(values):6.2f} GB/s ({values[0]:.2f} … {values[-1]:.2f})")
print()
def ratio(test, a, b, target):
    ratios = [rows[(test, *a)][r] / rows[(test, *b)][r] for r in rows[(test, *a)]]
    print(f"{test:10} {' '.join(a)} / {' '.join(b)}: {median(ratios):.2f} ({min(ratios):.2f} … {max(ratios):.2f}), target {target}")
for test in dict.fromkeys(test for test, *_ in rows):
    for cipher in sys.argv[3].split():
        # A copy takes as long as writing it: no target.
        read = test.startswith("read") and cipher == "aes-256"
        ratio(test, (cipher, "ours"), (cipher, "theirs"), "5" if read else "none")
        ratio(test, (cipher, "ours"), ("clear", "ours"), "0.50" if read else "none")
PYTHON
