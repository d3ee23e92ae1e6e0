#!/usr/bin/env bash
# Builds the control plane and the other programs of the tests (minutes the first time, then nothing) and runs every suite.
#
#   tests/run.sh         what has to pass before a change lands
#   tests/run.sh long    the same with a thousand kills in place of twenty, and ten thousand simulations in place of three hundred
set -euo pipefail
cd "$(dirname "$0")/.."

case "${1:-}" in
  "") ;;
  long) export STARLING_CRASH_ROUNDS=1000 STARLING_SEEDS=10000 ;;
  *) echo "usage: tests/run.sh [long]" >&2; exit 2 ;;
esac

tests/controlplane/build.sh
tests/sops/build.sh
# The suites that start servers come last, by themselves: first what fails in seconds.
cargo test --workspace --locked --lib --bins
cargo test --workspace --locked --doc
env -u STARLING_SEEDS cargo test --workspace --locked --tests
# A few histories are among the suites; as many as these are worth an optimised build.
STARLING_SEEDS="${STARLING_SEEDS:-300}" cargo test --release --workspace --locked --test simulation every_seed
