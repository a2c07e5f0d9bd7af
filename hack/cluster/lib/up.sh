# Bringing the full cluster up. Each step looks at what is there and adds what is missing, so it may be interrupted
# anywhere and run again, on a running cluster as well as after a power cut.
# shellcheck shell=bash

cluster_up() {
  local node started
  preflight
  ensure_tools "${TOOL_NAMES[@]}"
  mkdir -p "$STATE_DIR"
  chmod 0755 "$STATE_DIR"
  lock "$STATE_DIR/lock"
  echo "$INSTANCE" >"$STATE_DIR/instance"
  # The API server's clock is this machine's.
  started=$(date --utc +%Y-%m-%dT%H:%M:%SZ)

  # 1. What the daemons stand on.
  make_run_dir
  save_sysctls
  forget_throttles
  make_cgroups
  open_firewall
  make_bridge

  # 2. The control plane, and meanwhile the container runtimes, which do not need it.
  make_ca ca
  make_busybox_archive >/dev/null
  local broken=()
  for node in "${NODES[@]}"; do node_runs "$node" || broken+=("$node"); done
  for node in "${broken[@]}"; do start_container_runtime "$node"; done
  if ((${#broken[@]})); then make_pod_routes; fi
  start_control_plane
  apply_objects
  say "control plane is up ($SECONDS s)"

  # 3. The nodes.
  stop_unregistered_kubelets
  local fresh=() known=()
  for node in "${NODES[@]}"; do
    if daemon_pid "kubelet.$node" >/dev/null; then known+=("$node"); else fresh+=("$node"); fi
    node_runs "$node" || start_node_agents "$node"
  done
  wait_control_plane
  if ((${#known[@]})); then wait_for 120 "nodes ${known[*]} to be Ready" nodes_are_ready '' "${known[@]}"; fi
  if ((${#fresh[@]})); then wait_for 120 "nodes ${fresh[*]} to be Ready" nodes_are_ready "$started" "${fresh[@]}"; fi
  local unlabelled
  unlabelled=$(nodes_without_card)
  for node in $unlabelled; do declare_card "$node"; done
  wait_for 60 "the cards to be allocatable" cards_are_right
  free_volumes
  say "up: Kubernetes $(tool_version kubernetes), ${#NODES[@]} nodes ($SECONDS s); export KUBECONFIG=$STATE_DIR/admin.kubeconfig"
}

# A kubelet registers its node only when it starts.
stop_unregistered_kubelets() {
  local node registered
  registered=" $(kubectl get nodes -o jsonpath='{.items[*].metadata.name}') "
  for node in "${NODES[@]}"; do
    [[ $registered == *" $node "* ]] || stop_daemons "kubelet.$node"
  done
}
