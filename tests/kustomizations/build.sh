#!/usr/bin/env bash
# Fetches the public kustomizations that tests build, as Go modules, and puts links to them into target/kustomizations.
# A few seconds once; nothing is built, and what the module cache has is not fetched again.
set -euo pipefail
cd "$(dirname "$0")"

root=$(cd ../.. && pwd)
out=${CARGO_TARGET_DIR:-$root/target}/kustomizations
mkdir -p "$out"

# Version 2 is the last one whose module has the examples.
link() {
  local dir
  dir=$(go mod download -json "$1" | sed -n 's/^\t"Dir": "\(.*\)",\{0,1\}$/\1/p')
  [ -d "$dir/$2" ] || { echo "kustomizations: $1 has no $2" >&2; exit 1; }
  ln -sfn "$dir/$2" "$out/$3"
}
cd ../controlplane
link sigs.k8s.io/kustomize@v2.0.3+incompatible examples kustomize-examples
link github.com/argoproj/argo-cd/v3@v3.5.7 manifests argo-cd
link github.com/argoproj/argo-cd/v3@v3.5.7 applicationset/examples argo-cd-examples
