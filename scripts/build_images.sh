#!/bin/sh
# Builds the images of agent, controller and webhook from one base, which it names by digest: REGISTRY, TAG, PUSH=--push.
#   --pin   writes today's digest of the base into the Dockerfile, and builds nothing (docker buildx or skopeo)
#   --where-possible   for CI: a machine that cannot build says so, and that is no failure
# A release, that is a commit with a tag v*, is built only where the Dockerfile itself names the digest.
# Exit code 3: this machine cannot build: it has no builder, or reaches no registry.
set -eu
cd "$(dirname "$0")/.."
cannot=3
if [ "${1:-}" = --where-possible ]; then
    code=0
    scripts/build_images.sh || code=$?
    [ "$code" = "$cannot" ] || exit "$code"
    echo "images are SKIPPED: this machine cannot build them"
    exit
fi
file=deploy/docker/Dockerfile
base=$(sed -n 's/^ARG PYTHON_IMAGE=//p' "$file")

say() {
    echo "build_images: $1" >&2
}

fail() {
    say "$1"
    exit "${2:-1}"
}

has() {
    command -v "$1" >/dev/null 2>&1
}

case ${1:-}$base in
--pin* | *@sha256:*) ;;
*)
    release=$(git describe --exact-match --match 'v*' 2>/dev/null) || release=
    [ -z "$release" ] || fail "the release $release names its base, $base, without a digest: run make pin-images, commit $file, and tag that"
    say "$file names its base, $base, without a digest: a build takes the one of its day, and another day's may differ (make pin-images)"
    ;;
esac

# The digest of the list of images for all architectures.
digest() {
    case $builder in
    buildx) docker buildx imagetools inspect "$base" --format '{{.Manifest.Digest}}' ;;
    *) skopeo inspect --format '{{.Digest}}' "docker://$base" ;;
    esac
}

if has docker && docker buildx version >/dev/null 2>&1; then
    builder=buildx
elif has podman; then
    builder=podman
elif has buildah; then
    builder=buildah
elif [ "${1:-}" = --pin ] && has skopeo; then
    builder=none
else
    fail "no builder: install docker with buildx, podman, or buildah" "$cannot"
fi

[ "${1:-}" != --pin ] || base=${base%@*} # what it is called today, though an earlier one stands there
case $base in
*@sha256:*) ;;
*)
    [ "$builder" = buildx ] || has skopeo || fail "the base $base has no digest, and skopeo, which would find it, is not installed" "$cannot"
    found=$(digest) || fail "the digest of $base cannot be had: is the registry reached?" "$cannot"
    case $found in
    sha256:*) base=$base@$found ;;
    *) fail "the registry gave no digest for $base, but: $found" ;;
    esac
    ;;
esac

if [ "${1:-}" = --pin ]; then
    sed "s|^ARG PYTHON_IMAGE=.*|ARG PYTHON_IMAGE=$base|" "$file" >"$file.new"
    mv "$file.new" "$file"
    echo "pinned: $base"
    exit
fi

echo "base: $base"
[ "$builder" = buildx ] || echo "$builder attaches neither an SBOM nor a provenance; docker buildx does"
for part in agent controller webhook; do
    set -- -f "$file" --target "$part" --platform linux/amd64,linux/arm64 --build-arg "PYTHON_IMAGE=$base"
    set -- "$@" --build-arg "SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)"
    name=${REGISTRY:-torchrelay}/$part:${TAG:-0.1.0}
    if [ "$builder" = buildx ]; then
        docker buildx build "$@" --sbom=true --provenance=mode=max ${PUSH:+"$PUSH"} -t "$name" .
    else
        "$builder" manifest rm "$name" >/dev/null 2>&1 || true # of a build before this one, which would be added to
        "$builder" build "$@" --manifest "$name" .
        [ -z "${PUSH:-}" ] || "$builder" manifest push --all "$name" "docker://$name"
    fi
done
