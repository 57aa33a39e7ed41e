#!/bin/sh
# Takes the guide's pictures of the window: a real window on a virtual screen, driven by the keyboard.
#   tools/window-pictures.sh CLAVIGER WINDOW FOLDER
set -eu
program=$1
started=$(realpath "$2")
out=$(realpath "$3")
# The window looks for the program in its own folder, then in the search path.
PATH=$(dirname "$(realpath "$program")"):$PATH:/usr/sbin:/sbin
export PATH
if [ -z "${DISPLAY_OF_PICTURES-}" ]; then
    export DISPLAY_OF_PICTURES=yes
    exec xvfb-run -a -s '-screen 0 760x640x24 -noreset' "$0" "$program" "$started" "$out"
fi

place=$(mktemp -d)
HOME=$place/home XDG_RUNTIME_DIR=$place/run XDG_CONFIG_HOME=$place/home/.config CLAVIGER_RUNTIME_DIR=$place/run/claviger
export HOME XDG_RUNTIME_DIR XDG_CONFIG_HOME CLAVIGER_RUNTIME_DIR
export LANG=C.UTF-8 LIBGL_ALWAYS_SOFTWARE=1
mkdir -p "$HOME/.config/claviger" "$XDG_RUNTIME_DIR"
chmod 700 "$XDG_RUNTIME_DIR"
window=
cleanup() {
    [ -z "$window" ] || kill "$window" 2>/dev/null || true
    claviger unmount --all >/dev/null 2>&1 || true
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
mkdir photos
claviger mount --password-file "$place/password" photos.luks photos
printf '[diary]\nvolume = "~/diary.hc"\ndir = "~/diary"\n' >"$HOME/.config/claviger/favourites.toml"

# Takes a picture once the window stops changing.
picture() {
    sleep "${2-2}"
    import -window "$(xdotool search --name '^Claviger$')" -depth 8 +dither -colors 64 -strip "$out/window-$1.png"
}
open() {
    if [ -n "$window" ]; then kill "$window"; wait "$window" 2>/dev/null || true; sleep 1; fi
    "$started" "$@" 2>/dev/null &
    window=$!
    xdotool search --sync --onlyvisible --name '^Claviger$' windowfocus --sync
    sleep 3
    # Move the pointer out of the way.
    xdotool mousemove 759 320
}
keys() {
    for key in "$@"; do
        xdotool key --delay 60 "$key"
        sleep 0.2
    done
}

open
picture volumes 3
# The keyboard reaches the pages first.
keys Tab Tab Tab space
sleep 1
keys Tab Tab Tab space
picture measure 14
open "$HOME/diary.hc"
xdotool type --delay 80 wrong
keys Return
picture opening 2
open
keys Tab Tab space
sleep 1
# The guide, the page for experts, four purposes, two systems, five dangers, and the button.
keys Tab Tab Tab Tab Tab Tab Tab Tab Tab Tab Tab Tab Tab Tab Tab space
picture create 8
