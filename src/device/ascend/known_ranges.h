// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "onecopy/core/tensor_view.h"

namespace onecopy::ascend {

/// A registration of a segment's addresses and of what copies may do with them: the host cannot access another card's
/// memory, and the runtime does not always enforce read-only access. Thread safety: all functions may be called
/// concurrently.
class KnownRange {
 public:
  /// Registers a range. `owner` is the card that holds the memory.
  KnownRange(const void* base, std::size_t bytes, Access access, int owner);
  ~KnownRange();
  KnownRange& operator=(KnownRange&&) = delete;

 private:
  const void* base_;
};

/// Returns whether the memory belongs to a card other than `card`. Returns false for unknown addresses.
bool is_another_cards(const void* at, int card);
bool is_read_only(const void* at);

}  // namespace onecopy::ascend
