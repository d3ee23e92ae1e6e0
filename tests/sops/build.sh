#!/usr/bin/env bash
# Builds what the tests of SOPS run into target/sops/bin: sops, age and age-keygen. A few minutes of two cores
# once (sops brings the libraries of every key service); a stamp of the module's files makes every later call
# return at once.
set -euo pipefail
cd "$(dirname "$0")"

root=$(cd ../.. && pwd)
bin=${CARGO_TARGET_DIR:-$root/target}/sops/bin
mkdir -p "$bin"
# Two callers at once must not build into the same folder.
exec 9>"$bin/../lock"
flock 9

stamp=$(cat go.mod go.sum build.sh | cat - <(go version) | sha256sum | cut -d' ' -f1)
if [ "$(cat "$bin/stamp" 2>/dev/null || true)" = "$stamp" ]; then
  exit 0
fi

echo "sops: building sops $(go list -m -f '{{.Version}}' github.com/getsops/sops/v3) and age into $bin"
# Two compilers at once: the generated clients of the key services take a gigabyte each.
CGO_ENABLED=0 go build -p 2 -trimpath -ldflags "-s -w" -o "$bin/" \
  github.com/getsops/sops/v3/cmd/sops \
  filippo.io/age/cmd/age \
  filippo.io/age/cmd/age-keygen
echo "$stamp" > "$bin/stamp"
