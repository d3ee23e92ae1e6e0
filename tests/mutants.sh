#!/usr/bin/env bash
# Mutates the rollout engine in every way that cargo-mutants supports, one mutation at a time, and lists the mutations
# that no test detects. The script takes hours. .cargo/mutants.toml lists the files. Arguments are passed to
# cargo-mutants: --shard 0/8, --file, --list.
set -euo pipefail
cd "$(dirname "$0")/.."

command -v cargo-mutants >/dev/null || cargo install cargo-mutants --locked
mutants() { cargo mutants --package starling-core --profile mutants --no-shuffle --output target/mutants "$@"; }

# The unit tests of the engine run first: they need only one small build for each mutation. The golden scripts and the
# properties, which take longer to build than to run, get only the mutations that the unit tests do not detect. Exit
# codes of cargo-mutants: 2, some mutations were not detected; 3, some tests timed out.
unit_tests=(plan:: rollout:: window:: membership:: simulate:: explain::)
mutants "$@" --timeout 30 --cargo-arg=--lib -- -- "${unit_tests[@]}" || [ $? -eq 2 ] || [ $? -eq 3 ]
# In a build without optimisations, so fewer cases of each property.
PROPTEST_CASES=40 mutants "$@" --timeout 200 --iterate -- --lib --test scripts --test plan_properties
