# What runs, for people to read; the exit code is for scripts.
# shellcheck shell=bash

HEALTHY=true

# state_of OK: prints a word and remembers a bad one.
check() {
  local name=$1 remark=$2
  shift 2
  if "$@" >/dev/null 2>&1; then
    printf '  %-26s ok\n' "$name"
  else
    printf '  %-26s NOT OK (%s)\n' "$name" "$remark"
    HEALTHY=false
  fi
}

print_control_plane() {
  echo "control plane"
  check etcd "$(daemon_log etcd)" daemon_pid etcd
  check kube-apiserver "$(daemon_log kube-apiserver)" api_ready
  check kube-controller-manager "$(daemon_log kube-controller-manager)" is_healthy 10257
  check kube-scheduler "$(daemon_log kube-scheduler)" is_healthy 10259
  check "coredns on $DNS_ADDRESS" "$(daemon_log coredns)" dns_answers
}

node_daemons_run() {
  local part
  for part in containerd kubelet kube-proxy; do daemon_pid "$part.$1" || return; done
}

# node_is_ready NODE: what the node lifecycle controller says, which notices a silent kubelet after 40 s.
node_is_ready() { nodes_are_ready '' "$1"; }

print_nodes() {
  local node cards
  echo "daemons of the nodes"
  for node in "${NODES[@]}"; do check "$node" "$STATE_DIR/logs/*.$node.log" node_daemons_run "$node"; done
  echo "nodes"
  kubectl get nodes -o json 2>/dev/null | jq --raw-output --arg card "$CARD_RESOURCE" --arg slow "$SLOW_NODE" '
    .items[] | [
      .metadata.name,
      (if any(.status.conditions[]; .type == "Ready" and .status == "True") then "Ready" else "NotReady" end),
      "family " + (.metadata.labels["card.metainfer.dev/product"] // "none"),
      "driver " + (.metadata.labels["card.metainfer.dev/driver-version"] // "none"),
      "cards " + (.status.allocatable[$card] // "0"),
      (if .metadata.name == $slow then "slower on purpose" else "" end)
    ] | "  " + join("\t")' | column -t -s $'\t'
  for node in "${NODES[@]}"; do node_is_ready "$node" >/dev/null 2>&1 || HEALTHY=false; done
  cards=$(nodes_without_card 2>/dev/null | xargs) || HEALTHY=false
  if [[ -n $cards ]]; then
    echo "  not labelled as declared, or without an allocatable card: $cards (up puts that right)"
    HEALTHY=false
  fi
}

print_pods() {
  local pods
  pods=$(kubectl get pods --all-namespaces --field-selector=status.phase!=Succeeded,status.phase!=Failed -o wide --no-headers 2>/dev/null |
    awk '{ printf "  %s/%s\t%s\t%s\n", $1, $2, $4, $(NF - 2) }' | column -t -s $'\t')
  echo "pods"
  printf '%s\n' "${pods:-  none}"
}

cluster_status() {
  if [[ -z $(cluster_pids) ]]; then
    say "down: nothing of the cluster in $STATE_DIR runs"
    return 1
  fi
  print_control_plane
  if api_ready; then
    print_nodes
    print_pods
  fi
  echo "kubeconfig"
  echo "  $STATE_DIR/admin.kubeconfig"
  [[ $HEALTHY == true ]] || { say "not healthy: see NOT OK and NotReady above; hack/cluster/up repairs what it can"; return 1; }
}
