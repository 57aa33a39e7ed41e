#!/bin/sh
# Checks our dependencies for known vulnerabilities. Without the network, the check reports SKIPPED, which is not a pass.
set -eu
log=$(mktemp)
trap 'rm -f "$log"' EXIT
if timeout 120 cargo deny --locked fetch db </dev/null >"$log" 2>&1; then
    exec cargo deny --locked check --disable-fetch advisories
fi
echo "SKIPPED advisories: cannot fetch the vulnerability database: $(grep -m 1 -E 'Caused by|error|failed' "$log" | cut -c1-200)" >&2
