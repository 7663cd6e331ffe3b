#!/bin/bash
# The end-to-end tests: against the cluster that KUBECONFIG names, or one that is brought up for them and taken down again.
# Arguments go to pytest. `--core` in front of them: a part that takes minutes, and nothing, with a word about why, where no
# cluster is named and this machine cannot run one. `--core-where-built`: nor where that would have to be built first.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$here/../..
cluster=$here/cluster/cluster.sh
core= where_built=
case ${1:-} in
    --core) core=1 && shift ;;
    --core-where-built) core=1 where_built=1 && shift ;;
esac
test=("$root/.venv/bin/python" -m pytest ${core:+-m core} "${@:-$here}")
cd "$root"
export TORCHRELAY_E2E=1
if [[ ${KUBECONFIG:-} ]]; then
    exec "${test[@]}"
fi
if [[ $core ]]; then
    code=0
    why=$("$cluster" check 2>&1) || code=$?
    if ((code == 3)); then
        echo "end-to-end tests are SKIPPED, for this machine cannot run the test cluster (${why##*: }) and KUBECONFIG is not set"
        exit 0
    fi
fi
if [[ $where_built ]] && ! "$cluster" is-built; then
    echo "end-to-end tests are SKIPPED, for the test cluster is not built here yet, which takes ten minutes: make e2e-core"
    exit 0
fi
trap '"$cluster" down' EXIT
nice -n 15 "$cluster" build
"$cluster" up --nodes "${TORCHRELAY_E2E_NODES:-3}"
TORCHRELAY_E2E_CLUSTER=$cluster "$cluster" exec "${test[@]}"
