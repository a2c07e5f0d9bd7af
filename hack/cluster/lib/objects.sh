# What is in the cluster once it runs: roles, volumes, cards.
# shellcheck shell=bash

VOLUMES_DIR=$STATE_DIR/volumes
# The user that the images of this project run as.
IMAGE_USER=65532

make_volume_dirs() {
  mkdir -p "$VOLUMES_DIR/models" "$VOLUMES_DIR/store"
  chown "$IMAGE_USER:$IMAGE_USER" "$VOLUMES_DIR/models" "$VOLUMES_DIR/store"
}

apply_objects() {
  make_volume_dirs
  kubectl apply --server-side --force-conflicts --field-manager=hack-cluster -f - >/dev/null <<YAML
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: meta-infer-cluster-kubelet-api}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: system:kubelet-api-admin}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: kube-apiserver-kubelet-client}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: meta-infer-cluster-dns}
rules:
  - {apiGroups: [""], resources: [endpoints, services, pods, namespaces], verbs: [list, watch]}
  - {apiGroups: [discovery.k8s.io], resources: [endpointslices], verbs: [list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: meta-infer-cluster-dns}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: meta-infer-cluster-dns}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: system:coredns}]
---
$(volume mi-models mi-static 10Gi models "[ReadOnlyMany, ReadWriteMany]")
---
$(volume mi-store mi-store 5Gi store "[ReadWriteOnce]")
YAML
}

# volume NAME CLASS SIZE DIRECTORY MODES: a directory of this machine is the same one on every node.
volume() {
  cat <<YAML
apiVersion: v1
kind: PersistentVolume
metadata: {name: $1}
spec:
  storageClassName: $2
  capacity: {storage: $3}
  accessModes: $5
  persistentVolumeReclaimPolicy: Retain
  hostPath: {path: $VOLUMES_DIR/$4, type: Directory}
YAML
}

# A volume whose claim is gone waits for an administrator; here that is us.
free_volumes() {
  local name
  for name in $(kubectl get pv mi-models mi-store --ignore-not-found -o jsonpath='{.items[?(@.status.phase=="Released")].metadata.name}'); do
    kubectl patch pv "$name" --type=json -p '[{"op": "remove", "path": "/spec/claimRef"}]' >/dev/null
  done
}

# The labels that the feature discovery of a real cluster would set.
card_labels() {
  local product driver
  read -r product driver <<<"${NODE_CARD[$1]}"
  printf '%s\n' card.metainfer.dev/present=true "card.metainfer.dev/product=$product" "card.metainfer.dev/driver-version=$driver"
}

# A card is an extended resource without a device plugin behind it; it survives restarts of the kubelet and is scheduled
# like a real one. Labels that a test changed (a "driver upgrade") come back to what they were.
declare_card() {
  local labels
  mapfile -t labels < <(card_labels "$1")
  kubectl label node "$1" --overwrite "${labels[@]}" >/dev/null
  kubectl patch node "$1" --subresource=status --type=json \
    -p "[{\"op\": \"add\", \"path\": \"/status/capacity/${CARD_RESOURCE/\//~1}\", \"value\": \"1\"}]" >/dev/null
}

# Prints the nodes whose card is not what it should be. The kubelet turns a capacity into something allocatable with its
# next status update, at most 10 s later.
nodes_without_card() {
  local node want
  want=$(for node in "${NODES[@]}"; do card_labels "$node" | sed "s/^/$node=/"; done | jq --raw-input --null-input '
    reduce (inputs | split("=")) as [$node, $key, $value] ({}; .[$node][$key] = $value)')
  kubectl get nodes -o json | jq --raw-output --arg card "$CARD_RESOURCE" --argjson want "$want" '
    .items[] | .metadata.name as $name | select($want[$name] != null)
    | select(.status.allocatable[$card] != "1" or (.metadata.labels | contains($want[$name]) | not)) | $name'
}

cards_are_right() {
  local wrong
  wrong=$(nodes_without_card) && [[ -z $wrong ]]
}

# nodes_are_ready SINCE NODE...: said by the kubelet after SINCE (a node that lost its power is "Ready" for 40 s more).
nodes_are_ready() {
  local since=$1
  shift
  kubectl get nodes "$@" -o json | jq --exit-status --arg since "$since" --argjson want "$#" '
    [(.items // [.])[] | .status.conditions[]? | select(.type == "Ready" and .status == "True" and .lastHeartbeatTime >= $since)]
    | length == $want'
}
