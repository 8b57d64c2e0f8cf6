#!/bin/bash
# accounting.sh DIR PORT: starts a database and slurmdbd, and makes the accounts and the QOS that start.sh names.
set -euo pipefail
dir=${1:?} port=${2:?}
user=$(id -un)
export SLURM_CONF=$dir/etc/slurm.conf MYSQL_UNIX_PORT=$dir/db/socket

# the folder that only this user may enter stands in for the grant tables; nothing listens on a port
options=(--no-defaults --user="$user" --datadir="$dir/db/data" --skip-grant-tables --innodb-buffer-pool-size=32M
    --innodb-log-file-size=8M --innodb-flush-log-at-trx-commit=0)
mkdir -p "$dir/db/data/mysql"
{
    echo 'use mysql;'
    cat /usr/share/mysql/mysql_system_tables.sql # slurmdbd's stored procedures need them
} | mariadbd "${options[@]}" --bootstrap >"$dir/log/mariadbd.log" 2>&1
mariadbd "${options[@]}" --socket="$MYSQL_UNIX_PORT" --skip-networking --pid-file="$dir/db/mariadbd.pid" \
    >>"$dir/log/mariadbd.log" 2>&1 </dev/null &
for _ in $(seq 1 100); do
    if [ -S "$MYSQL_UNIX_PORT" ]; then break; fi
    sleep 0.1
done

(umask 077 && cat >"$dir/etc/slurmdbd.conf") <<END
AuthType=auth/munge
AuthInfo=socket=$dir/munge/munge.sock
DbdHost=localhost
DbdPort=$port
SlurmUser=$user
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=$user
StorageLoc=slurm
PidFile=$dir/db/slurmdbd.pid
LogFile=$dir/log/slurmdbd.log
END
slurmdbd
for _ in $(seq 1 100); do
    if timeout 5 sacctmgr -i -Q show cluster >/dev/null 2>&1; then break; fi
    sleep 0.1
done
{
    sacctmgr -i -Q add cluster lab
    sacctmgr -i -Q add qos small set MaxNodesPerJob=1 MaxWall=60
    sacctmgr -i -Q add account team,physics set QOS=normal,small DefaultQOS=normal
    sacctmgr -i -Q add user "$user" account=team
    sacctmgr -i -Q modify user "$user" set DefaultAccount=team
    sacctmgr -i -Q delete user "$user" account=root
} >"$dir/log/sacctmgr.log"
