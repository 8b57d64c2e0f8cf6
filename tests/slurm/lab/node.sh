#!/bin/bash
# node.sh DIR NAME: starts a node's slurmd, with that host name and the cluster's /etc/hosts.
set -euo pipefail
dir=${1:?} name=${2:?}
export SLURM_CONF=$dir/etc/slurm.conf
mkdir -p "$dir/spool/$name"
# shellcheck disable=SC2016  # the inner shell expands it
unshare -mu --propagation private sh -c 'mount --bind "$1" /etc/hosts && hostname "$2" && exec slurmd -N "$2" -f "$3"' \
    sh "$dir/etc/hosts" "$name" "$SLURM_CONF"
