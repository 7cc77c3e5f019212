// SPDX-License-Identifier: Apache-2.0
#pragma once

// Included by numbers.h.
#include <cstddef>
#include <vector>

#include "onecopy/core/bytes.h"
#include "onecopy/memory/tensor.h"

namespace onecopy::cli {

/// How many of the last dimensions lie in memory without gaps, and their elements together.
struct InnerRun {
  std::size_t outer_dims = 0;
  std::int64_t elements = 1;
};
InnerRun inner_run(const Layout& layout) noexcept;

template <class Visit>
void for_each_run(const Tensor& tensor, Visit&& visit) {
  const Layout& layout = tensor.layout();
  if (layout.numel() == 0) return;
  const auto item = static_cast<std::int64_t>(size_of(layout.dtype()));
  const InnerRun run = inner_run(layout);
  const auto bytes = static_cast<std::size_t>(run.elements * item);
  const auto* at = static_cast<const std::byte*>(tensor.data());
  std::vector<std::int64_t> index(run.outer_dims, 0);
  for (;;) {
    visit(ByteSpan(at, bytes));
    std::size_t dim = run.outer_dims;
    for (; dim > 0; --dim) {
      const std::size_t d = dim - 1;
      at += layout.strides()[d] * item;
      if (++index[d] < layout.shape()[d]) break;
      at -= layout.strides()[d] * item * index[d];
      index[d] = 0;
    }
    if (dim == 0) return;
  }
}

}  // namespace onecopy::cli
