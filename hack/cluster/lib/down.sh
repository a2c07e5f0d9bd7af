# Taking the full cluster down: no process, mount, namespace, link, firewall rule or cgroup stays. What is on disk does,
# so that the next `up` finds its images and objects; `down --purge` removes that too.
# shellcheck shell=bash

cluster_down() {
  check_rights
  check_number
  lock "$STATE_DIR/lock"
  # Kubelets first, or they would start again what is stopped next.
  local node agents=()
  for node in "${NODES[@]}"; do agents+=("kubelet.$node" "kube-proxy.$node"); done
  stop_daemons "${agents[@]}"
  for node in "${NODES[@]}"; do reset_node "$node"; done
  stop_daemons coredns kube-scheduler kube-controller-manager
  stop_daemons kube-apiserver
  stop_daemons etcd
  end_strays
  empty_cgroup "$CGROUP"
  remove_cgroup "$CGROUP"
  close_firewall
  remove_bridge
  while umount "$STATE_DIR/run" 2>/dev/null; do :; done
  restore_sysctls
}

# Whatever a half-started cluster left that has no name above.
end_strays() {
  local pids
  mapfile -t pids < <(cluster_pids)
  end_pids 0 "${pids[@]}"
}

# --one-file-system: should a mount below have survived, its content is not ours to delete.
purge() { rm -rf --one-file-system "$STATE_DIR"; }
