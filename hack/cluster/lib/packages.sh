# What comes from the distribution, installed only where it is missing.
# shellcheck shell=bash

# command or file -> Debian package
declare -A PACKAGES=(
  [containerd]=containerd
  [runc]=runc
  [/usr/lib/cni/bridge]=containernetworking-plugins
  [iptables]=iptables
  [conntrack]=conntrack
  [ip]=iproute2
  [nsenter]=util-linux
  [jq]=jq
  [openssl]=openssl
  [curl]=curl
  [buildah]=buildah
  [mmdebstrap]=mmdebstrap
  [redis-server]=redis-server
  [git]=git
)

# install_packages THING...: from the distribution, and only what is missing.
install_packages() {
  local thing missing=()
  for thing in "$@"; do
    [[ -e $thing ]] || command -v "$thing" >/dev/null || missing+=("${PACKAGES[$thing]}")
  done
  ((${#missing[@]})) || return 0
  command -v apt-get >/dev/null || die "these are missing, and only Debian and Ubuntu are known here: install ${missing[*]}"
  say "installing ${missing[*]}"
  apt-get update -qq || die "apt-get update failed: the lines above say why"
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >&2 ||
    die "apt-get could not install ${missing[*]}"
}
