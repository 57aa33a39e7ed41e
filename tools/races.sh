#!/bin/sh
# Runs tests with several threads under ThreadSanitizer. Prints their number, and fails if there was a race.
set -eu
cd "$(dirname "$0")/.."
platform=$(rustc -vV | sed -n 's/^host: //p')
if ! [ -d "$(rustc --print sysroot)/lib/rustlib/src/rust" ] && ! rustup component add rust-src; then
    echo 'SKIPPED races: the source of the standard library is missing, and rustup cannot install it.' >&2
    exit
fi
target=${CARGO_TARGET_DIR:-target}/tsan
log=$target/log
mkdir -p "$target"
: >"$log"
status=0

# races CRATE PROGRAM FILTER… runs the tests that the filters name. Little optimisation builds fast and runs slowly.
races() {
    crate=$1 program=$2
    shift 2
    RUSTC_BOOTSTRAP=1 RUSTFLAGS="-Zsanitizer=thread --cfg races" CARGO_PROFILE_DEV_OPT_LEVEL=1 TSAN_OPTIONS=halt_on_error=0 \
        "${CARGO:-cargo}" test --locked -Zbuild-std --target "$platform" --target-dir "$target" -p "$crate" $program -- "$@" \
        >"$target/part" 2>&1 || { status=1; cat "$target/part"; }
    cat "$target/part" >>"$log"
}

races claviger-crypto --lib pool::
races claviger-serve --lib key_process:: durable:: spin::
# Excludes tests that measure memory and sleep, start a kernel, or need replies as fast as a lone thread's.
races claviger-serve '--test it' nbd:: steady:: fuse::image::many fuse::tree:: --skip memory_ --skip sleeps --skip nbd::kernel --skip any_pieces
races claviger-engine --lib volume:: store::
races claviger-engine '--test it' volume:: integrity:: direct:: key_process:: store:: free_tail::
passed=$(sed -n 's/^test result: .* \([0-9]*\) passed.*/\1/p' "$log" | paste -sd+ | bc)
echo "races: $passed tests, $(grep -c '^WARNING: ThreadSanitizer' "$log" || true) races"
exit $status
