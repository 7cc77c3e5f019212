#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# wheel.sh WHEEL [PYTHON | ROOT...]: installs it with pip where no compiler is, runs README's program and `onecopy doctor`.
# Each ROOT is a directory with another distribution in it that has python3-venv (debootstrap makes one; wants root).
# Without one it is an environment of PYTHON (python3) with a PATH that has no compiler.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
wheel=$(realpath "$1")
shift
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT

check_links() {  # of what the wheel holds: the libraries of libc, the unwinder beside it, and no other
  local file needed
  (cd "$place" && mkdir unpacked && cd unpacked && python3 -m zipfile -e "$wheel" .)
  for file in "$place"/unpacked/onecopy/_core*.so "$place"/unpacked/*.data/scripts/onecopy; do
    needed=$(readelf -d "$file" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' |
      grep -vE '^(libc|libm|libdl|libpthread|librt|libgcc_s)\.so\.|^ld-linux' || true)
    if [ -n "$needed" ]; then
      echo "$(basename "$file") links $needed"
      exit 1
    fi
  done
}

# It has to be a program in a file: the second process runs it again.
cat >"$place/try.sh" <<'TEXT'
set -eu
cd "$1"
for compiler in c++ g++ cc gcc clang; do
  if command -v $compiler >/dev/null; then echo "$compiler is in the PATH"; exit 1; fi
done
python3 -m venv env
begin=$(date +%s%N)
env/bin/pip install -q --disable-pip-version-check --no-index --no-deps ./*.whl
env/bin/python two_processes.py >said
echo "$((($(date +%s%N) - begin) / 1000000)) ms from pip install to the end of README's program"
cat said
cmp said two_processes.expected
env/bin/onecopy --version
env/bin/onecopy doctor
TEXT

bring() {  # bring <directory>: all that try.sh needs
  mkdir -p "$1"
  cp "$wheel" "$here"/../../examples/python/two_processes.{py,expected} "$place/try.sh" "$1"
}

try_here() {
  mkdir "$place/bin"
  for tool in cat cmp date; do ln -s "$(command -v $tool)" "$place/bin/$tool"; done
  # The interpreter itself: what PATH has may be a script around it.
  ln -s "$("$1" -c 'import os, sys; print(os.path.realpath(sys.executable))')" "$place/bin/python3"
  bring "$place/try"
  (cd / && env -i PATH="$place/bin" HOME="$place" /bin/sh "$place/try/try.sh" "$place/try")
}

try_in() {  # try_in <root>
  local inside=/tmp/onecopy-wheel
  bring "$1$inside"
  # In a namespace of its own, so the mount goes with it.
  # shellcheck disable=SC2016  # the inner shell's arguments
  unshare --mount sh -c 'mount -t proc proc "$1/proc" && chroot "$1" /bin/sh "$2/try.sh" "$2"' - "$1" "$inside"
  rm -rf "${1:?}$inside"
}

check_links
if [ $# = 0 ] || [ ! -d "$1" ]; then
  try_here "${1:-python3}"
  set --
fi
for root in "$@"; do
  echo "in $root: $(sed -n 's/^PRETTY_NAME=//p' "$root/etc/os-release")"
  try_in "$root"
done
echo "$(basename "$wheel") works where no compiler is"
