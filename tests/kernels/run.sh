#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Boots Debian's kernels in qemu with the command and the C++ tests of what asks the kernel most, and reports what failed.
#
# usage: run.sh BUILD KERNEL...    BUILD: a build directory with the programs; KERNEL: a version such as 6.1, for the newest
#        linux-image-6.1.*-cloud-amd64 of the configured package sources, or the path of a kernel image or of such a package
# Needs qemu-system-x86, busybox and cpio. The processor is emulated, so that no right to virtualization is needed.
# ONECOPY_KERNEL_PROGRAMS: some of the programs, such as "os_tests"; ONECOPY_KERNEL_SECONDS: how long a kernel may run.
set -euo pipefail
BUILD=$1
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
SECONDS_OF_A_RUN=${ONECOPY_KERNEL_SECONDS:-3600}
read -ra PROGRAMS <<<"${ONECOPY_KERNEL_PROGRAMS:-os_tests share_tests channel_tests store_tests}"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

image_of() {  # image_of <kernel>: prints the path of a kernel image
  local package
  if [ -f "$1" ] && [[ $1 != *.deb ]]; then echo "$1" && return; fi
  mkdir -p "$work/package"
  if [ -f "$1" ]; then cp "$1" "$work/package/"
  else
    package=$(apt-cache search --names-only "^linux-image-${1//./\\.}[.-][0-9][^ ]*-cloud-amd64\$" | awk '{ print $1 }' | sort -V | tail -1)
    [ -n "$package" ] || { echo "no package source has a kernel $1" >&2 && return 1; }
    (cd "$work/package" && apt-get -qq download "$package" >&2)
  fi
  dpkg-deb -x "$work"/package/*.deb "$work/kernel-$1"
  rm -rf "$work/package"
  ls "$work/kernel-$1"/boot/vmlinuz-*
}

add_libraries() {  # add_libraries <file>: the libraries that the program or library loads
  local library
  for library in $(ldd "$1" | awk '{ print $(NF - 1) }' | grep ^/); do
    [ -e "$root$library" ] || install -D "$library" "$root$library"
  done
}

add() {  # add <program>: a program with the libraries that it loads
  install -D "$1" "$root/bin/$(basename "$1")"
  add_libraries "$1"
}

make_root() {
  root=$work/root
  mkdir -p "$root"/{proc,sys,dev,tmp,etc,root,run}
  add "$(command -v busybox)"
  echo root:x:0:0:root:/root:/bin/sh >"$root/etc/passwd"
  echo root:x:0: >"$root/etc/group"
  echo 127.0.0.1 localhost >"$root/etc/hosts"
  install "$HERE/init" "$root/init"
  install -m 644 "$HERE/left_out" "$root/left_out"
  echo "${PROGRAMS[@]}" >"$root/programs"
  local program
  for program in $(ldconfig -p | awk '/x86-64/ && $1 ~ /^lib(ssl\.so\.3|curl\.so\.4)$/ { print $NF }'); do  # loaded when they are needed
    install -D "$program" "$root$program"
    add_libraries "$program"
  done
  for program in "${PROGRAMS[@]}" onecopy; do
    add "$(find "$BUILD" -name "$program" -type f -perm -1 | head -1)"
  done
  for program in "$BUILD"/simulators/*/lib*.so*; do install -D "$program" "$root$(realpath -s "$program")"; done
  (cd "$root" && find . | cpio --quiet -o -H newc | gzip -1) >"$work/programs"
}

# What the kernel of a distribution loads when a program first asks for it.
add_module() {  # add_module <kernel> <module>: appends the module of the package to the initial file system
  local file
  mkdir -p "$work/modules/lib/modules"
  for file in "$work/kernel-$1"/lib/modules/*/kernel/*/*/"$2".ko*; do
    case $file in
      *.xz) xz -dc "$file" ;;
      *.ko) cat "$file" ;;
    esac >"$work/modules/lib/modules/$2.ko"
  done
  (cd "$work/modules" && find . | cpio --quiet -o -H newc | gzip -1) >>"$work/initrd"
}

boot() {  # boot <image> <log>
  timeout "$SECONDS_OF_A_RUN" qemu-system-x86_64 -accel tcg,thread=multi -cpu max -smp 2 -m 3G -nographic -no-reboot -nodefaults \
    -serial stdio -kernel "$1" -initrd "$work/initrd" -append "console=ttyS0 quiet panic=-1" </dev/null >"$2" 2>&1 || true
}

make_root
status=0
for kernel in "${@:2}"; do
  log=$BUILD/kernel-$(basename "$kernel").log
  image=$(image_of "$kernel")
  cp "$work/programs" "$work/initrd"
  add_module "$kernel" unix_diag
  boot "$image" "$log"
  tr -d '\r' <"$log" | grep -aE '^kernel |^result |FAILED' || true
  [ "$(grep -ac '^result .* status 0' "$log")" = $((${#PROGRAMS[@]} + 1)) ] || { status=1 && echo "FAIL $kernel (whole output: $log)"; }
done
exit $status
