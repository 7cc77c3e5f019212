// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "onecopy/memory/block.h"

namespace onecopy {

/// Counts the references of one block.
class CountingKeeper final : public BlockGroup {
 public:
  CountingKeeper() noexcept : BlockGroup(false) {}
  void add_reference(std::uint32_t) noexcept override { ++references; }
  void release(std::uint32_t) noexcept override { --references; }
  BlockRef make() {
    ++references;
    return {this, 0};
  }

  int references = 0;
};

}  // namespace onecopy
