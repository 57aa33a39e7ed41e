#!/bin/sh
# Takes the guide's pictures of the window: a real window on a virtual screen, driven by the keyboard.
#   tools/window-pictures.sh CLAVIGER WINDOW FOLDER
# SCALE=2 takes them at 200 %.
set -eu
program=$1
started=$(realpath "$2")
out=$(realpath "$3")
# The window looks for the program in its own folder, then in the search path.
PATH=$(dirname "$(realpath "$program")"):$PATH:/usr/sbin:/sbin
export PATH
if [ -z "${DISPLAY_OF_PICTURES-}" ]; then
    export DISPLAY_OF_PICTURES=yes
    exec dbus-run-session xvfb-run -a -s "-screen 0 $((960 * ${SCALE:-1}))x$((680 * ${SCALE:-1}))x24 -noreset" \
        "$0" "$program" "$started" "$out"
fi

place=$(mktemp -d)
# A home as people have it, where that can be made.
HOME=/home/anna
mkdir "$HOME" 2>/dev/null || HOME=$place/home
XDG_RUNTIME_DIR=$place/run XDG_CONFIG_HOME=$HOME/.config CLAVIGER_RUNTIME_DIR=$place/run/claviger
export HOME XDG_RUNTIME_DIR XDG_CONFIG_HOME CLAVIGER_RUNTIME_DIR
export LANG=C.UTF-8 LIBGL_ALWAYS_SOFTWARE=1 WINIT_X11_SCALE_FACTOR="${SCALE:-1}"
mkdir -p "$HOME/.config/claviger" "$XDG_RUNTIME_DIR"
chmod 700 "$XDG_RUNTIME_DIR"
window='' portal=''
cleanup() {
    for ended in $window $portal; do kill "$ended" 2>/dev/null || true; done
    claviger unmount --all >/dev/null 2>&1 || true
    cd /
    [ "$HOME" != /home/anna ] || rm -rf "$HOME"
    rm -rf "$place"
}
trap cleanup EXIT
cd "$HOME"
printf 'open sesame\n' >"$place/password"
head -c 8M /dev/zero >"$place/plain"
mkfs.vfat "$place/plain" >/dev/null
new="--new-kdf pbkdf2 --new-iterations 1000 --new-format LUKS2 --new-password-file $place/password"
# shellcheck disable=SC2086 # a list of words
claviger convert --raw-source $new "$place/plain" "$HOME/photos.luks"
claviger create --quick --size 20M --format VeraCrypt --password-file "$place/password" "$HOME/diary.hc"
claviger create --quick --size 20M --format LUKS2 --kdf pbkdf2 --iterations 1000 --password-file "$place/password" "$HOME/work.luks"
mkdir photos
claviger mount --isolate-keys --password-file "$place/password" photos.luks photos
head -c 5M /dev/urandom >photos/summer.raw
printf '[diary]\nvolume = "~/diary.hc"\ndir = "~/diary"\n' >"$HOME/.config/claviger/favourites.toml"

# Takes a picture once the window stops changing.
picture() {
    sleep "${2-2}"
    import -window "$(xdotool search --name '^Claviger$')" -depth 8 +dither -colors 96 -strip "$out/window-$1.png"
}
open() {
    if [ -n "$window" ]; then kill "$window"; wait "$window" 2>/dev/null || true; sleep 1; fi
    "$started" "$@" 2>/dev/null &
    window=$!
    xdotool search --sync --onlyvisible --name '^Claviger$' windowfocus --sync
    sleep 3
    # Move the pointer out of the way.
    xdotool mousemove "$((210 * ${SCALE:-1}))" 400
}
keys() {
    for key in "$@"; do
        xdotool key --delay 60 "$key"
        sleep 0.2
    done
}

tab() {
    count=$1
    while [ "$count" -gt 0 ]; do
        keys Tab
        count=$((count - 1))
    done
}
# The desktop prefers dark (1) or light (2).
prefers() {
    if [ -n "$portal" ]; then kill "$portal"; wait "$portal" 2>/dev/null || true; fi
    "$(dirname "$started")/examples/portal" "$1" &
    portal=$!
    sleep 1
}
# Three places come first, and then what is on the page; its most important button is the last.
volumes() {
    open
    picture "volumes$1" 3
}
creating() {
    open
    tab 2
    keys space
    sleep 1
}

prefers 2
volumes ''
open "$HOME/work.luks"
xdotool type --delay 80 wrong
keys Return
picture opening 5
creating
tab 11
keys space
picture create 8
open
tab 3
keys space
sleep 1
tab 10
keys space
picture measure 20
prefers 1
volumes -dark
prefers 2
export LANG=de_DE.UTF-8
creating
picture purpose-german 1
