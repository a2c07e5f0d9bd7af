# What the machine must have. Each thing that is missing is named in one line that says what to do.
# shellcheck shell=bash

check_rights() {
  [[ $(uname -s) == Linux ]] || die "the cluster needs Linux: on another system use hack/kind, or a virtual machine"
  ((EUID == 0)) || die "the cluster needs root (namespaces, cgroups): run it with 'sudo -E' (only --api-only does without)"
  unshare --mount --net true 2>/dev/null || die "root may not make namespaces here (an unprivileged container?): use a virtual machine or a privileged container"
}

check_kernel() {
  check_cgroups
  grep -qw overlay /proc/filesystems || modprobe overlay 2>/dev/null || die "the kernel has no overlay file system: load its module 'overlay'"
  [[ -e /proc/sys/net/bridge ]] || modprobe br_netfilter 2>/dev/null || die "bridged packets cannot pass iptables: load the kernel module 'br_netfilter'"
  grep -q '^Seccomp:' /proc/self/status || die "the kernel has no seccomp, which pods with RuntimeDefault need"
  iptables -w -t nat -S >/dev/null 2>&1 || die "iptables has no NAT table: load the kernel module 'nf_nat' (or 'iptable_nat')"
}

check_disk() {
  local dir=$STATE_DIR free
  while [[ ! -d $dir ]]; do dir=$(dirname "$dir"); done
  [[ $(stat --file-system --format=%T "$dir") != overlayfs ]] ||
    die "$dir is an overlay file system, and images cannot be laid over one: set META_INFER_CLUSTER_DIR to a directory on a disk"
  free=$(df --output=avail -B 1M "$dir" | tail -n 1)
  # Five nodes keep each image twice, packed and unpacked: 1 GB of images is 10 GB here.
  ((free >= 5000)) || die "only $free MiB are free in $dir, 5000 are needed: free some, or set META_INFER_CLUSTER_DIR"
}

# Only while the daemon that listens there is not ours.
check_port() {
  local daemon=$1 protocol=$2 port=$3 holder
  daemon_pid "$daemon" >/dev/null && return
  holder=$(ss -Hln"${protocol:0:1}"p | awk -v a="$API_ADDRESS:$port" -v b="0.0.0.0:$port" -v c="*:$port" \
    '$4 == a || $4 == b || $4 == c { print $NF; exit }')
  [[ -z $holder ]] || die "$protocol port $port is taken by $holder: stop it, $daemon needs it on $API_ADDRESS"
}

# A VPN or proxy may have taken the benchmark range.
check_addresses() {
  local taken
  taken=$(ip -o -4 address show | awk '$4 ~ /^198\.1[89]\./ && $2 !~ /^br-mi/ { print $2 " (" $4 ")"; exit }')
  [[ -z $taken ]] || die "the interface $taken uses addresses of 198.18.0.0/15, which the cluster needs: take it down"
}

# Two clusters of one number would share links and cgroups, and taking one down would kill the other.
check_number() {
  local pid owner
  for pid in $(marked_pids "META_INFER_BRIDGE=$BRIDGE"); do
    owner=$(tr '\0' '\n' 2>/dev/null <"/proc/$pid/environ" | sed -n 's/^META_INFER_CLUSTER=//p')
    [[ -z $owner || $owner == "$STATE_DIR" ]] ||
      die "the cluster in $owner has number $INSTANCE already: set META_INFER_CLUSTER_INSTANCE to another one"
  done
}

preflight() {
  check_rights
  check_disk
  install_packages containerd runc /usr/lib/cni/bridge iptables conntrack ip nsenter jq openssl curl
  check_kernel
  check_addresses
  check_number
  check_port kube-apiserver tcp "$API_PORT"
  check_port coredns tcp 53
  check_port coredns udp 53
}
