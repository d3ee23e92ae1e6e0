#!/usr/bin/env bash
# Builds the control plane of the tests into target/controlplane/bin: etcd, kube-apiserver,
# kube-controller-manager, kubectl and kustomize. About five minutes of two cores once; a stamp of the
# module's files makes every later call return at once. With KUBEBUILDER_ASSETS set nothing is built:
# the programs of that folder are used.
set -euo pipefail
cd "$(dirname "$0")"

if [ -n "${KUBEBUILDER_ASSETS:-}" ]; then
  echo "control plane: using KUBEBUILDER_ASSETS=$KUBEBUILDER_ASSETS"
  exit 0
fi

root=$(cd ../.. && pwd)
bin=${CARGO_TARGET_DIR:-$root/target}/controlplane/bin
mkdir -p "$bin"
# Two callers at once (a test run and a demo) must not build into the same folder.
exec 9>"$bin/../lock"
flock 9

stamp=$(cat go.mod go.sum etcd/main.go build.sh | cat - <(go version) | sha256sum | cut -d' ' -f1)
if [ "$(cat "$bin/stamp" 2>/dev/null || true)" = "$stamp" ]; then
  exit 0
fi

# Without these the servers call themselves v0.0.0-master, which kubectl cannot parse.
version=$(go list -m -f '{{.Version}}' k8s.io/kubernetes)
minor=$(echo "$version" | cut -d. -f2)
pkg=k8s.io/component-base/version
ldflags="-s -w -X $pkg.gitVersion=$version -X $pkg.gitMajor=1 -X $pkg.gitMinor=$minor"

echo "control plane: building Kubernetes $version, etcd and kustomize into $bin"
CGO_ENABLED=0 go build -trimpath -ldflags "$ldflags" -o "$bin/" \
  ./etcd \
  k8s.io/kubernetes/cmd/kube-apiserver \
  k8s.io/kubernetes/cmd/kube-controller-manager \
  k8s.io/kubernetes/cmd/kubectl \
  sigs.k8s.io/kustomize/kustomize/v5
[ ! -e "$bin/v5" ] || mv "$bin/v5" "$bin/kustomize"
echo "$stamp" > "$bin/stamp"
