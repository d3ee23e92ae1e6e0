#!/usr/bin/env bash
# Builds the control plane and the other programs that the tests need (some minutes the first time, nothing after that),
# and runs every suite.
#
#   tests/run.sh         the tests that must pass before a change is merged; their random cases are the same each time
#   tests/run.sh long    the same with new random cases, 1,000 kills instead of 20, 10,000 simulations instead of 40, and
#                        140,000 mutated inputs instead of 14,000
set -euo pipefail
cd "$(dirname "$0")/.."

case "${1:-}" in
  # A change does not fail for a case that its predecessors did not meet.
  "") export PROPTEST_RNG_SEED="${PROPTEST_RNG_SEED:-1}" STARLING_FUZZ_SEED="${STARLING_FUZZ_SEED:-1}" ;;
  long)
    export STARLING_CRASH_ROUNDS=1000 STARLING_SEEDS=10000 STARLING_FUZZ=10000
    export PROPTEST_RNG_SEED="${PROPTEST_RNG_SEED:-$(date +%s)}"
    export STARLING_FUZZ_SEED="${STARLING_FUZZ_SEED:-$(date +%s)}"
    echo "To repeat the random cases: PROPTEST_RNG_SEED=$PROPTEST_RNG_SEED STARLING_FUZZ_SEED=$STARLING_FUZZ_SEED"
    ;;
  *) echo "usage: tests/run.sh [long]" >&2; exit 2 ;;
esac

tests/controlplane/build.sh
tests/sops/build.sh
tests/typed/build.sh
tests/kustomizations/build.sh
# Most suites run the program. Build it first, so that its compile errors appear here and not in each suite.
cargo build --locked --bin starling
# Tests that fail within seconds run first. The suites that start servers run last, one at a time. Everything runs in one
# build: an optimised one of the simulations alone would take longer than they do.
cargo test --workspace --locked --lib --bins
cargo test --workspace --locked --test prose --test arrows
cargo test --workspace --locked --doc
env -u STARLING_SEEDS cargo test --workspace --locked --tests
if [ -n "${STARLING_SEEDS:-}" ]; then
  # Thousands of them are worth an optimised build.
  cargo test --release --workspace --locked --test simulation every_seed
fi
