// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <vector>

#include "channel/queue/item.h"
#include "channel/queue/segment_directory.h"
#include "onecopy/channel/queue.h"
#include "onecopy/memory/tensor.h"
#include "os/mapping.h"
#include "share/session.h"

namespace onecopy {

/// Takes messages out of a queue and opens their tensors: claim first, then advance the head. What
/// is short and can be opened without asking anybody is opened under the ring's lock; for the rest the
/// item stays where it is meanwhile, and another consumer may take it.
///
/// Thread safety: all members may be called concurrently, but for reset().
class Receiver {
 public:
  /// Who may have what an item's owner and its putter do not: who keeps for the queue, and who has named it to us.
  using Keepers = std::array<ProcessId, 2>;

  Receiver(Ring& ring, const SegmentDirectory& directory, const Keepers& keepers);

  /// Nothing when there was no message until the deadline. Throws closed, and what opening throws.
  /// What the stream is given afterwards finds the tensors as their putter's stream left them.
  std::optional<Message> get(Session& session, TimePoint deadline, Stream stream);
  /// The first message if it can be opened without asking anybody.
  std::optional<Message> get_at_once(Session& session, Stream stream);
  /// The same for what was put as one tensor; throws invalid_argument when the first item is not.
  std::optional<Tensor> get_tensor(Session& session, TimePoint deadline, Stream stream);

  // Around a fork.
  void lock() { owners_mutex_.lock(); }
  void unlock() { owners_mutex_.unlock(); }
  /// In a forked child, whose peers are others, and which has the queue from its parent.
  void reset(const ProcessId& parent);

 private:
  struct Contents {
    std::uint32_t tag = 0;
    MessageKind kind = MessageKind::user;
    Bytes data;
    Tensor first;
    std::vector<Tensor> others;
    ItemOrder order;
    bool elsewhere = false;  ///< `first` is what the item was written to

    void clear() noexcept {
      data.clear();
      if (first) first.release();
      others.clear();
      order.points.clear();
    }
    Tensor& row(std::size_t i) { return i == 0 ? first : others[i - 1]; }
    std::size_t rows() const noexcept { return first ? 1 + others.size() : 0; }
  };
  struct Attempt;
  enum class Wants : std::uint8_t { message, quick_message, tensor };

  bool take(Session& session, TimePoint deadline, Wants wants, Stream stream, Contents& contents);
  static Message to_message(Contents& contents);
  bool accept(Session& session, const RingItem& item, Attempt& attempt);
  void open_slowly(Session& session, Attempt& attempt, TimePoint deadline);
  template <class Open>
  static bool read(ByteSpan item, Contents& contents, Open&& open);
  void read_elsewhere(Session& session, Contents& contents);
  static bool can_be_ordered(Session& session, Contents& contents, Stream stream);
  static bool can_be_ordered_quickly(Session& session, Contents& contents, Stream stream);
  static void put_in_order(Session& session, Contents& contents, Stream stream);

  Tensor try_open(Session& session, const ItemRow& row);
  Tensor open(Session& session, const ItemRow& row);
  /// Other threads may be looking at an owner that no segment names any more.
  void keep_for_good(std::shared_ptr<const void> owner);
  Tensor open_entry(Session& session, const ItemRow& row);
  OpenSegment& open_segment(std::uint16_t index) const noexcept {
    return open_segments_.as<OpenSegment>()[index];
  }

  Ring& ring_;
  const SegmentDirectory& directory_;
  Keepers keepers_;
  Mapping open_segments_;  ///< by index in the directory
  std::mutex owners_mutex_;
  std::set<std::shared_ptr<const void>> owners_;  ///< those that open segments name, or have named
};

}  // namespace onecopy
