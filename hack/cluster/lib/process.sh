# Daemons. The process table is the only record of what runs: every daemon carries two environment variables that name
# its cluster and itself, so there is no pid file to go stale in a power cut or to point at somebody else's process.
# shellcheck shell=bash
# Expects STATE_DIR.

# marked_pids VARIABLE=VALUE: the processes started with it. /proc/PID/environ separates by NUL, hence -z; files that
# cannot be read belong to other users or to processes that ended meanwhile.
marked_pids() {
  grep -lzxF -- "$1" /proc/[0-9]*/environ 2>/dev/null | cut -d / -f 3 || true
}

# Everything of this cluster: daemons, what they started, container shims.
cluster_pids() { marked_pids "META_INFER_CLUSTER=$STATE_DIR"; }

# daemons: prints "NAME PID" of every daemon, and not of its children, which inherit the variables but have another
# executable's name (of which the kernel keeps 15 characters). Read without a fork per process: `up` on a running cluster
# is mostly this.
daemons() {
  local entry pid name base command
  while IFS= read -r -d '' entry; do
    pid=${entry#/proc/} pid=${pid%%/*} name=${entry##*/}
    read -r command 2>/dev/null <"/proc/$pid/comm" || continue
    base=${name%%.*}
    if [[ $command == "${base:0:15}" ]]; then printf '%s %s\n' "$name" "$pid"; fi
  done < <(grep -Hza -- "^META_INFER_DAEMON=$STATE_DIR/${1:-}" /proc/[0-9]*/environ 2>/dev/null)
}

# daemon_pid NAME[.NODE]
daemon_pid() {
  local name pid
  while read -r name pid; do
    if [[ $name == "$1" ]]; then
      printf '%s' "$pid"
      return
    fi
  done < <(daemons "$1")
  return 1
}

# all_run NAME...: asked of one look at the process table.
all_run() {
  local running name
  running=$(daemons)
  for name in "$@"; do [[ $'\n'$running == *$'\n'"$name "* ]] || return 1; done
}

daemon_log() { printf '%s/logs/%s.log' "$STATE_DIR" "$1"; }

# start_daemon NAME[.NODE] COMMAND...: a no-op where it runs. A log over 16 MiB is put aside: enough for days of a
# cluster that is used, and a crash loop cannot fill the disk across restarts.
start_daemon() {
  local name=$1 log
  shift
  daemon_pid "$name" >/dev/null && return
  log=$(daemon_log "$name")
  mkdir -p "$(dirname "$log")"
  if [[ -n $(find "$log" -size +16M 2>/dev/null) ]]; then mv -f "$log" "$log.old"; fi
  (
    if [[ $(type -t enter_system_cgroup) == function ]]; then enter_system_cgroup; fi
    exec env META_INFER_CLUSTER="$STATE_DIR" META_INFER_DAEMON="$STATE_DIR/$name" \
      ${BRIDGE:+META_INFER_BRIDGE="$BRIDGE"} setsid "$@" >>"$log" 2>&1 </dev/null 9>&-
  ) &
}

# wait_daemon NAME SECONDS COMMAND...: ready when COMMAND succeeds; a daemon that ended is reported at once with the
# last thing it said, since that names the port, the right or the kernel feature that it misses.
wait_daemon() {
  local name=$1 deadline=$((SECONDS + $2)) born=$((SECONDS + 2))
  shift 2
  until "$@" >/dev/null 2>&1; do
    if ((SECONDS >= born)) && ! daemon_pid "$name" >/dev/null; then
      die "$name stopped: $(last_error "$name") (log: $(daemon_log "$name"))"
    fi
    ((SECONDS < deadline)) || die "$name does not become ready: see $(daemon_log "$name")"
    sleep 0.1
  done
}

# The last line that looks like the reason: klog marks errors with E or F, Go's command line tools start with Error.
last_error() {
  { grep -E '^([EF][0-9]{4} |Error|panic|.*"level":"(error|fatal)")' "$(daemon_log "$1")" || tail -n 1 "$(daemon_log "$1")"; } |
    tail -n 1 | cut -c 1-300
}

# end_pids SECONDS PID...: asks, waits, then kills.
end_pids() {
  local deadline=$((SECONDS + $1))
  shift
  (($#)) || return 0
  kill -TERM "$@" 2>/dev/null || true
  while ((SECONDS < deadline)) && any_alive "$@"; do sleep 0.1; done
  kill -KILL "$@" 2>/dev/null || true
}

# A zombie counts as ended: on a machine whose init does not reap, it stays for good.
any_alive() {
  local pid
  for pid in "$@"; do
    grep -qs '^State:[[:space:]][^Z]' "/proc/$pid/status" && return
  done
  return 1
}

# stop_daemons NAME...: five seconds are more than any of them needs; what is left after that is killed.
stop_daemons() {
  local name pid pids=()
  for name in "$@"; do
    if pid=$(daemon_pid "$name"); then pids+=("$pid"); fi
  done
  end_pids 5 "${pids[@]}"
}
