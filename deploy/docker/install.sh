#!/bin/sh
# install.sh PART FOLDER: what one image needs, the same bytes each time. PYTHON, WHEELS and SOURCE_DATE_EPOCH can be given.
set -eu
part=$1 folder=$2
: "${PYTHON:=python}" "${WHEELS:=/wheel}" "${SOURCE_DATE_EPOCH:=0}"
here=$(dirname "$0")

"$PYTHON" -m pip install --no-compile --no-deps --only-binary=:all: --require-hashes --target "$folder" \
    -r "$here/requirements/$part.txt"
"$PYTHON" -m pip install --no-compile --no-deps --no-index --target "$folder" "$WHEELS"/torchrelay-*.whl
# Of the project each image has its own part, and the protocol; the agent brings the shim along, the controller the dashboard.
for other in agent controller webhook shim cli dashboard; do
    case "$part:$other" in "$other:$other" | agent:shim | controller:dashboard) ;; *) rm -rf "$folder/torchrelay/$other" ;; esac
done
rm -f "$folder/bin/torchrelay"
# Who installed what, from where and when, differs from build to build.
find "$folder" \( -name direct_url.json -o -name INSTALLER -o -name REQUESTED -o -name RECORD \) -path '*.dist-info/*' -delete
# The file system is read-only when it runs. This kind of byte code knows no times.
"$PYTHON" -m compileall -q -j 0 --invalidation-mode unchecked-hash -s "$folder" -p /opt/torchrelay "$folder"
find "$folder" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
