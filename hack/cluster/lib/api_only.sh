# `up --api-only`: etcd and kube-apiserver on loopback for tests that need the API and nothing that runs pods.
# Needs no root; any number of them run beside each other, one per directory.
# shellcheck shell=bash
# Expects STATE_DIR and, for a fixed port, API_PORT.

API_ADDRESS=127.0.0.1
# Never routed anywhere: nothing proxies Services here, the API server only hands out addresses from it.
SERVICE_RANGE=198.19.0.0/20
SERVICE_ADDRESS=198.19.0.1

port_is_free() { ! (exec 3<>"/dev/tcp/$API_ADDRESS/$1") 2>/dev/null; }

# A port below the kernel's ephemeral range (32768 and up), where no outgoing connection can be sitting on it.
pick_port() {
  local port
  for _ in {1..50}; do
    port=$((20000 + RANDOM % 12000))
    if port_is_free "$port"; then
      printf '%s' "$port"
      return
    fi
  done
  die "found no free port on $API_ADDRESS between 20000 and 32000: name one with --port"
}

# The port stays what it was, so that a restart finds the kubeconfig files that clients already hold valid.
choose_api_port() {
  local known=
  if [[ -s $STATE_DIR/port ]]; then known=$(<"$STATE_DIR/port"); fi
  if daemon_pid kube-apiserver >/dev/null; then
    [[ -z $API_PORT || $API_PORT == "$known" ]] || die "an API server runs in $STATE_DIR on port $known: take it down first"
    API_PORT=$known
    return
  fi
  if [[ -n $API_PORT ]]; then
    port_is_free "$API_PORT" || die "port $API_PORT on $API_ADDRESS is in use: choose another one with --port"
  elif [[ -n $known ]] && port_is_free "$known"; then
    API_PORT=$known
  else
    API_PORT=$(pick_port)
  fi
  printf '%s\n' "$API_PORT" >"$STATE_DIR/port"
}

api_only_up() {
  require openssl openssl
  require curl curl
  require flock util-linux
  ensure_tools etcd kube-apiserver kubectl
  (umask 077 && mkdir -p "$STATE_DIR")
  lock "$STATE_DIR/lock"
  choose_api_port
  make_api_pki
  # Without fsync: three times faster, and nobody keeps a test's data across a power cut.
  start_etcd --unsafe-no-fsync
  # No controllers run here, so no namespace ever gets the service account that this plugin demands for pods, and
  # there is no endpoint to publish on a loopback address.
  start_apiserver --disable-admission-plugins=ServiceAccount --endpoint-reconciler-type=none
  printf '%s\n' "$STATE_DIR/admin.kubeconfig"
}

# The directory keeps nothing that a later start could use but certificates, and goes.
api_only_down() {
  [[ -d $STATE_DIR ]] || return 0
  lock "$STATE_DIR/lock"
  stop_daemons kube-apiserver
  stop_daemons etcd
  mapfile -t left < <(cluster_pids)
  end_pids 0 "${left[@]}"
  [[ -e $STATE_DIR/port ]] || return 0
  rm -rf "$STATE_DIR"/{etcd,pki,logs,port,admin.kubeconfig,lock}
  rmdir --ignore-fail-on-non-empty "$STATE_DIR"
}
