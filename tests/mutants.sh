#!/usr/bin/env bash
# Mutates the rollout engine in every way that cargo-mutants supports, one mutation at a time, and lists those that no test
# detects. It takes hours; .cargo/mutants.toml lists the files. Arguments go to cargo-mutants: --shard 0/8, --file, --list.
set -euo pipefail
cd "$(dirname "$0")/.."

command -v cargo-mutants >/dev/null || cargo install cargo-mutants --locked
mutants() { cargo mutants --package starling-core --profile mutants --no-shuffle --output target/mutants "$@"; }

# What the engine's own unit tests see costs one small build each. Only what they let through (2: some; 3: some never ended)
# meets the golden scripts and the properties, which take longer to build than to run.
mutants "$@" --timeout 30 --cargo-arg=--lib -- -- plan:: rollout:: window:: membership:: simulate:: explain:: || [ $? -eq 2 ] || [ $? -eq 3 ]
# In a build without optimisations, so fewer cases of each property.
PROPTEST_CASES=40 mutants "$@" --timeout 200 --iterate -- --lib --test scripts --test plan_properties
