#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# root.sh SUITE DIRECTORY: a Debian of its own in DIRECTORY, with Python and no compiler; made once, by debootstrap.
set -euo pipefail
suite=$1 directory=$2
[ -e "$directory/made" ] && exit 0
if [ "$(id -u)" != 0 ] || ! command -v debootstrap >/dev/null; then
  echo "a clean Debian wants root and debootstrap (apt-get install debootstrap)" >&2
  exit 1
fi
rm -rf "$directory"
mkdir -p "$(dirname "$directory")"
if ! debootstrap --variant=minbase --include=python3-venv "$suite" "$directory" >"$directory.log" 2>&1; then
  echo "debootstrap of $suite failed: see $directory.log" >&2
  tail -n 3 "$directory.log" >&2
  exit 1
fi
touch "$directory/made"
