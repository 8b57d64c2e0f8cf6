# Requeues job $job, whose script is $script: requeue ACTION [NODE]
#
# It may start on any nodes but NODE. If it cannot run without that one, `requeue` waits for it, and `retry` lets the job
# end. Returns 0 if Slurm starts the job again, and prints what it did.
requeue() {
    local shown exclude='' why constraint
    shown=$(scontrol --oneliner show job "$job") || { sleep 3 && shown=$(scontrol --oneliner show job "$job"); } || return
    if [ "$(field JobState)" != RUNNING ] || [ "$(field Restarts)" != "${SLURM_RESTART_COUNT:-0}" ]; then
        echo "launch: job $job has ended or was restarted elsewhere, so this start does not requeue it"
        return 1
    elif [ "$(field Requeue)" = 0 ]; then
        echo "launch: job $job was submitted with --no-requeue"
        return 1
    fi
    if [ -n "$2" ]; then
        exclude=$(field ExcNodeList)
        exclude=${exclude:+$exclude,}$2
        constraint=$(field Features)
        # excluded without a replacement, the job would be held for good
        if [ -n "$(field ReqNodeList)" ]; then
            why='the job requests its nodes by name'
        else
            why=$(sbatch --test-only --exclude="$exclude" --nodes="$SLURM_JOB_NUM_NODES" \
                --partition="$(field Partition)" ${constraint:+--constraint="$constraint"} "$script" 2>&1) && why=''
        fi
        if [ -n "$why" ] && [ "$1" = retry ]; then
            echo "launch: $2 cannot be excluded, so job $job is not started again: $why"
            return 1
        elif [ -n "$why" ]; then
            echo "launch: $2 is not excluded, so job $job waits until that node is back: $why"
            exclude=''
        fi
    fi
    # a busy controller may refuse at first
    scontrol requeue "$job" || { sleep 3 && scontrol requeue "$job"; } || return
    if [ -n "$exclude" ] && ! scontrol update "JobId=$job" "ExcNodeList=$exclude"; then
        echo "launch: $2 could not be excluded"
        exclude=''
    fi
    echo "launch: job $job is requeued${exclude:+; it starts without $exclude}"
}

# prints a field of what `scontrol show job` printed; nothing for (null)
field() {
    if [[ $shown =~ \ $1=([^\ \(]*) ]]; then echo "${BASH_REMATCH[1]}"; fi
}
