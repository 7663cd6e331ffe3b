#!/bin/sh
# Makes the virtual environment DIR for the imitated GPU: torch's CUDA build without NVIDIA's libraries, torchrelay, what tests need,
# and, in DIR/include, the headers of CUDA and NCCL that the imitations are built with.
set -eu
dir=$1
: "${PYTHON:=python3}" "${CUDA_TORCH:=torch===2.13.0}"  # three equals signs: with two, a CPU wheel would do, too

for tool in g++ readelf; do
    command -v $tool >/dev/null 2>&1 && continue
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        apt-get update -qq && apt-get install -y -qq --no-install-recommends g++ binutils
    else
        echo "$tool is missing: apt-get install g++ binutils (as root), then run this again." >&2
        exit 2
    fi
done
[ -x "$dir/bin/python" ] || "$PYTHON" -m venv "$dir"
pip="$dir/bin/python -m pip --disable-pip-version-check --quiet"
echo "installing $CUDA_TORCH into $dir (0.5 GB to download)"
$pip install --no-deps "$CUDA_TORCH"
"$dir/bin/python" tests/imitated_gpu/requirements.py "$dir"
$pip install -c constraints.txt -r "$dir/torch.txt"
echo "installing torchrelay and what its tests need into $dir"
$pip install -c constraints.txt -e . pytest pytest-timeout pytest-xdist
$pip download --no-deps --dest "$dir/wheels" -r "$dir/headers.txt"
"$dir/bin/python" tests/imitated_gpu/requirements.py "$dir" --unpack
rm -r "$dir/wheels"
