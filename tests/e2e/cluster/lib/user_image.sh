#!/bin/bash
# usage: user_image.sh IMAGE USER NAME OUT
# Copies the tar file IMAGE of image.sh as the image NAME whose processes run as USER, where nobody says otherwise.
set -euo pipefail

image=$1 user=$2 name=$3 out=$4
work=$(mktemp -d)
trap 'rm -r "$work"' EXIT

tar -C "$work" -xf "$image"
sed -i "s|\"config\": {|\"config\": {\"User\": \"$user\", |" "$work/config.json"
grep -q "\"User\": \"$user\"" "$work/config.json"
sed -i "s|\"RepoTags\": \[[^]]*\]|\"RepoTags\": [\"$name\"]|" "$work/manifest.json"
tar -C "$work" -cf "$out" config.json layer.tar manifest.json
