#!/bin/bash
# A Slurm of several nodes on this one machine, for as long as a command runs: slurm_here.sh NODES COMMAND...
# Linux, as root, with Debian's `slurm-wlm` and `munge`. Nothing is left behind: configuration, state and /etc/hosts
# are those of a mount namespace and of a folder that is removed.
set -eu
if [ -z "${SLURM_HERE:-}" ]; then
  export SLURM_HERE="$(mktemp -d)"
  unshare --mount "$0" "$@" && status=0 || status=$?
  rm -r "$SLURM_HERE"
  exit $status
fi
nodes=$1 last=$(($1 - 1)) at=$SLURM_HERE
shift
mkdir -p "$at"/{state,spool,log}
{ cat /etc/hosts; for i in $(seq 0 $last); do echo "127.0.0.1 node$i"; done; } > "$at/hosts"
mount --bind "$at/hosts" /etc/hosts
head -c 1024 /dev/urandom > "$at/key"
chmod 700 "$at" && chmod 600 "$at/key"
cat > "$at/slurm.conf" << END
ClusterName=here
SlurmctldHost=$(hostname)
SlurmctldPort=16817
SlurmUser=root
AuthInfo=socket=$at/munge
StateSaveLocation=$at/state
SlurmdSpoolDir=$at/spool/%n
SlurmctldPidFile=$at/slurmctld.pid
SlurmdPidFile=$at/%n.pid
SlurmctldLogFile=$at/log/slurmctld
SlurmdLogFile=$at/log/%n
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
JobRequeue=1
NodeName=node[0-$last] NodeHostname=$(hostname) Port=[16900-$((16900 + last))] CPUs=2
PartitionName=all Nodes=ALL Default=YES
END
export SLURM_CONF="$at/slurm.conf"
munged --foreground --force --key-file="$at/key" --socket="$at/munge" --pid-file="$at/munge.pid" \
  --log-file="$at/log/munge" --seed-file="$at/munge.seed" 2> /dev/null &
started=($!)
trap 'scancel --quiet --user=root; sleep 1; kill "${started[@]}" 2> /dev/null; wait 2> /dev/null' EXIT
until [ -S "$at/munge" ]; do sleep 0.1; done
slurmctld -D -c 2> /dev/null &
started+=($!)
for i in $(seq 0 $last); do
  slurmd -D -N "node$i" 2> /dev/null &
  started+=($!)
done
until [ "$(sinfo --noheader --responding --states=idle --format=%D 2> /dev/null | head -1)" = "$nodes" ]; do sleep 0.5; done
"$@"
