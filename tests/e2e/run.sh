#!/bin/bash
# The end-to-end tests: against the cluster that KUBECONFIG names, or one that is brought up for them and taken down again.
# Arguments go to pytest.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$here/../..
cluster=$here/cluster/cluster.sh
test=("$root/.venv/bin/python" -m pytest "${@:-$here}")
cd "$root"
export TORCHRELAY_E2E=1
if [[ ${KUBECONFIG:-} ]]; then
    exec "${test[@]}"
fi
trap '"$cluster" down' EXIT
nice -n 15 "$cluster" build
"$cluster" up --nodes "${TORCHRELAY_E2E_NODES:-3}"
TORCHRELAY_E2E_CLUSTER=$cluster "$cluster" exec "${test[@]}"
