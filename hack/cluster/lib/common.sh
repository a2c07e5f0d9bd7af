# Settings, messages, locks and waiting: what every command in hack/cluster starts with.
# shellcheck shell=bash

CLUSTER_SCRIPTS=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)
CACHE_DIR=${META_INFER_CACHE:-${XDG_CACHE_HOME:-${HOME:?is not set}/.cache}/meta-infer}

say() { printf '%s\n' "$*" >&2; }

die() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

# Prints the comment block at the top of the calling script: the help text has one home.
usage() { awk 'NR > 1 { if (!/^#/) exit; sub(/^# ?/, ""); print }' "$0"; }

# require COMMAND PACKAGE: names what is missing and what brings it.
require() { command -v "$1" >/dev/null || die "'$1' is missing: install the package '$2'"; }

# Writes standard input to FILE only when it differs: some daemons (kube-proxy) exit when their file is touched.
write_if_changed() {
  local file=$1 mode=${2:-0644} new
  new=$(mktemp "$file.XXXXXX")
  cat >"$new"
  chmod "$mode" "$new"
  if cmp -s "$new" "$file"; then rm -f "$new"; else mv -f "$new" "$file"; fi
}

# lock FILE: one up or down at a time for one state directory. Descriptor 9 stays open until the script ends;
# start_daemon closes it in the children, or the first daemon would hold the lock for ever.
lock() {
  mkdir -p "$(dirname "$1")"
  while :; do
    exec 9>"$1"
    if ! flock --nonblock 9; then
      say "waiting for another command that holds $1"
      flock 9
    fi
    # Whoever held it may have removed the directory: then this is a lock on a file that nobody else can see.
    [[ $1 -ef /proc/self/fd/9 ]] && return
    mkdir -p "$(dirname "$1")"
  done
}

# wait_for SECONDS WHAT COMMAND...: polls five times a second, quick enough not to be felt and cheap enough for two cores.
wait_for() {
  local deadline=$((SECONDS + $1)) what=$2
  shift 2
  until "$@" >/dev/null 2>&1; do
    ((SECONDS < deadline)) || die "gave up waiting for $what"
    sleep 0.2
  done
}

# Absolute and without links: the name is compared with what daemons carry in their environment.
canonical_dir() { realpath --canonicalize-missing -- "$1"; }

# Only the owner's: a run as root and one as a user do not meet in one directory.
api_only_dir() { canonical_dir "${1:-${XDG_STATE_HOME:-${HOME:?is not set}/.local/state}/meta-infer/api}"; }
