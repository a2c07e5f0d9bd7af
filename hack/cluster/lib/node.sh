# One node: containerd, kubelet and kube-proxy in a network namespace and a mount namespace of their own. The mount
# namespace gives each of them the default paths (/run/containerd, /var/lib/kubelet, ...) without meeting the other
# nodes or what the host runs, and takes every mount of its pods along when it goes.
# shellcheck shell=bash

make_node_pki() {
  local node=$1
  issue ca "$node" "/O=system:nodes/CN=system:node:$node" "DNS:$node,IP:$(node_address "$node")"
  make_kubeconfig "$node" "$STATE_DIR/pki/$node.kubeconfig" "$(api_url)"
}

# The directory in which namespaces are kept alive as files. The kernel takes them only on a private mount.
make_run_dir() {
  local run=$STATE_DIR/run
  mkdir -p "$run"
  mountpoint -q "$run" && return
  mount --bind "$run" "$run"
  mount --make-private "$run"
}

# Run inside a new mount namespace. What is in memory (/run) starts empty, as after a boot; the last line is the mark
# that all of it was done.
fill_mount_namespace() {
  set -e
  local dir=$1
  bind() { mkdir -p "$dir/$1" "$2" && mount --bind "$dir/$1" "$2"; }
  bind containerd /var/lib/containerd
  bind kubelet /var/lib/kubelet
  bind cni /var/lib/cni
  bind cni-config /etc/cni/net.d
  bind pod-logs /var/log/pods
  bind container-logs /var/log/containers
  mkdir -p /run/containerd /run/netns
  mount -t tmpfs -o mode=0711 node /run/containerd
  mount -t tmpfs -o mode=0755 node /run/netns
  touch /run/containerd/.mounted
}

# Changes of the host's mounts are seen by the node (slave), never the other way round.
make_mount_namespace() {
  local node=$1 mounts
  mounts=$(node_mounts "$node")
  [[ -e $mounts ]] || touch "$mounts"
  unshare --mount="$mounts" --propagation slave bash -c "$(declare -f fill_mount_namespace); fill_mount_namespace \"\$1\"" \
    - "$(node_dir "$node")" || die "the mounts of $node could not be made"
}

# reset_node NODE: what a power cut does to a machine, for a node whose containerd is gone: no process, mount or address
# is left, everything on disk is.
reset_node() {
  local node=$1 mounts pids
  mounts=$(node_mounts "$node")
  stop_daemons "kubelet.$node" "kube-proxy.$node"
  empty_cgroup "$CGROUP/$node"
  stop_daemons "containerd.$node"
  # The shims, which outlive containerd by design.
  mapfile -t pids < <(marked_pids "META_INFER_DAEMON=$STATE_DIR/containerd.$node")
  end_pids 0 "${pids[@]}"
  while umount "$mounts" 2>/dev/null; do :; done
  remove_node_network "$node"
  # Addresses that went with their pods.
  rm -rf "$(node_dir "$node")/cni"
}

write_node_config() {
  local node=$1 dir pki=$STATE_DIR/pki
  dir=$(node_dir "$node")
  mkdir -p "$dir/cni-config"
  write_if_changed "$dir/cni-config/10-meta-infer.conflist" < <(cni_config "$node")
  write_if_changed "$dir/containerd.toml" < <(containerd_config)
  write_if_changed "$dir/kubelet.yaml" < <(kubelet_config "$node")
  write_if_changed "$dir/kube-proxy.yaml" < <(kube_proxy_config "$node")
}

cni_config() {
  cat <<JSON
{
  "cniVersion": "0.4.0",
  "name": "pods",
  "plugins": [
    {
      "type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true, "ipMasq": false,
      "ipam": {"type": "host-local", "ranges": [[{"subnet": "$(node_pod_range "$1")"}]], "routes": [{"dst": "0.0.0.0/0"}]}
    },
    {"type": "portmap", "capabilities": {"portMappings": true}}
  ]
}
JSON
}

# "opt" would make /opt/containerd, and the snapshotters complain about disks that they do not find. A root without
# CAP_SYS_RESOURCE cannot lower OOM scores: runc then dies with "can't get final child's PID from pipe: EOF".
containerd_config() {
  cat <<TOML
version = 2
disabled_plugins = [
  "io.containerd.internal.v1.opt",
  "io.containerd.snapshotter.v1.aufs",
  "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.zfs",
]
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "$BUSYBOX_IMAGE"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
TOML
}

# The CPU quota of a slow node's parent group binds its pods already. Version 1 refuses a child that may use more than
# its parent (any pod with a limit of one CPU), so this kubelet sets no quotas of its own.
kubelet_config() {
  local node=$1 quota=true
  if [[ $CGROUP_VERSION == 1 && $(node_quota "$node") != -1\ * ]]; then quota=false; fi
  cat <<YAML
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: $STATE_DIR/pki/ca.crt}}
authorization: {mode: Webhook}
tlsCertFile: $STATE_DIR/pki/$node.crt
tlsPrivateKeyFile: $STATE_DIR/pki/$node.key
cgroupDriver: cgroupfs
cgroupRoot: /$CGROUP/$node
cpuCFSQuota: $quota
failCgroupV1: false
failSwapOn: false
clusterDNS: [$DNS_ADDRESS]
clusterDomain: cluster.local
resolvConf: ""
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
volumePluginDir: /var/lib/kubelet/volume-plugins
# Images come through hack/cluster/load and cannot be pulled again, so none is ever collected; and five nodes share one
# disk, whose fill level would otherwise evict pods on all of them at once.
imageGCHighThresholdPercent: 100
evictionHard: {memory.available: 100Mi, nodefs.available: 1%, nodefs.inodesFree: 1%, imagefs.available: 1%}
YAML
}

# conntrack 0: its limits belong to the host and are not a namespace's to set.
kube_proxy_config() {
  cat <<YAML
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: iptables
hostnameOverride: $1
clientConnection: {kubeconfig: $STATE_DIR/pki/kube-proxy.kubeconfig}
clusterCIDR: $CLUSTER_RANGE
conntrack: {maxPerCore: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
YAML
}

# Nothing is to be done for a node whose daemons run and whose link is up.
node_runs() {
  all_run "containerd.$1" "kubelet.$1" "kube-proxy.$1" && [[ $(<"/sys/class/net/$(node_link "$1")/operstate") == up ]]
} 2>/dev/null

has_mounts() { in_node "$1" test -e /run/containerd/.mounted 2>/dev/null; }

# start_container_runtime NODE: the first half of a node; the second one needs the sandbox image in its store.
start_container_runtime() {
  local node=$1
  if ! daemon_pid "containerd.$node" >/dev/null || ! has_mounts "$node"; then reset_node "$node"; fi
  make_node_pki "$node"
  write_node_config "$node"
  make_node_network "$node"
  has_mounts "$node" || make_mount_namespace "$node"
  start_daemon "containerd.$node" nsenter --net="/run/netns/$(node_netns "$node")" --mount="$(node_mounts "$node")" -- \
    containerd --config "$(node_dir "$node")/containerd.toml" --log-level warn
}

start_node_agents() {
  local node=$1 dir
  dir=$(node_dir "$node")
  wait_daemon "containerd.$node" 30 node_ctr "$node" version
  ensure_busybox_image "$node"
  start_daemon "kubelet.$node" nsenter --net="/run/netns/$(node_netns "$node")" --mount="$(node_mounts "$node")" -- \
    "$(tool kubelet)" --config="$dir/kubelet.yaml" --kubeconfig="$STATE_DIR/pki/$node.kubeconfig" \
    --hostname-override="$node" --node-ip="$(node_address "$node")" \
    --node-labels="$(card_labels "$node" | paste -sd ,)"
  start_daemon "kube-proxy.$node" nsenter --net="/run/netns/$(node_netns "$node")" --mount="$(node_mounts "$node")" -- \
    "$(tool kube-proxy)" --config="$dir/kube-proxy.yaml"
}
