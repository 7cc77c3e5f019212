# SPDX-License-Identifier: Apache-2.0
# The toolchain of the preset arm64: Debian's cross compiler, and programs run by qemu.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
find_program(ONECOPY_QEMU NAMES qemu-aarch64-static qemu-aarch64 REQUIRED)
set(CMAKE_CROSSCOMPILING_EMULATOR ${ONECOPY_QEMU};-L;/usr/aarch64-linux-gnu)
