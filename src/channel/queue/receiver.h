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
#include "channel/queue/origins.h"
#include "onecopy/channel/queue.h"
#include "onecopy/memory/tensor.h"
#include "os/mapping.h"
#include "share/owner/keeper.h"

namespace onecopy {

class Peer;
class Process;

/// Takes messages out of a queue and opens their tensors: claim first, then advance the head. What
/// is short and can be opened without asking anybody is opened under the ring's lock; for the rest the
/// item stays where it is meanwhile, and another consumer may take it.
///
/// Thread safety: all members may be called concurrently, but for reset().
class Receiver {
 public:
  /// Who may have what an item's owner and its putter do not: who keeps for the queue, and who has named it to us.
  using Keepers = std::array<ProcessId, 2>;

  Receiver(Ring& ring, const OriginTable& origins, const Keepers& keepers);

  /// Nothing when there was no message until the deadline. Throws closed, and what opening throws.
  /// What the stream is given afterwards finds the tensors as their putter's stream left them.
  std::optional<Message> get(Process& process, TimePoint deadline, Stream stream);
  /// The first message if it can be opened without asking anybody.
  std::optional<Message> get_at_once(Process& process, Stream stream);
  /// The same for what was put as one tensor; throws invalid_argument when the first item is not.
  std::optional<Tensor> get_tensor(Process& process, TimePoint deadline, Stream stream);

  // Around a fork.
  void lock() { known_peers_mutex_.lock(); }
  void unlock() { known_peers_mutex_.unlock(); }
  /// In a forked child, whose peers are others, and which has the queue from its parent.
  void reset(const ProcessId& parent);

 private:
  /// Whose segment an origin is, once that is open here. Written once, by who sets `has_writer`; only the keeper
  /// may be another one later, when its owner has died.
  struct Known {
    std::atomic<SharedKeeper*> keeper;  ///< null until the rest is written
    std::atomic<bool> has_writer;
    std::uint64_t segment_size;
    std::uint32_t segment;
    SegmentKind kind;
    Access access;
    Device device;
  };
  struct Contents {
    std::uint32_t tag = 0;
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

  bool take(Process& process, TimePoint deadline, Wants wants, Stream stream, Contents& contents);
  static Message to_message(Contents& contents);
  bool accept(Process& process, const RingItem& item, Attempt& attempt);
  void open_slowly(Process& process, Attempt& attempt, TimePoint deadline);
  template <class Open>
  static bool read(ByteSpan item, Contents& contents, Open&& open);
  void read_elsewhere(Process& process, Contents& contents);
  static bool can_be_ordered(Process& process, Contents& contents, Stream stream);
  static bool can_be_ordered_quickly(Process& process, Contents& contents, Stream stream);
  static void put_in_order(Process& process, Contents& contents, Stream stream);

  Tensor try_open(Process& process, const ItemRow& row);
  Tensor open(Process& process, const ItemRow& row);
  /// Other threads may be looking at one that is not in known() any more.
  void keep_for_good(std::shared_ptr<const Peer> peer);
  HandleFields fields_of(const ItemRow& row) const;
  void remember(Process& process, const ItemRow& row, const HandleFields& fields, Access access,
                Device device);
  Known& known(std::uint16_t origin) const noexcept { return known_memory_.as<Known>()[origin]; }

  Ring& ring_;
  const OriginTable& origins_;
  Keepers keepers_;
  Mapping known_memory_;
  std::mutex known_peers_mutex_;
  std::set<std::shared_ptr<const Peer>> known_peers_;  ///< what known() points or has pointed at
};

}  // namespace onecopy
