#!/bin/sh
# Writes deploy/docker/requirements/*.txt anew from the .in files and constraints.txt. Needs a package index.
set -eu
cd "$(dirname "$0")/.."
tools=$(mktemp -d)
trap 'rm -r "$tools"' EXIT
"${PYTHON:-python3}" -m venv "$tools"
"$tools/bin/python" -m pip --disable-pip-version-check --quiet install pip-tools
for part in agent controller webhook build; do
    folder=deploy/docker/requirements
    "$tools/bin/pip-compile" --quiet --generate-hashes --strip-extras --no-annotate --no-header --no-emit-index-url \
        --no-emit-find-links -c constraints.txt -o "$tools/$part.txt" "$folder/$part.in"
    {
        echo "# Made by scripts/lock_images.sh; what each image is built with, for every architecture."
        cat "$tools/$part.txt"
    } >"$folder/$part.txt"
done
