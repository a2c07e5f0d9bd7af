# The kubelet changes settings of the whole machine when it starts. They are put back when the last cluster goes.
# shellcheck shell=bash

# What the kubelet's setupKernelTunables writes.
KUBELET_SYSCTLS=(vm.overcommit_memory vm.panic_on_oom kernel.panic kernel.panic_on_oops kernel.keys.root_maxkeys kernel.keys.root_maxbytes)
# In /run, which like the settings themselves begins anew with each boot.
SYSCTL_BEFORE=/run/meta-infer-cluster.sysctl

save_sysctls() {
  [[ -e $SYSCTL_BEFORE ]] && return
  sysctl "${KUBELET_SYSCTLS[@]}" >"$SYSCTL_BEFORE.new" 2>/dev/null || true
  mv "$SYSCTL_BEFORE.new" "$SYSCTL_BEFORE"
}

restore_sysctls() {
  compgen -G '/sys/class/net/br-mi*' >/dev/null && return
  [[ -e $SYSCTL_BEFORE ]] || return 0
  sysctl -q -p "$SYSCTL_BEFORE" 2>/dev/null || true
  rm -f "$SYSCTL_BEFORE"
}
