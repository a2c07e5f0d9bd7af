# Making a node slower than it is, and as it was: every process of its pods together gets a share of one CPU.
# shellcheck shell=bash

# throttle_node NODE PERCENT: pods that run go on running, slower; those that start later are slow too.
throttle_node() {
  mkdir -p "$THROTTLED_DIR"
  echo "$2" >"$THROTTLED_DIR/$1"
  renew_node "$1"
}

# unthrottle_node NODE
unthrottle_node() {
  rm -f "$THROTTLED_DIR/$1"
  renew_node "$1"
}

# The kubelet reads whether it sets quotas when it starts; its pods do not notice.
renew_node() {
  local node=$1 before
  before=$(md5sum "$(node_dir "$node")/kubelet.yaml")
  write_node_config "$node"
  if [[ $before != $(md5sum "$(node_dir "$node")/kubelet.yaml") ]]; then
    stop_daemons "kubelet.$node"
    start_node_agents "$node"
    wait_for 30 "the kubelet of $node" daemon_pid "kubelet.$node"
  fi
  set_node_quota "$node"
}

# A kubelet that is stopped here is started by `up` with the configuration that is right then.
forget_throttles() {
  local file
  for file in "$THROTTLED_DIR"/*; do
    [[ -e $file ]] || continue
    rm -f "$file"
    stop_daemons "kubelet.$(basename "$file")"
  done
}
