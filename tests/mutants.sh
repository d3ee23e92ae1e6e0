#!/usr/bin/env bash
# Changes the rollout engine in every way that cargo-mutants knows, one at a time, and tells which changes no test of it notices
# (hours; .cargo/mutants.toml says what is changed). Arguments go to cargo-mutants: --shard 0/8, --file, --list.
set -euo pipefail
cd "$(dirname "$0")/.."

command -v cargo-mutants >/dev/null || cargo install cargo-mutants --locked
# Optimised a little: a case of a property takes longer than a build of one crate.
exec cargo mutants --package starling-core --profile mutants --no-shuffle --output target/mutants "$@" -- --lib --test plan_properties
