// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <exception>
#include <optional>
#include <vector>

#include "channel/item.h"
#include "channel/origins.h"
#include "onecopy/channel/queue.h"
#include "onecopy/memory/tensor.h"
#include "onecopy/os/mapping.h"
#include "share/keeper.h"

namespace onecopy {

class Process;

/// Takes messages out of a queue and opens their tensors: claim first, then advance the head. What
/// can be opened without asking anybody is opened under the ring's lock; for the rest the item stays
/// where it is meanwhile, and another consumer may take it.
///
/// Thread safety: all members may be called concurrently, but for reset().
class Receiver {
 public:
  Receiver(Ring& ring, const OriginTable& origins);

  /// Nothing when there was no message until the deadline. Throws closed, and what opening throws.
  std::optional<Message> get(Process& process, TimePoint deadline);
  /// The same for what was put as one tensor; throws invalid_argument when the first item is not.
  std::optional<Tensor> get_tensor(Process& process, TimePoint deadline);

  /// In a forked child, whose peers are others.
  void reset();

 private:
  /// Whose segment an origin is, once that is open here.
  struct Known {
    std::atomic<SharedKeeper*> keeper;
    std::uint64_t segment_size;
    std::uint32_t segment;
    SegmentKind kind;
    Access access;
  };
  struct Contents {
    std::uint32_t tag = 0;
    Bytes data;
    Tensor first;
    std::vector<Tensor> others;
    bool elsewhere = false;  ///< `first` is what the item was written to
  };
  struct Attempt;

  bool take(Process& process, TimePoint deadline, bool only_tensor, Contents& contents);
  bool accept(Process& process, const RingItem& item, Attempt& attempt);
  void open_slowly(Process& process, Attempt& attempt);
  template <class Open>
  static bool read(ByteSpan item, Contents& contents, Open&& open);
  void read_elsewhere(Process& process, Contents& contents);

  Tensor try_open(Process& process, const ItemRow& row);
  Tensor open(Process& process, const ItemRow& row);
  HandleFields fields_of(const ItemRow& row) const;
  void remember(Process& process, const ItemRow& row, const HandleFields& fields, Access access);
  Known& known(std::uint16_t origin) const noexcept { return known_memory_.as<Known>()[origin]; }

  Ring& ring_;
  const OriginTable& origins_;
  Mapping known_memory_;
};

}  // namespace onecopy
