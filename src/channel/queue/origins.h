// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

#include "channel/ring/ring.h"
#include "onecopy/core/tensor_view.h"
#include "onecopy/share/handle_fields.h"

namespace onecopy {

/// Which segment a row of an item is about, said once for all items of a queue.
struct Origin {
  ProcessId owner{};
  ProcessId maker{};  ///< who else can serve the segment
  std::uint64_t segment_size = 0;
  std::uint32_t segment = 0;
  SegmentKind kind = SegmentKind::memfd;
  Access access = Access::read_write;
  Uuid device{};
};

/// The origins of a queue, in its ring's extra bytes, and the queue's own number. Append only.
///
/// Thread safety: read() may be called by anybody, append() inside Ring::exclusively(). An entry exists
/// from the one store of the count on, so the death of an appender needs no repair.
class OriginTable {
 public:
  explicit OriginTable(Ring& ring) noexcept;

  /// The random number that names the queue among those of a process; set by its creator once.
  std::uint64_t channel() const noexcept;
  void set_channel(std::uint64_t channel);

  /// The new entry's index; nothing when the table is full. Throws out_of_memory.
  std::optional<std::uint16_t> append(const Origin& origin);
  /// Throws bad_handle when there is no such entry or it contradicts itself.
  Origin read(std::uint16_t index) const;

  static constexpr std::uint32_t kCapacity = 65'535;

 private:
  struct Entry;
  struct Head;
  Head& head() const noexcept;
  Entry* entries() const noexcept;

  Ring& ring_;
};

}  // namespace onecopy
