// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "channel/codec/item.h"
#include "onecopy/memory/tensor.h"

namespace onecopy {

/// The tensors that an item's rows name, each with a claim of this process, and the order they came in.
///
/// Thread safety: none of its own.
struct UnpackedTensors {
  Tensor first;  ///< apart from the others, so that one tensor takes no memory
  std::vector<Tensor> others;
  ItemOrder order;

  void clear() noexcept {
    if (first) first.release();
    others.clear();
    order.points.clear();
  }
  void add(Tensor&& tensor) {
    if (!first) first = std::move(tensor);
    else others.push_back(std::move(tensor));
  }
  Tensor& row(std::size_t i) { return i == 0 ? first : others[i - 1]; }
  std::size_t size() const noexcept { return first ? 1 + others.size() : 0; }
};

}  // namespace onecopy
