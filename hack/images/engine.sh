# Docker where its daemon answers, else buildah: the same Dockerfiles, two ways of calling.
# shellcheck shell=bash

# The docker command alone is not enough: machines have the client without a daemon.
if [[ -z ${IMAGE_ENGINE:-} ]]; then
  if command -v docker >/dev/null && docker info >/dev/null 2>&1; then IMAGE_ENGINE=docker; else IMAGE_ENGINE=buildah; fi
fi

# image_id NAME: fails where there is none.
image_id() {
  case $IMAGE_ENGINE in
    docker) docker image inspect --format '{{.Id}}' "$1" ;;
    buildah) buildah inspect --type image --format '{{.FromImageID}}' "$1" ;;
  esac 2>/dev/null
}

# image_label NAME LABEL: empty where there is no such label or image.
image_label() {
  case $IMAGE_ENGINE in
    docker) docker image inspect --format "{{index .Config.Labels \"$2\"}}" "$1" ;;
    buildah) buildah inspect --type image --format "{{index .OCIv1.Config.Labels \"$2\"}}" "$1" ;;
  esac 2>/dev/null || true
}

# build_image NAME DOCKERFILE CONTEXT FLAG...: buildah's chroot isolation needs no privileges beyond the caller's, and
# steps that fetch packages use the host's network, since a chroot has none of its own.
build_image() {
  local name=$1 file=$2 context=$3
  shift 3
  case $IMAGE_ENGINE in
    docker) docker build --tag "$name" --file "$file" "$@" "$context" ;;
    buildah)
      if [[ -e $file.dockerignore ]]; then set -- --ignorefile "$file.dockerignore" "$@"; fi
      buildah bud --isolation chroot --network host --layers --tag "$name" --file "$file" "$@" "$context"
      ;;
  esac
}
