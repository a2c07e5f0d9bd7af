# Certificates and kubeconfig files. Each one is made once, appears whole or not at all, and lives ten years: a test
# cluster should not need renewing. P-256 keys take milliseconds where RSA ones take most of a second.
# shellcheck shell=bash
# Expects STATE_DIR.

PKI_DAYS=3650

# make_ca NAME
make_ca() {
  local at=$STATE_DIR/pki/$1
  [[ -s $at.crt ]] && return
  make_key "$at.key"
  openssl req -x509 -new -key "$at.key" -subj "/CN=meta-infer-$1" -days "$PKI_DAYS" \
    -addext keyUsage=critical,keyCertSign,cRLSign,digitalSignature -out "$at.crt.new"
  mv "$at.crt.new" "$at.crt"
}

make_key() {
  mkdir -p "$(dirname "$1")"
  (
    umask 077
    openssl ecparam -name prime256v1 -genkey -noout -out "$1.new"
  )
  mv "$1.new" "$1"
}

# issue CA NAME SUBJECT [SAN,...]: serves as client certificate and, with names, as server certificate.
issue() {
  local ca=$STATE_DIR/pki/$1 at=$STATE_DIR/pki/$2 subject=$3 names=${4:-}
  [[ -s $at.crt ]] && return
  make_key "$at.key"
  openssl req -new -key "$at.key" -subj "$subject" |
    openssl x509 -req -CA "$ca.crt" -CAkey "$ca.key" -days "$PKI_DAYS" -set_serial "0x$(openssl rand -hex 16)" \
      -extfile <(
        echo "keyUsage=critical,digitalSignature"
        echo "extendedKeyUsage=clientAuth${names:+,serverAuth}"
        if [[ -n $names ]]; then echo "subjectAltName=$names"; fi
      ) -out "$at.crt.new" 2>/dev/null || die "openssl could not make the certificate of $2"
  mv "$at.crt.new" "$at.crt"
}

# make_kubeconfig NAME FILE SERVER: self-contained, so it can be copied to where it is needed.
make_kubeconfig() {
  local pki=$STATE_DIR/pki
  write_if_changed "$2" 0600 <<YAML
apiVersion: v1
kind: Config
clusters:
  - name: meta-infer
    cluster: {server: "$3", certificate-authority-data: $(base64 -w 0 "$pki/ca.crt")}
users:
  - name: $1
    user: {client-certificate-data: $(base64 -w 0 "$pki/$1.crt"), client-key-data: $(base64 -w 0 "$pki/$1.key")}
contexts:
  - name: meta-infer
    context: {cluster: meta-infer, user: $1}
current-context: meta-infer
YAML
}
