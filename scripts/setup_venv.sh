#!/bin/sh
# Makes the virtual environment DIR: torch first (pinned, so that nothing else chooses its build), then torchrelay.
set -eu
dir=$1
: "${PYTHON:=python3}" "${TORCH:=torch==2.13.0}"

have_python() {
    command -v "$PYTHON" >/dev/null 2>&1 && "$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null
}
if ! have_python; then
    echo "torchrelay needs Python 3.10 or newer as '$PYTHON' (choose another with PYTHON=...)." >&2
    exit 2
fi
if ! "$PYTHON" -c 'import ensurepip, venv' 2>/dev/null; then
    version=$("$PYTHON" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        apt-get update -qq && apt-get install -y -qq --no-install-recommends "python$version-venv"
    else
        echo "Python's venv module is missing: apt-get install python$version-venv (as root), then run this again." >&2
        exit 2
    fi
fi
[ -x "$dir/bin/python" ] || "$PYTHON" -m venv "$dir"
pip="$dir/bin/python -m pip --disable-pip-version-check --quiet"
echo "installing $TORCH into $dir"
$pip install "$TORCH"
echo "installing torchrelay and its tools into $dir"
$pip install -c constraints.txt -e ".[dev,demo]"
# An editable install is not compiled, and each of many short processes would do it anew where nothing may write it.
"$dir/bin/python" -m compileall -q agent cli controller dashboard protocol shim webhook || exit 1
