// SPDX-License-Identifier: Apache-2.0
#include "os/random.h"

#include <sys/random.h>

#include <cerrno>

#include "onecopy/core/error.h"

namespace onecopy {

void random_bytes(std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t got = ::getrandom(bytes.data(), bytes.size(), 0);
    if (got >= 0) bytes = bytes.subspan(static_cast<std::size_t>(got));
    else if (errno != EINTR) throw_errno("cannot get random bytes from the kernel", errno);
  }
}

}  // namespace onecopy
