#!/bin/bash
# Runs every test: with cargo-nextest, where it is installed, each in its own process and several at once; otherwise with cargo test, one
# test program after the other. Lists the skipped tests at the end.
#   tools/test.sh CARGO
set -euo pipefail
cargo=$1

# What is freed stays with the process. Tests copy images of some MiB thousands of times, and in a new process glibc gives each back to the
# kernel and faults it in again: up to nine tenths of such a test's processor time.
export MALLOC_MMAP_THRESHOLD_=33554432 MALLOC_TRIM_THRESHOLD_=268435456

skipped=$(mktemp)
report() {
    sort "$skipped"
    rm -f "$skipped"
}
trap report EXIT

if $cargo nextest --version >/dev/null 2>&1; then
    export CLAVIGER_SKIPPED=$skipped
    status=0
    # Many tests wait for other programs most of the time.
    $cargo nextest run --locked --workspace --test-threads $((2 * $(nproc))) || status=$?
    $cargo test --locked --workspace --doc || status=$?
    exit $status
fi
$cargo test --locked --workspace
