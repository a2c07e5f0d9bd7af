# One bridge on the host, one network namespace per node on it. Nodes reach each other and the host, nothing else:
# there is no way out of here for a load generator that was given a wrong address.
# shellcheck shell=bash

# The host forwards nothing (nodes talk through the bridge), so only the bridge itself needs room in a host's firewall:
# Docker and ufw drop by default, and bridged packets pass iptables where br_netfilter says so.
firewall_rules() {
  printf '%s\n' "FORWARD -i $BRIDGE -o $BRIDGE" "INPUT -i $BRIDGE"
}

open_firewall() {
  local rule
  while read -ra rule; do
    rule+=(-m comment --comment "meta-infer cluster$SUFFIX" -j ACCEPT)
    iptables -w -C "${rule[@]}" 2>/dev/null || iptables -w -I "${rule[@]}" || die "iptables cannot add a rule: is NAT and comment support in the kernel?"
  done < <(firewall_rules)
}

close_firewall() {
  local rule
  while read -ra rule; do
    rule+=(-m comment --comment "meta-infer cluster$SUFFIX" -j ACCEPT)
    while iptables -w -D "${rule[@]}" 2>/dev/null; do :; done
  done < <(firewall_rules)
}

make_bridge() {
  if [[ ! -e /sys/class/net/$BRIDGE ]]; then
    ip link add "$BRIDGE" type bridge || die "the kernel cannot make a bridge: load its module 'bridge'"
  fi
  ip address replace "$API_ADDRESS/24" dev "$BRIDGE"
  ip link set "$BRIDGE" up
}

# make_node_network NODE: brings back what was taken away as well, such as a link that a test has cut.
make_node_network() {
  local node=$1 netns link address
  netns=$(node_netns "$node") link=$(node_link "$node") address=$(node_address "$node")
  if ! ip netns pids "$netns" >/dev/null 2>&1; then
    rm -f "/run/netns/$netns"
    ip netns add "$netns" || die "the kernel cannot make a network namespace"
  fi
  if [[ ! -e /sys/class/net/$link ]]; then
    ip link add "$link" type veth peer name eth0 netns "$netns" || die "the kernel cannot make a veth pair: load its module 'veth'"
  fi
  ip link set "$link" master "$BRIDGE" up
  ip -n "$netns" link set lo up
  ip -n "$netns" link set eth0 up
  ip -n "$netns" address replace "$address/24" dev eth0
  # Nothing outside is reachable, and whoever tries is told at once.
  ip -n "$netns" route replace unreachable default
  ip route replace "$(node_pod_range "$node")" via "$address" dev "$BRIDGE"
  # Without the second one, what a pod gets back from a Service on its own node is not translated back.
  nsenter --net="/run/netns/$netns" sysctl -qw net.ipv4.ip_forward=1 net.bridge.bridge-nf-call-iptables=1
}

make_pod_routes() {
  local node other
  for node in "${NODES[@]}"; do
    for other in "${NODES[@]}"; do
      [[ $node == "$other" ]] && continue
      echo "route replace $(node_pod_range "$other") via $(node_address "$other")"
    done | ip -n "$(node_netns "$node")" -batch -
  done
}

# Takes the routes and the inner end of the link along. The link is deleted by name too, because a namespace in which a
# process still ends keeps it for a moment.
remove_node_network() {
  local netns link
  netns=$(node_netns "$1") link=$(node_link "$1")
  if [[ -e /run/netns/$netns ]]; then ip netns delete "$netns"; fi
  ip link delete "$link" 2>/dev/null || true
}

remove_bridge() {
  if [[ -e /sys/class/net/$BRIDGE ]]; then ip link delete "$BRIDGE"; fi
  # `ip netns` mounts this directory on itself for the first namespace and never takes it away again.
  if mountpoint -q /run/netns && [[ -z $(ls -A /run/netns) ]]; then umount /run/netns; fi
}
