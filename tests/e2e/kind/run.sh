#!/bin/bash
# The end-to-end tests on a cluster of kind's, which is made for them and deleted again. Needs docker, kind and kubectl.
# Arguments go to pytest. KIND_IMAGE chooses the release of Kubernetes, as kindest/node:v1.34.0; kind's own choice without it.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../../.." && pwd)
name=torchrelay-e2e on_nodes=/of-the-host
for tool in docker kind kubectl; do
    command -v "$tool" >/dev/null || { echo "make e2e-kind needs $tool" >&2; exit 2; }
done
work=$(mktemp -d)
trap 'kind delete cluster --name "$name"; rm -rf "$work"' EXIT
mkdir "$work/out"
"$root/.venv/bin/python" "$here/config.py" "$work/out" "$on_nodes" >"$work/kind.json"
export KUBECONFIG=$work/kubeconfig
kind create cluster --name "$name" --config "$work/kind.json" --wait 180s ${KIND_IMAGE:+--image "$KIND_IMAGE"}
docker pull --quiet busybox:1
docker tag busybox:1 localhost/busybox:1
kind load docker-image --name "$name" localhost/busybox:1
export TORCHRELAY_E2E_ON_NODES=$on_nodes TORCHRELAY_E2E_NODE_NAMES="$name-worker $name-worker2 $name-worker3"
bash "$root/tests/e2e/run.sh" --basetemp="$work/out/pytest" "${@:-$root/tests/e2e}"
