#!/bin/sh
# Changes the passphrase of many volumes.
# Usage: rotate.sh [-j JOBS] LIST JOURNAL OLD NEW [OPTION…]
# LIST has a volume on each line: a path or a URI, as `claviger` takes it. Empty lines and lines that begin with # are ignored.
# OLD and NEW are files with the passphrases. OPTIONs go to `claviger keyslot change`.
# JOURNAL is created if missing, and gets a line for each finished volume. After an interruption, the next run continues with the rest.
# Exit status 0: all volumes have the new passphrase. 1: the volumes listed at the end do not.
set -u
jobs=1
if [ "${1-}" = -j ]; then jobs=$2; shift 2; fi
if [ $# -lt 4 ]; then sed -n '2,3s/^# //p' "$0" >&2; exit 64; fi
list=$1 journal=$2 old=$3 new=$4
shift 4
cat -- "$list" "$old" "$new" >/dev/null || exit 66

# Two runs would disturb each other. Processes left by a killed run hold the lock while they write.
exec 9>>"$journal" || exit 73
flock -w 60 9 || { echo "$journal: another run is using it. Wait for its end" >&2; exit 75; }
# A line torn by a power cut has no "done" at its end. Do not join the next line to it.
[ -z "$(tail -c 1 -- "$journal")" ] || echo >&9

remaining() {
    { sed 's/^/J/' <"$journal"; sed 's/^/L/' <"$list"; } | awk '
        { line = substr($0, 2) }
        /^J/ { if (sub(/\tdone$/, "", line)) done[line]; next }
        line !~ /^(#|$)/ && !(line in done) && !seen[line]++ { print line }'
}

# One volume. After an interrupted change, the old or the new passphrase opens it. With the new one, repeating the change to the same
# passphrase brings all header copies to one state and overwrites what is left of the old key.
one='
    old=$1 new=$2 journal=$3
    shift 3
    for volume; do :; done
    change() {
        from=$1
        shift
        "${CLAVIGER:-claviger}" keyslot change --password-file "$from" --new-password-file "$new" "$@" 2>&1 >/dev/null
    }
    said=$(change "$old" "$@"); code=$?
    if [ $code -eq 2 ]; then said=$(change "$new" "$@"); code=$?; fi
    if [ $code -ne 0 ]; then printf "%s\n" "${said:-$volume: exit status $code}" >&2; exit 1; fi
    printf "%s\tdone\n" "$volume" >&9 && sync -- "$journal" || exit 1
'
remaining | tr '\n' '\0' | xargs -0 -r -n 1 -P "$jobs" sh -c "$one" rotate "$old" "$new" "$journal" "$@" --

left=$(remaining)
[ -n "$left" ] || exit 0
printf 'Not changed:\n%s\n' "$left" >&2
exit 1
