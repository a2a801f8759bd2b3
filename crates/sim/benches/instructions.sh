#!/usr/bin/env bash
# Counts the instructions of three short runs under callgrind, independent of the load of the machine, and compares them with
# those in instructions.tsv: 5 % more is a regression, 5 % less must be recorded. `--renew` records them.
set -euo pipefail
cd "$(dirname "$0")/../../.."
counts=crates/sim/benches/instructions.tsv
command -v valgrind >/dev/null || { echo "skipped: no valgrind, so instructions are not counted"; exit 0; }
# The whole workspace, as its tests: so nothing is built for this alone. Incremental builds have other
# units of code, and so other counts, by up to 8 %.
export CARGO_INCREMENTAL=0
cargo build --quiet --workspace --example instructions
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
count() {
    valgrind --tool=callgrind --callgrind-out-file="$scratch/$1" target/debug/examples/instructions "$1" \
        >"$scratch/log" 2>&1 || { cat "$scratch/log"; exit 1; }
    sed -n 's/^summary: //p' "$scratch/$1"
}
if [ "${1-}" = --renew ]; then
    for case in ni-load wire-load broadcast; do printf '%s\t%s\n' "$case" "$(count "$case")"; done >"$scratch/new"
    mv "$scratch/new" "$counts"
    cat "$counts"
    exit 0
fi
failed=0
while read -r case kept; do
    now=$(count "$case")
    awk -v case="$case" -v kept="$kept" -v now="$now" 'BEGIN {
        change = 100 * (now / kept - 1)
        printf "%-10s %12d instructions, %+.2f %% of what is recorded\n", case, now, change
        exit (change > 5 || change < -5)
    }' || failed=1
done <"$counts"
[ "$failed" = 0 ] || { echo "more than 5 % off: find out why, or renew with $0 --renew"; exit 1; }
