#!/usr/bin/env bash
# Changes the rollout engine in every way that cargo-mutants knows, one at a time, and tells which changes no test of it notices
# (hours; .cargo/mutants.toml says what is changed). Arguments go to cargo-mutants: --shard 0/8, --file, --list.
set -euo pipefail
cd "$(dirname "$0")/.."

command -v cargo-mutants >/dev/null || cargo install cargo-mutants --locked
mutants() { cargo mutants --package starling-core --profile mutants --no-shuffle --output target/mutants "$@"; }

# What the engine's own unit tests see costs one small build each. Only what they let through (2: some; 3: some never ended)
# meets the golden scripts and the properties, which take longer to build than to run.
mutants "$@" --timeout 30 --cargo-arg=--lib -- -- plan:: course:: steering:: window:: membership:: simulate:: explain:: || [ $? -eq 2 ] || [ $? -eq 3 ]
# In a build without optimisations, so fewer cases of each property.
PROPTEST_CASES=40 mutants "$@" --timeout 200 --iterate -- --lib --test scripts --test plan_properties
