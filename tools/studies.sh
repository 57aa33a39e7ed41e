#!/bin/sh
# Writes docs/studies.md from stored runs: tools/studies.sh PROGRAM FOLDER [--undisturbed]. FOLDER has a NAME.json.gz for each study.
# With --undisturbed, a run that other programs disturbed is refused.
set -eu
program=$1 folder=$2
shift 2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

echo "# The studies, repeated"
echo
echo "Made by \`tools/studies.sh\` from the runs in \`docs/studies\`. What each table is, and how a study is repeated, is in [the guide](guide/lab.md)."
echo
echo "The runs were made on machines that did nothing else: \`make studies\` refuses runs that other programs disturbed, or that were not"
echo "watched. A pass that was disturbed was measured again. Each run's warnings are below its title."
echo
echo "Each figure is the median of what was measured here, with the loss against the unencrypted case. The study's own figure is below it."
echo "Intervals and single measurements: \`gzip -dc docs/studies/NAME.json.gz > run.json; claviger lab report run.json\`."
for run in "$folder"/*.json.gz; do
    [ -e "$run" ] || { echo "$0: no run (*.json.gz) in $folder" >&2; exit 1; }
    gzip -dc "$run" > "$work/run.json"
    echo
    "$program" lab report "$work/run.json" --markdown "$@"
done
