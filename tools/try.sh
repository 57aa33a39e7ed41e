#!/bin/sh
# A tour of claviger for newcomers: open a volume, make one, measure. Writes to a temporary folder only.
#   tools/try.sh PROGRAM
set -eu

case $1 in
    /*) program=$1 ;;
    *) program=$PWD/$1 ;;
esac
samples=${CLAVIGER_SAMPLES:-$PWD/../shared/samples}/truecrypt
here=$(mktemp -d)
# Never deletes files inside a volume that is still mounted.
leave() {
    cd /
    "$program" unmount --force "$here/files" >/dev/null 2>&1 || :
    rmdir "$here/files" 2>/dev/null || :
    [ -e "$here/files" ] || rm -rf "$here"
}
trap leave EXIT
trap 'exit 1' INT TERM HUP PIPE
cd "$here"

bold=
plain=
[ ! -t 1 ] || { bold=$(printf '\033[1m'); plain=$(printf '\033[0m'); }
say() { printf '\n%s%s%s\n' "$bold" "$*" "$plain"; }
# Shows a command as a user would type it, and runs it.
show() {
    printf '$ claviger'
    for word; do
        case $word in
            *' '*) printf " '%s'" "$word" ;;
            *) printf ' %s' "$word" ;;
        esac
    done
    printf '\n'
    "$program" "$@"
}

if [ -e "$samples/aes-sha512.tc" ]; then
    say "1. Open a volume that TrueCrypt 7.1a made. Its password is 'correct horse'."
    cp "$samples/aes-sha512.tc" old.tc
    echo 'correct horse' >password.txt
    text=hello.txt
    opened="a volume of TrueCrypt 7.1a"
else
    say "1. Make a volume. (No TrueCrypt 7.1a samples at $samples.)"
    echo 'correct horse' >password.txt
    show create --size 2M --cipher AES --hash SHA-512 --password-file password.txt old.tc
    mformat -C -T 2048 -h 1 -s 1 -i fat.img ::
    echo 'Hello from inside a volume.' >note.txt
    mcopy -i fat.img note.txt ::
    truncate --size=1835008 fat.img
    show serve --password-file password.txt old.tc --run 'nbdcopy fat.img "$uri"'
    text=note.txt
    opened="a volume of its own"
fi
show identify old.tc
show info --password-file password.txt old.tc

say "2. Read a file without mounting: with claviger alone, and with mtools."
show ls -l --password-file password.txt old.tc
show cat --password-file password.txt old.tc "/$text"
echo '$ claviger cat --password-file password.txt old.tc >image.img; mtype -i image.img ::'"$text"
"$program" cat --password-file password.txt old.tc >image.img
mtype -i image.img "::$text"

if [ -r /dev/fuse ] && [ -w /dev/fuse ] && { [ "$(id -u)" = 0 ] || command -v fusermount3 >/dev/null; }; then
    say "   Mount it, and list its files."
    mkdir files
    if show mount --read-only --password-file password.txt old.tc files; then
        echo '$ ls -l files'
        ls -l files
        show list
        show unmount files
    else
        echo "Mounting does not work here; everything else does."
    fi
else
    say "   Mounting needs /dev/fuse and, without root, fusermount3 (package fuse3): skipped here."
fi

say "3. Make a volume of 64 MiB with a cascade of three ciphers, and let another program read it over NBD."
echo 'a better password' >new.txt
show create --size 64M --cipher AES-Twofish-Serpent --hash Whirlpool --password-file new.txt new.tc
show serve --read-only --password-file new.txt new.tc --run 'nbdcopy "$uri" copy.img && ls -l copy.img'

say "4. How fast are the ciphers on this machine? (claviger benchmark shows all, with more samples)"
show benchmark --buffer 1MB --repeats 3 >benchmark.txt
cat benchmark.txt

say "5. What does encryption cost a program? (claviger lab run without --quick takes longer)"
show lab run --quick --preset sweep --out sweep >sweep.txt
cat sweep.txt

say "Summary"
cat <<END
claviger opened $opened and one that it made itself, without root and without a kernel
module. In memory, on this machine:
$(grep 'is the fastest with' benchmark.txt)
On the way to a program, beside the same way without encryption:
$(sed -n '/^Findings/,/^$/{//!p}' sweep.txt)

On your own files:
  claviger identify FILE        claviger info FILE        claviger serve FILE
claviger --help says more. The program is at $1. Nothing was installed.
END
