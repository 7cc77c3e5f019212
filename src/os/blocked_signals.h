// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <csignal>

namespace onecopy {

/// A scope in which all signals of the calling thread are blocked. Threads inherit the mask of their creator, and the
/// library's threads must not take signals away from the program. Thread safety: used by one thread.
class BlockedSignals {
 public:
  BlockedSignals() noexcept;
  ~BlockedSignals();
  BlockedSignals& operator=(BlockedSignals&&) = delete;

 private:
  sigset_t before_;
};

}  // namespace onecopy
