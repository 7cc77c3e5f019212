// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <unordered_map>
#include <utility>

#include "onecopy/core/layout.h"

namespace onecopy::store {

/// The tensors to be published, by their memory, so that tensors of the same memory and layout, such as tied weights, are
/// stored once. Thread safety: none.
class TiedTensors {
 public:
  /// Returns the number of the tensor with this address and layout that was given first. Returns nothing for that tensor
  /// itself, which gets `number`, and for tensors without elements.
  std::optional<std::size_t> first(const void* at, const Layout& layout, std::size_t number) {
    if (layout.nbytes() == 0) return std::nullopt;
    const auto [begin, end] = seen_.equal_range(at);
    for (auto next = begin; next != end; ++next)
      if (next->second.first == layout) return next->second.second;
    seen_.emplace(at, std::pair(layout, number));
    return std::nullopt;
  }

 private:
  std::unordered_multimap<const void*, std::pair<Layout, std::size_t>> seen_;
};

}  // namespace onecopy::store
