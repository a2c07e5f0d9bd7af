# Control groups, version 1 (one tree per controller) or 2 (one tree): $CGROUP/system holds the daemons, $CGROUP/NODE
# everything that the node's pods run. The daemons get a group of their own because the one they would inherit is the
# calling shell's, which may be limited and is killed with its session.
# shellcheck shell=bash
# Expects CGROUP.

CGROUP_CONTROLLERS=(cpu cpuset memory pids)
# The cluster is one group beside every single process outside of it: with the default weight (1024) a compile job on
# four threads leaves it a fifth of the CPU, and kubelets miss their leases.
CGROUP_SHARES=8192

# The mount points of the trees. Beside those of version 1 there can be an empty one of version 2, in which runc makes
# groups as well.
if [[ -e /sys/fs/cgroup/cgroup.controllers ]]; then
  CGROUP_VERSION=2
  CGROUP_ROOTS=(/sys/fs/cgroup)
else
  CGROUP_VERSION=1
  mapfile -t CGROUP_ROOTS < <(awk '$3 ~ /^cgroup2?$/ { print $2 }' /proc/mounts)
fi

check_cgroups() {
  local controller there
  if ((CGROUP_VERSION == 2)); then
    there=" $(</sys/fs/cgroup/cgroup.controllers) "
  else
    there=" $(awk '$3 == "cgroup" { gsub(",", " ", $4); print $4 }' /proc/mounts | xargs) "
  fi
  for controller in "${CGROUP_CONTROLLERS[@]}"; do
    [[ $there == *" $controller "* ]] ||
      die "the cgroup controller '$controller' is not there: enable it in the kernel's command line, or mount it"
  done
}

# make_cgroup PATH: top down, since a version 1 cpuset is unusable until its parent's CPUs are copied into it and a
# version 2 child has only the controllers that its parent hands down.
make_cgroup() {
  local root path part
  for root in "${CGROUP_ROOTS[@]}"; do
    path=$root
    [[ ! -d $root/$1 ]] || continue
    for part in ${1//\// }; do
      hand_down_controllers "$path"
      path=$path/$part
      mkdir -p "$path" || die "cannot make the cgroup $path: this needs root outside of a container"
      fill_cpuset "$path"
    done
  done
}

hand_down_controllers() {
  ((CGROUP_VERSION == 2)) || return 0
  local controller
  for controller in "${CGROUP_CONTROLLERS[@]}" io hugetlb; do
    grep -qw "$controller" "$1/cgroup.controllers" || continue
    echo "+$controller" >"$1/cgroup.subtree_control" || die "cannot hand the cgroup controller '$controller' down in $1"
  done
}

fill_cpuset() {
  local file
  for file in cpuset.cpus cpuset.mems; do
    [[ $CGROUP_VERSION == 1 && -e $1/$file && -z $(<"$1/$file") ]] || continue
    cat "$1/../$file" >"$1/$file"
  done
}

make_cgroups() {
  local node root
  make_cgroup "$CGROUP/system"
  for node in "${NODES[@]}"; do make_cgroup "$CGROUP/$node"; done
  for root in "${CGROUP_ROOTS[@]}"; do
    set_cgroup "$root/$CGROUP/cpu.shares" "$CGROUP_SHARES"
    set_cgroup "$root/$CGROUP/cpu.weight" $((CGROUP_SHARES * 100 / 1024))
  done
  for node in "${NODES[@]}"; do set_node_quota "$node"; done
}

# set_node_quota NODE: what node_quota says now. Version 1 takes no parent below its children, so that theirs go first; the
# kubelet of such a node sets none (kubelet_config).
set_node_quota() {
  local root group quota period
  read -r quota period <<<"$(node_quota "$1")"
  for root in "${CGROUP_ROOTS[@]}"; do
    group=$root/$CGROUP/$1
    if ((quota > 0)) && [[ -e $group/cpu.cfs_quota_us ]]; then lift_quotas_below "$group"; fi
    set_cgroup "$group/cpu.cfs_quota_us" -1
    set_cgroup "$group/cpu.cfs_period_us" "$period"
    set_cgroup "$group/cpu.cfs_quota_us" "$quota"
    set_cgroup "$group/cpu.max" "${quota/#-1/max} $period"
  done
}

lift_quotas_below() {
  local file
  while read -r file; do set_cgroup "$file" -1; done < <(find "$1" -mindepth 2 -name cpu.cfs_quota_us)
}

# Each file exists in one version and one tree only.
set_cgroup() { if [[ -e $1 ]]; then echo "$2" >"$1"; fi; }

# Called in the child that becomes a daemon.
enter_system_cgroup() {
  local root
  for root in "${CGROUP_ROOTS[@]}"; do echo "$BASHPID" >"$root/$CGROUP/system/cgroup.procs"; done
}

# cgroup_pids PATH: everything in it and below.
cgroup_pids() {
  local root
  for root in "${CGROUP_ROOTS[@]}"; do
    [[ -d $root/$1 ]] && find "$root/$1" -name cgroup.procs -exec cat {} + 2>/dev/null
  done | sort -un
}

# empty_cgroup PATH: again and again, because a process may fork between the listing and the kill.
empty_cgroup() {
  local pids
  for _ in {1..50}; do
    mapfile -t pids < <(cgroup_pids "$1")
    ((${#pids[@]})) || return 0
    kill -KILL "${pids[@]}" 2>/dev/null || true
    sleep 0.1
  done
  die "processes in the cgroup $1 do not end: ${pids[*]}"
}

# remove_cgroup PATH: deepest first; for a moment after its last process a group is still busy.
remove_cgroup() {
  local root
  for root in "${CGROUP_ROOTS[@]}"; do
    for _ in {1..50}; do
      [[ -d $root/$1 ]] || break
      find "$root/$1" -depth -type d -exec rmdir {} + 2>/dev/null || sleep 0.1
    done
    [[ ! -d $root/$1 ]] || die "the cgroup $root/$1 cannot be removed: a process is still in it"
  done
}
