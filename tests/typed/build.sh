#!/usr/bin/env bash
# Builds the Go client of tests/conformance into target/typed/bin. Some two minutes of two cores once, less after
# tests/controlplane/build.sh, whose flags and library versions it shares; Go's own cache makes a later call short.
set -euo pipefail
cd "$(dirname "$0")"

root=$(cd ../.. && pwd)
bin=${CARGO_TARGET_DIR:-$root/target}/typed/bin
mkdir -p "$bin"
# Two callers at once must not build into the same folder.
exec 9>"$bin/../lock"
flock 9
CGO_ENABLED=0 go build -p 2 -trimpath -ldflags "-s -w" -o "$bin/typed" .
