# The control plane beside etcd and the API server: controllers, scheduler, DNS. It runs on the host.
# shellcheck shell=bash

make_control_plane_pki() {
  local pki=$STATE_DIR/pki name
  for name in kube-controller-manager kube-scheduler kube-proxy coredns; do
    issue ca "$name" "/CN=system:$name"
    make_kubeconfig "$name" "$pki/$name.kubeconfig" "$(api_url)"
  done
}

CONTROL_PLANE=(etcd kube-apiserver kube-controller-manager kube-scheduler coredns)

start_control_plane() {
  local pki=$STATE_DIR/pki
  all_run "${CONTROL_PLANE[@]}" && api_ready && return
  make_api_pki
  make_control_plane_pki
  start_etcd
  start_apiserver --enable-admission-plugins=NodeRestriction --enable-aggregator-routing=true
  # One of each: electing a leader only costs the 15 s that a killed one's lease still holds.
  start_daemon kube-controller-manager "$(tool kube-controller-manager)" --kubeconfig="$pki/kube-controller-manager.kubeconfig" \
    --bind-address="$API_ADDRESS" --leader-elect=false --use-service-account-credentials=true \
    --root-ca-file="$pki/ca.crt" --service-account-private-key-file="$pki/service-account.key" \
    --cluster-signing-cert-file="$pki/ca.crt" --cluster-signing-key-file="$pki/ca.key"
  start_daemon kube-scheduler "$(tool kube-scheduler)" --kubeconfig="$pki/kube-scheduler.kubeconfig" \
    --bind-address="$API_ADDRESS" --leader-elect=false
  start_dns
}

start_dns() {
  write_if_changed "$STATE_DIR/Corefile" <<COREFILE
cluster.local in-addr.arpa {
  bind $DNS_ADDRESS
  errors
  kubernetes {
    kubeconfig $STATE_DIR/pki/coredns.kubeconfig
    pods insecure
    # Short, so that a Service that was just made is found at once.
    ttl 5
  }
}
. {
  bind $DNS_ADDRESS
  # Names outside of the cluster lead nowhere; saying so beats letting the client wait.
  template ANY ANY {
    rcode NXDOMAIN
  }
}
COREFILE
  start_daemon coredns "$(tool coredns)" -conf "$STATE_DIR/Corefile"
}

wait_control_plane() {
  wait_daemon kube-controller-manager 30 is_healthy 10257
  wait_daemon kube-scheduler 30 is_healthy 10259
  wait_daemon coredns 30 dns_answers
}

# Health needs no credentials; the certificates are made up by the components themselves.
is_healthy() { curl --silent --fail --insecure --noproxy '*' --max-time 2 --output /dev/null "https://$API_ADDRESS:$1/healthz"; }

dns_answers() { "$(busybox)" nslookup -type=a kubernetes.default.svc.cluster.local "$DNS_ADDRESS" | grep -q "$SERVICE_ADDRESS"; }
