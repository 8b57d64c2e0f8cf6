#!/bin/bash
# stop.sh DIR: cancels the jobs and ends exactly the daemons of DIR, and what their jobs left.
set -uo pipefail
dir=${1:?give a folder}
export SLURM_CONF=$dir/etc/slurm.conf

# by its command line, or by its variables: slurmdbd's command line names no folder
ours() { { tr '\0' ' ' <"/proc/$1/cmdline" && tr '\0' ' ' <"/proc/$1/environ"; } 2>/dev/null | grep -qF -- "$dir/"; }

if [ -s "$dir/state/slurmctld.pid" ] && ours "$(cat "$dir/state/slurmctld.pid")"; then
    timeout 10 scancel --full --user="$(id -un)" 2>/dev/null
    for _ in $(seq 1 25); do
        [ -z "$(timeout 5 squeue -h 2>/dev/null)" ] && break
        sleep 0.2
    done
fi
daemons=()
for file in "$dir"/spool/*/slurmd.pid "$dir/state/slurmctld.pid" "$dir"/db/*.pid \
    "$dir/munge/munged.pid"; do
    [ -s "$file" ] && ours "$(cat "$file")" && daemons+=("$(cat "$file")")
done
for signal in TERM KILL; do
    for pid in ${daemons[@]+"${daemons[@]}"}; do ours "$pid" && kill -s "$signal" "$pid"; done
    for _ in $(seq 1 50); do
        left=0
        for pid in ${daemons[@]+"${daemons[@]}"}; do ours "$pid" && left=1; done
        [ "$left" = 0 ] && break 2
        sleep 0.1
    done
done
# a step outlives a slurmd that was killed
for file in /proc/[0-9]*/environ; do
    pid=${file#/proc/} pid=${pid%/environ}
    [ "$pid" = $$ ] && continue
    variables=$({ tr '\0' '\n' <"$file"; } 2>/dev/null)
    case $'\n'$variables$'\n' in
    *$'\n'"SLURM_CONF=$dir/etc/slurm.conf"$'\n'*) ;;
    *) continue ;;
    esac
    case $variables in *SLURM_JOB_ID=*) kill -9 "$pid" 2>/dev/null ;; esac
done
exit 0
