// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <csignal>

namespace onecopy {

/// Blocks all signals of the calling thread while it lives. Threads start with their maker's mask, and
/// ours must take no signals away from the program.
/// Thread safety: used by one thread.
class BlockedSignals {
 public:
  BlockedSignals() noexcept;
  ~BlockedSignals();
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;

 private:
  sigset_t before_;
};

}  // namespace onecopy
