#!/bin/bash
# A real Slurm on one machine: munged, slurmctld and some slurmd on loopback, everything in one folder. Needs root.
#
#   start.sh DIR        DIR: absolute, short, and all users may enter it; then export SLURM_CONF=DIR/etc/slurm.conf
#
# Where slurmdbd and mariadbd are installed it keeps accounts and enforces their limits: this user's account is `team`,
# the account `physics` is somebody else's, and the QOS `small` allows one node and one hour.
#
# LAB_NODES (4)  LAB_GPUS (8, stand-ins)  LAB_CPUS (64, of a node)  LAB_PORT (26817, and the ports up to 400 above)
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
dir=${1:?give a folder}
nodes=${LAB_NODES:-4} gpus=${LAB_GPUS:-8} cpus=${LAB_CPUS:-64} port=${LAB_PORT:-26817}
# the daemons must not inherit what an enclosing job of another cluster says
for name in $(compgen -v SLURM_ || true) $(compgen -v SBATCH_ || true); do unset "$name"; done

mkdir -p "$dir"/{etc,state,log,munge,dev,db}
chmod 755 "$dir"
chmod 711 "$dir/munge"
chmod 700 "$dir/db"
accounting=AccountingStorageType=accounting_storage/none
if command -v slurmdbd mariadbd >/dev/null; then
    accounting="AccountingStorageType=accounting_storage/slurmdbd\\nAccountingStorageHost=127.0.0.1"
    accounting+="\\nAccountingStoragePort=$((port + 99))\\nAccountingStorageEnforce=associations,limits,qos"
    accounting+="\\nAccountingStoragePass=$dir/munge/munge.sock"
fi
sed -e "s|@D@|$dir|g" -e "s|@N@|$nodes|g" -e "s|@G@|$gpus|g" -e "s|@C@|$cpus|g" -e "s|@CTLPORT@|$port|g" \
    -e "s|@NPORTS@|$((port + 1))-$((port + nodes))|g" -e "s|@SRUNPORTS@|$((port + 100))-$((port + 399))|g" \
    -e "s|@USER@|$(id -un)|g" -e "s|@ACCOUNTING@|$accounting|" "$here/slurm.conf" >"$dir/etc/slurm.conf"
sed -e "s|@N@|$nodes|g" -e "s|@D@|$dir|g" -e "s|@GMAX@|$((gpus - 1))|g" "$here/gres.conf" >"$dir/etc/gres.conf"
for g in $(seq 0 $((gpus - 1))); do mknod "$dir/dev/gpu$g" c 1 3 2>/dev/null || : >"$dir/dev/gpu$g"; done
[ -s "$dir/munge/munge.key" ] || (umask 077 && dd if=/dev/urandom of="$dir/munge/munge.key" bs=1024 count=1 status=none)
export SLURM_CONF=$dir/etc/slurm.conf
# names of the nodes, and this machine's own, which slurmctld looks up
{
    cat /etc/hosts
    echo "127.0.0.1 $(hostname)"
    for i in $(seq 1 "$nodes"); do echo "127.0.0.1 n$i"; done
} >"$dir/etc/hosts"

munged --socket="$dir/munge/munge.sock" --key-file="$dir/munge/munge.key" --pid-file="$dir/munge/munged.pid" \
    --log-file="$dir/munge/munged.log" --seed-file="$dir/munge/munge.seed" --num-threads=2
if [[ $accounting == */slurmdbd* ]]; then "$here/accounting.sh" "$dir" "$((port + 99))"; fi
# shellcheck disable=SC2016  # the inner shell expands it
unshare -m --propagation private sh -c 'mount --bind "$1" /etc/hosts && exec slurmctld -c -f "$2"' \
    sh "$dir/etc/hosts" "$SLURM_CONF"
for i in $(seq 1 "$nodes"); do "$here/node.sh" "$dir" "n$i"; done

for _ in $(seq 1 150); do
    up=$(timeout 5 sinfo -h -N -t idle -o %N 2>/dev/null | sort -u | grep -c . || true)
    [ "$up" = "$nodes" ] && exit 0
    sleep 0.2
done
echo "the cluster did not come up" >&2
sinfo -N -l >&2 || true
tail -n 20 "$dir"/log/*.log >&2
exit 1
