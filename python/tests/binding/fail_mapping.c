// SPDX-License-Identifier: Apache-2.0
// Preloaded, it refuses one mapping of the library's: fail_mapping(n) lets n more succeed and refuses the next; -1 refuses none.
// Allocations of malloc and stacks of threads do not come through here.
#define _GNU_SOURCE
#include <errno.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static atomic_long left = -1;

void fail_mapping(long after) { left = after; }

/// Returns 1 if no mapping was refused since fail_mapping().
int has_mappings_left(void) { return left >= 0; }

void* mmap(void* at, size_t size, int access, int flags, int fd, off_t offset) {
  if (left >= 0 && left-- == 0) {
    errno = ENOMEM;
    return MAP_FAILED;
  }
  return (void*)syscall(SYS_mmap, at, size, access, flags, fd, offset);
}
