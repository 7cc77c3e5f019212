// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <memory>
#include <utility>

#include "onecopy/memory/block.h"
#include "os/process.h"

namespace onecopy {

/// Keeps an object that is no block with one: drops it with the last reference. A forked child must not drop its
/// parent's object. Thread safety: all members may be called concurrently.
class ObjectBlock final : public BlockGroup {
 public:
  static BlockRef keep(std::shared_ptr<const void> owner) {
    return {std::make_unique<ObjectBlock>(std::move(owner)).release(), 0};
  }
  explicit ObjectBlock(std::shared_ptr<const void> owner) : BlockGroup(false), owner_(std::move(owner)) {}

  void retain(std::uint32_t) noexcept override { references_.fetch_add(1, std::memory_order_relaxed); }
  void release(std::uint32_t) noexcept override {
    if (references_.fetch_sub(1, std::memory_order_acq_rel) != 1 || current_pid() != pid_) return;
    const std::unique_ptr<ObjectBlock> last(this);
  }

 private:
  std::shared_ptr<const void> owner_;  // shared with the framework's own users of the memory
  const int pid_ = current_pid();
  std::atomic<std::uint64_t> references_{1};
};

}  // namespace onecopy
