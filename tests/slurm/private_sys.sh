#!/bin/sh
# private_sys.sh FEED ROOT COMMAND...
# Run COMMAND with a /sys of its own (inside a mount namespace made by unshare) in which cray/pm_counters is FEED.
set -eu
feed=$1 root=$2
shift 2
mkdir -p "$root"
mount -t tmpfs none "$root"
for part in block bus class devices firmware fs kernel module; do
  [ -d "/sys/$part" ] || continue
  mkdir "$root/$part"
  mount --rbind "/sys/$part" "$root/$part"
done
mkdir -p "$root/cray/pm_counters"
mount --bind "$feed" "$root/cray/pm_counters"
mount --rbind "$root" /sys
exec "$@"
