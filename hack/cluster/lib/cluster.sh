# What the full cluster is: names, addresses, nodes. The other files only read it.
# shellcheck shell=bash

# Several clusters can stand beside each other, each with its own directory and number: the tests that cut the power
# use another one than the one people work with.
STATE_DIR=$(canonical_dir "${META_INFER_CLUSTER_DIR:-/var/lib/meta-infer-cluster}")
INSTANCE=${META_INFER_CLUSTER_INSTANCE:-}
# The directory remembers its number: taking the wrong one down would take somebody else's cluster down.
if [[ -s $STATE_DIR/instance ]]; then
  known=$(<"$STATE_DIR/instance")
  [[ -z $INSTANCE || $INSTANCE == "$known" ]] ||
    die "the cluster in $STATE_DIR has number $known, not $INSTANCE: unset META_INFER_CLUSTER_INSTANCE, or 'down --purge' it first"
  INSTANCE=$known
fi
INSTANCE=${INSTANCE:-0}
[[ $INSTANCE =~ ^([0-9]|1[0-5])$ ]] || die "META_INFER_CLUSTER_INSTANCE is '$INSTANCE': a number from 0 to 15 is needed"
SUFFIX=''
if ((INSTANCE)); then SUFFIX=-$INSTANCE; fi

# 198.18.0.0/15 is set aside for benchmarks (RFC 2544), so it clashes with no real network. Each cluster takes one /20
# of the lower half (.0 the nodes, .1 to .5 their pods) and one of the upper half for Services.
BLOCK=$((INSTANCE * 16))
CLUSTER_RANGE=198.18.$BLOCK.0/20
SERVICE_RANGE=198.19.$BLOCK.0/20
SERVICE_ADDRESS=198.19.$BLOCK.1
BRIDGE=br-mi$SUFFIX
CGROUP=mi$SUFFIX

API_ADDRESS=198.18.$BLOCK.1
API_PORT=6443
DNS_ADDRESS=$API_ADDRESS

NODES=(minode1 minode2 minode3 minode4 minode5)
# node -> "product, driver version". A CPU runtime stands in for a card: the product is the family, the runtime's
# version plays the driver's.
declare -A NODE_CARD=(
  [minode1]="ort-cpu 1.32.0"
  [minode2]="ort-cpu 1.32.0"
  [minode3]="ort-cpu 1.32.0"
  [minode4]="openvino-cpu 2026.4.1"
  [minode5]="openvino-cpu 2026.4.1"
)
CARD_RESOURCE=metainfer.dev/card

# The node that really is slower than its family: 70 % of one CPU.
SLOW_NODE=minode3
SLOW_PERCENT=70
# Nodes that hack/cluster/throttle made slower: one file each, with the percentage. `up` takes them away.
THROTTLED_DIR=$STATE_DIR/throttled

# node_quota NODE: "QUOTA PERIOD" in microseconds; a quota of -1 is none. The period is shorter than a request, so that every
# request is slowed; with the usual 100 ms only the tail moves (a jittery node, not a slow card). 1 ms is the least quota
# that the kernel takes.
node_quota() {
  local percent='' period=2000
  if [[ $1 == "$SLOW_NODE" ]]; then percent=$SLOW_PERCENT; fi
  if [[ -s $THROTTLED_DIR/$1 ]]; then percent=$(<"$THROTTLED_DIR/$1"); fi
  if [[ -z $percent ]]; then
    printf '%s %s' -1 100000
    return
  fi
  if ((period * percent < 100000)); then period=$(((100000 + percent - 1) / percent)); fi
  printf '%s %s' $((period * percent / 100)) "$period"
}

node_number() { printf '%s' "${1#minode}"; }
node_address() { printf '198.18.%s.%s' "$BLOCK" "$((10 + $(node_number "$1")))"; }
node_pod_range() { printf '198.18.%s.0/24' "$((BLOCK + $(node_number "$1")))"; }
node_netns() { printf '%s%s' "$1" "$SUFFIX"; }
# At most 15 characters: mi-minode5-15 has 13.
node_link() { printf 'mi-%s%s' "$1" "$SUFFIX"; }
node_dir() { printf '%s/nodes/%s' "$STATE_DIR" "$1"; }
node_mounts() { printf '%s/run/%s.mnt' "$STATE_DIR" "$1"; }

# In a node's network and mount namespaces. Not `ip netns exec`: that one mounts /sys anew and hides the cgroup tree.
in_node() {
  local node=$1
  shift
  nsenter --net="/run/netns/$(node_netns "$node")" --mount="$(node_mounts "$node")" -- "$@"
}

node_ctr() {
  local node=$1
  shift
  in_node "$node" ctr --namespace k8s.io "$@"
}
