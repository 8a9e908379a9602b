#!/usr/bin/env bash
# Runs COMMAND inside the cluster that slurm/with_slurm.sh DIR keeps, from the folder one is in:  slurm/inside.sh DIR[/nN] COMMAND...
# DIR/nN: on the node nN instead of beside the controller.
set -euo pipefail
place=$1
shift
dir=$place node=
case ${place##*/} in n[0-9]*) [ -d "$place" ] || { dir=${place%/*} node=${place##*/}; } ;; esac
dir=$(cd "$dir" && pwd)
wrapper=$(cat "$dir/wrapper.pid")
inner=$(pgrep -P "$wrapper" | head -1)
user=()
[ "$(readlink "/proc/$inner/ns/user")" = "$(readlink /proc/self/ns/user)" ] || user=(--user --preserve-credentials)
here=$(pwd)
into=(nsenter --target "$inner" "${user[@]}" --net --pid --mount --wd="$here")
if [ -n "$node" ]; then
  exec "${into[@]}" nsenter --target "$(cat "$dir/run/node-$node.pid")" --net --uts --pid --mount --wd="$here" \
    env SLURM_CONF="$dir/etc/slurm.conf" PATH="/usr/sbin:/sbin:$PATH" "$@"
fi
exec "${into[@]}" env SLURM_CONF="$dir/etc/slurm.conf" PATH="/usr/sbin:/sbin:$PATH" "$@"
