# From the local image storage into the nodes.
# shellcheck shell=bash

# At most two at a time: an import is one core's work (checksums, unpacking), and there are two of them.
LOAD_JOBS=2
EXPORT_DIR=$STATE_DIR/images/export

# load_image NAME: only to the nodes that have another one or none under that name.
load_image() {
  local name=$1 id node stale started=$SECONDS
  id=$(image_id "$name") || die "no image is called '$name' in the storage of $IMAGE_ENGINE: build it first (hack/images/build)"
  id=${id#sha256:}
  mapfile -t stale < <(
    for node in "${NODES[@]}"; do
      { has_image "$node" "$name,labels.\"$SOURCE_LABEL\"==$id" || echo "$node"; } &
    done
    wait
  )
  if ((${#stale[@]} == 0)); then
    say "$name is on all nodes"
    return
  fi
  say "loading $name onto ${stale[*]}"
  "export_from_$IMAGE_ENGINE" "$name" "$id"
  for node in "${stale[@]}"; do
    # Wait for one to end before the third one starts; its failure ends all.
    while (($(jobs -rp | wc -l) >= LOAD_JOBS)); do wait -n || die "$name could not be loaded: the lines above say where"; done
    take_image "$node" "$name" "$id" &
  done
  while (($(jobs -p | wc -l))); do wait -n || die "$name could not be loaded: the lines above say where"; done
  rm -rf "$EXPORT_DIR"
  say "loaded $name in $((SECONDS - started)) s"
}

# As an OCI layout, uncompressed: gzip would take most of the time, once here and once more on each node. buildah writes
# "dir:" without compression and "oci:" never, so its directory becomes the layout's blobs.
export_from_buildah() {
  local name=$1 id=$2 blobs=$EXPORT_DIR/blobs/sha256 digest
  rm -rf "$EXPORT_DIR" && mkdir -p "$blobs"
  buildah push --quiet --disable-compression --format oci "$id" "dir:$blobs" >/dev/null || die "buildah could not export $name"
  digest=$(sha256sum "$blobs/manifest.json" | cut -d ' ' -f 1)
  ln "$blobs/manifest.json" "$blobs/$digest"
  echo '{"imageLayoutVersion": "1.0.0"}' >"$EXPORT_DIR/oci-layout"
  # containerd reads the name from an annotation of its own.
  jq --null-input --arg name "$name" --arg digest "sha256:$digest" --argjson size "$(stat --format=%s "$blobs/$digest")" '
    {schemaVersion: 2, manifests: [{
      mediaType: "application/vnd.oci.image.manifest.v1+json", digest: $digest, size: $size,
      annotations: {"io.containerd.image.name": $name}}]}' >"$EXPORT_DIR/index.json"
}

export_from_docker() {
  rm -rf "$EXPORT_DIR" && mkdir -p "$EXPORT_DIR"
  docker save --output "$EXPORT_DIR/docker.tar" "$1" || die "docker could not export $1"
}

# take_image NODE NAME ID
take_image() {
  local node=$1 name=$2 id=$3
  if [[ $IMAGE_ENGINE == docker ]]; then
    node_ctr "$node" images import - <"$EXPORT_DIR/docker.tar" >/dev/null
  else
    # A blob that the node has can be about to be collected there: then all of them are sent.
    pack_layout "$node" | node_ctr "$node" images import - >/dev/null 2>&1 || pack_layout | node_ctr "$node" images import - >/dev/null
  fi || { say "error: $node could not take the image"; return 1; }
  node_ctr "$node" images label "$name" "$SOURCE_LABEL=$id" >/dev/null
  drop_replaced_images "$node"
}

# pack_layout [NODE]: the layout as a tar, without the blobs that NODE has already.
pack_layout() {
  local manifest
  manifest=$(jq --raw-output '.manifests[0].digest' "$EXPORT_DIR/index.json")
  comm -23 \
    <({ echo "$manifest"; jq --raw-output '.config.digest, .layers[].digest' "$EXPORT_DIR/blobs/${manifest/://}"; } | sort -u) \
    <(if (($#)); then node_ctr "$1" content list --quiet | sort; fi) |
    sed 's|:|/|; s|^|blobs/|' |
    tar --create --file - --directory "$EXPORT_DIR" oci-layout index.json --files-from -
}

# The kubelet's side of containerd also lists each image by its digest, and would keep the layers of every image that
# was ever loaded. Pods that still run such an image keep their own files.
drop_replaced_images() {
  local replaced
  mapfile -t replaced < <(node_ctr "$1" images list | awk '
    NR == 1 { next }
    $1 ~ /^sha256:/ { by_digest[$1] = $3; next }
    { named[$3] = 1 }
    END { for (reference in by_digest) if (!(by_digest[reference] in named)) print reference }')
  ((${#replaced[@]})) || return 0
  node_ctr "$1" images remove "${replaced[@]}" >/dev/null
}
