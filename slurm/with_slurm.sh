#!/usr/bin/env bash
# A real Slurm on one machine, for tests and for trying things out:  slurm/with_slurm.sh DIR COMMAND...
#
# Starts munge, slurmctld and three nodes of eight counted GPUs (Debian: slurmctld slurmd slurm-client munge iproute2), runs COMMAND
# beside the controller, and stops everything when COMMAND ends, however it ends. Needs neither systemd nor root: all of
# it lives in namespaces of its own. Each node has its own network and address, host name, process table, /tmp and
# /dev/shm; what nodes share are all other folders, DIR, and the folders of SLURM_SHARED (colon-separated) below /tmp.
#
# To stop it from elsewhere: kill -9 $(cat DIR/wrapper.pid), which takes everything along; it does not hear a milder signal.
# DIR gets etc/slurm.conf, logs and the controller's state; with DIR/wrapper.pid, slurm/inside.sh DIR COMMAND... enters the running cluster.
# The GPUs are links to /dev/null: Slurm wants character devices to count, and nothing here opens them.
# Settings by environment: NODES (3), GPUS (8), CPUS (64), MEMORY (1000000, MB) of each node: counted, whatever there really is.
set -euo pipefail
dir=$(mkdir -p "$1" && cd "$1" && pwd)
if [ -z "${TBEXP_INSIDE:-}" ]; then
  shift
  echo $$ >"$dir/wrapper.pid"
  own=() # another user than root gets the rights over these namespaces, and stays that user: as root, Slurm would change groups
  [ "$(id -u)" = 0 ] || own=(--user --map-current-user --keep-caps)
  exec env TBEXP_INSIDE=1 unshare "${own[@]}" --net --pid --mount --fork --mount-proc --kill-child "$0" "$dir" "$@"
fi
unset TBEXP_INSIDE
shift
export PATH=/usr/sbin:/sbin:$PATH
nodes=${NODES:-3} gpus=${GPUS:-8} cpus=${CPUS:-64} memory=${MEMORY:-1000000} net=10.98.0 host=$(hostname -s) user=$(id -un)
shared="$dir:${SLURM_SHARED:-}"
umask 022
ulimit -c 0
mkdir -p "$dir"/{etc,log,run,state,munge,dev,spool}

ip link set lo up
ip link add br0 type bridge
ip addr add $net.1/24 dev br0
ip link set br0 up
{
  echo "127.0.0.1 localhost"
  echo "$net.1 $host"
  for i in $(seq "$nodes"); do echo "$net.$((10 + i)) n$i"; done
} >"$dir/etc/hosts"
mount --bind "$dir/etc/hosts" /etc/hosts
echo "nameserver 127.0.0.1" >"$dir/etc/resolv.conf" # which refuses at once; there is no network to ask
mount --bind "$dir/etc/resolv.conf" /etc/resolv.conf

for i in $(seq 0 $((gpus - 1))); do ln -sfn /dev/null "$dir/dev/nvidia$i"; done
[ -f "$dir/munge/key" ] || (umask 077 && head -c 1024 /dev/urandom >"$dir/munge/key")
chmod 700 "$dir/munge"
munged --force --key-file="$dir/munge/key" --socket="$dir/run/munge" --pid-file="$dir/run/munged.pid" \
  --log-file="$dir/munge/log" --seed-file="$dir/munge/seed" >"$dir/log/munged" 2>&1

cat >"$dir/etc/slurm.conf" <<X
ClusterName=tbexp
SlurmctldHost=$host($net.1)
SlurmctldPort=17000
SlurmUser=$user
SlurmdUser=$user
AuthType=auth/munge
AuthInfo=socket=$dir/run/munge
CredType=cred/munge
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool/%n
SlurmctldPidFile=$dir/run/slurmctld.pid
SlurmdPidFile=$dir/run/slurmd-%n.pid
SlurmctldLogFile=$dir/log/slurmctld
SlurmdLogFile=$dir/log/slurmd-%n
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
ReturnToService=2
GresTypes=gpu
JobRequeue=1
KillWait=20
MinJobAge=3600
PropagateResourceLimits=NONE
SchedulerParameters=bf_interval=2
AccountingStorageType=accounting_storage/none
NodeName=n[1-$nodes] NodeAddr=$net.[11-$((10 + nodes))] CPUs=$cpus RealMemory=$memory Gres=gpu:$gpus State=UNKNOWN
PartitionName=gpu Nodes=ALL Default=YES MaxTime=INFINITE State=UP
X
echo "Name=gpu File=$dir/dev/nvidia[0-$((gpus - 1))]" >"$dir/etc/gres.conf"
export SLURM_CONF="$dir/etc/slurm.conf"
slurmctld -c

# Inside a node: an empty /tmp with only the shared folders in it.
cat >"$dir/run/node" <<'X'
name=$1 address=$2 shared=$3
hostname "$name"
new=$(mktemp -d "${SLURM_CONF%/etc/*}/spool/tmp-XXXXXX")
mount -t tmpfs tmpfs "$new"
chmod 1777 "$new"
IFS=:
for folder in $shared; do
  case $folder in /tmp/?*) ;; *) continue ;; esac
  mkdir -p "$new/${folder#/tmp/}"
  mount --bind "$folder" "$new/${folder#/tmp/}"
done
mount --rbind "$new" /tmp
mount -t tmpfs tmpfs /dev/shm
ip link set lo up
until ip link show "v$name" >/dev/null 2>&1; do sleep 0.05; done
ip addr add "$address/24" dev "v$name"
ip link set "v$name" up
slurmd -c -N "$name"
while :; do sleep 1; done
X
for i in $(seq "$nodes"); do
  mkdir -p "$dir/spool/n$i"
  unshare --net --uts --pid --mount --fork --mount-proc --kill-child \
    bash "$dir/run/node" "n$i" "$net.$((10 + i))" "$shared" </dev/null >"$dir/log/node-n$i" 2>&1 &
  outer=$!
  until inner=$(pgrep -P $outer); do sleep 0.05; done
  inner=${inner%% *}
  until [ "$(readlink "/proc/$inner/ns/net")" != "$(readlink /proc/self/ns/net)" ]; do sleep 0.05; done
  echo "$inner" >"$dir/run/node-n$i.pid" # in the numbering of the outer process table
  ip link add "vn$i" type veth peer name "hn$i"
  ip link set "hn$i" master br0 up
  ip link set "vn$i" netns "$inner"
done
end=$((SECONDS + 60))
until [ "$(timeout 3 sinfo -h -t idle -o %D 2>/dev/null | head -1)" = "$nodes" ]; do
  if [ $SECONDS -ge $end ]; then
    echo "the cluster did not come up:" >&2
    tail -n 6 "$dir"/log/* >&2
    exit 1
  fi
  sleep 0.1
done
set +e
"$@"
exit $?
