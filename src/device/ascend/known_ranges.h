// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "onecopy/core/tensor_view.h"

namespace onecopy::ascend {

/// Addresses of segments, and their limits for copies: the host neither reads nor writes another card's memory, and
/// the runtime does not always enforce read-only access. Thread safety: all functions may be called concurrently.
class KnownRange {
 public:
  /// `owner`: the card whose memory it is.
  KnownRange(const void* base, std::size_t bytes, Access access, int owner);
  ~KnownRange();
  KnownRange(const KnownRange&) = delete;
  KnownRange& operator=(const KnownRange&) = delete;

 private:
  const void* base_;
};

/// Is it memory of a card other than this one? False for unknown addresses.
bool is_another_cards(const void* at, int card);
bool is_read_only(const void* at);

}  // namespace onecopy::ascend
