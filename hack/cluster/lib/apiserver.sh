# etcd and kube-apiserver, the part that `up` and `up --api-only` share.
# shellcheck shell=bash
# Expects STATE_DIR, API_ADDRESS, API_PORT, SERVICE_RANGE, SERVICE_ADDRESS.

api_url() { printf 'https://%s:%s' "$API_ADDRESS" "$API_PORT"; }

make_api_pki() {
  local service=kubernetes.default.svc.cluster.local
  make_ca ca
  make_ca front-proxy-ca
  issue ca kube-apiserver "/CN=kube-apiserver" \
    "IP:$API_ADDRESS,IP:127.0.0.1,IP:$SERVICE_ADDRESS,DNS:localhost,DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,DNS:$service"
  issue ca kubelet-client "/CN=kube-apiserver-kubelet-client"
  issue ca admin "/O=system:masters/CN=admin"
  issue front-proxy-ca front-proxy-client "/CN=front-proxy-client"
  [[ -s $STATE_DIR/pki/service-account.key ]] || make_key "$STATE_DIR/pki/service-account.key"
  make_kubeconfig admin "$STATE_DIR/admin.kubeconfig" "$(api_url)"
}

# start_etcd FLAG...: on Unix sockets in its own directory: no port to clash, and nobody else on the machine gets in.
# The addresses are relative because a socket's path ends at 107 bytes and a test's temporary directory can be longer.
start_etcd() {
  mkdir -p "$STATE_DIR/etcd"
  chmod 0700 "$STATE_DIR/etcd"
  # What a killed etcd leaves behind would make the next one fail to listen.
  daemon_pid etcd >/dev/null || rm -f "$STATE_DIR"/etcd/*.sock
  start_daemon etcd env --chdir="$STATE_DIR/etcd" "$(tool etcd)" --name=main --data-dir=data \
    --listen-client-urls=unix://client.sock --advertise-client-urls=unix://client.sock \
    --listen-peer-urls=unix://peer.sock --initial-advertise-peer-urls=unix://peer.sock \
    --initial-cluster=main=unix://peer.sock --log-level=warn "$@"
}

# start_apiserver FLAG...: returns when it answers.
start_apiserver() {
  local pki=$STATE_DIR/pki
  start_daemon kube-apiserver env --chdir="$STATE_DIR/etcd" "$(tool kube-apiserver)" \
    --etcd-servers=unix://client.sock \
    --bind-address="$API_ADDRESS" --secure-port="$API_PORT" --advertise-address="$API_ADDRESS" \
    --service-cluster-ip-range="$SERVICE_RANGE" --authorization-mode=Node,RBAC --allow-privileged=true \
    --client-ca-file="$pki/ca.crt" --tls-cert-file="$pki/kube-apiserver.crt" --tls-private-key-file="$pki/kube-apiserver.key" \
    --kubelet-certificate-authority="$pki/ca.crt" \
    --kubelet-client-certificate="$pki/kubelet-client.crt" --kubelet-client-key="$pki/kubelet-client.key" \
    --kubelet-preferred-address-types=InternalIP \
    --requestheader-client-ca-file="$pki/front-proxy-ca.crt" --requestheader-allowed-names=front-proxy-client \
    --requestheader-extra-headers-prefix=X-Remote-Extra- --requestheader-group-headers=X-Remote-Group \
    --requestheader-username-headers=X-Remote-User \
    --proxy-client-cert-file="$pki/front-proxy-client.crt" --proxy-client-key-file="$pki/front-proxy-client.key" \
    --service-account-issuer=https://kubernetes.default.svc.cluster.local \
    --service-account-key-file="$pki/service-account.key" --service-account-signing-key-file="$pki/service-account.key" \
    "$@"
  wait_daemon kube-apiserver 90 api_ready
}

# The status counts, not the word "ok" in the body: controllers that start before the RBAC bootstrap exit for good.
api_ready() {
  local pki=$STATE_DIR/pki
  curl --silent --fail --max-time 2 --output /dev/null --noproxy '*' --cacert "$pki/ca.crt" \
    --cert "$pki/admin.crt" --key "$pki/admin.key" "$(api_url)/readyz"
}

kubectl() { "$(tool kubectl)" --kubeconfig="$STATE_DIR/admin.kubeconfig" "$@"; }
