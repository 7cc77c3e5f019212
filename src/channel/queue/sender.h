// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <tuple>
#include <vector>

#include "channel/queue/item.h"
#include "channel/queue/segment_directory.h"
#include "channel/queue/sent_items.h"
#include "onecopy/channel/queue.h"
#include "onecopy/memory/tensor.h"
#include "share/session.h"

namespace onecopy {

/// The entry of the directory that was looked up last, for readers that take no lock.
/// Thread safety: find() may be called by any thread, remember() by one thread at a time.
class LastLookup {
 public:
  std::optional<std::uint16_t> find(std::uint64_t keeper, std::uint32_t segment, Access access,
                                    std::uint32_t epoch) const noexcept {
    const std::uint32_t version = version_.load();
    const bool same = keeper_.load() == keeper && segment_.load() == segment && access_.load() == access &&
                      epoch_.load() == epoch;
    const std::uint16_t index = index_.load();
    if (!same || (version & 1) != 0 || version_.load() != version) return std::nullopt;
    return index;
  }
  void remember(std::uint64_t keeper, std::uint32_t segment, Access access, std::uint32_t epoch,
                std::uint16_t index) noexcept {
    version_.fetch_add(1);
    keeper_.store(keeper);
    segment_.store(segment);
    access_.store(access);
    epoch_.store(epoch);
    index_.store(index);
    version_.fetch_add(1);
  }
  void forget() noexcept { remember(0, 0, Access::read_only, 0, 0); }

 private:
  std::atomic<std::uint32_t> version_{0};  ///< odd while the rest is being written
  std::atomic<std::uint64_t> keeper_{0};   ///< its serial()
  std::atomic<std::uint32_t> segment_{0};
  std::atomic<Access> access_{Access::read_only};
  std::atomic<std::uint16_t> index_{0};
  std::atomic<std::uint32_t> epoch_{0};
};

/// Puts messages into a queue: names their segments, encodes them, keeps their blocks until somebody
/// has taken them.
///
/// Thread safety: all members may be called concurrently.
class Sender {
 public:
  Sender(Ring& ring, SegmentDirectory& directory, const ProcessId& creator) noexcept
      : ring_(ring), directory_(directory), creator_(creator), sent_(directory.queue()) {}

  /// False when there was no space until the deadline. Throws closed, out_of_memory (nothing has
  /// changed then), invalid_argument for memory of other libraries.
  /// Getters' streams will wait for what `stream` has in it now.
  bool put(Session& session, const Tensor& tensor, TimePoint deadline, Stream stream);
  bool put(Session& session, const Message& message, TimePoint deadline, Stream stream);
  /// The tensor is empty after a true.
  bool put(Session& session, Tensor&& tensor, TimePoint deadline, Stream stream);
  /// The same without waiting; false also when the creator would have to be asked first.
  bool put_at_once(Session& session, const Message& message, Stream stream);
  /// Asks the creator to keep what it has not been asked for. Throws what put() throws.
  void prepare(Session& session, const Message& message, TimePoint deadline);

  /// Segments that the creator does not keep, as far as is known.
  std::uint64_t unkept() const noexcept { return unkept_.load(std::memory_order_relaxed); }

  SentItems& sent() noexcept { return sent_; }
  const SentItems& sent() const noexcept { return sent_; }

  // Around a fork. A forked child forgets all that its parent had put.
  void lock();
  void unlock();
  void reset() noexcept;

 private:
  /// A row and what it is about.
  struct Outgoing {
    ItemRow row;
    std::uint64_t block_size = 0;
    Bytes handle;  ///< what row.handle points to
  };
  /// What is to be written, as it will lie in the item.
  struct Parts {
    ItemHead head;
    std::span<const Outgoing> rows;
    const ItemOrder& order;
    ByteSpan data;
    std::uint32_t epoch;  ///< of the directory, when its rows were looked up

    std::size_t bytes() const noexcept;
    /// Returns how many they are.
    std::size_t write(std::byte* begin) const;
  };
  /// The keeper's serial(), the segment, how it is put.
  using Key = std::tuple<std::uint64_t, std::uint32_t, Access>;
  /// True once the connection to the creator has ended.
  using ConnectionEnd = std::shared_ptr<const std::atomic<bool>>;
  /// How far a put may go.
  struct Limits {
    TimePoint deadline;
    bool may_ask = true;  ///< the creator
  };
  struct Known {
    std::uint16_t index = kWholeHandle;      ///< in the directory
    std::uint32_t epoch = UINT32_MAX;        ///< in which it has that index
    bool is_unkept = false;                  ///< and counted
    TimePoint ask_again = TimePoint::max();  ///< the creator, once it is not silent
    bool is_settled() const noexcept { return ask_again == TimePoint::max(); }
  };
  /// The directory has begun another epoch since the rows were looked up: the put begins again.
  struct HasTurned {};

  /// Nothing when the creator would have to be asked and may not.
  std::optional<Outgoing> outgoing(Session& session, const Tensor& tensor, const Limits& limits,
                                   std::uint32_t epoch);
  std::optional<std::uint16_t> index_of(Session& session, const Tensor& tensor, SharedKeeper& keeper,
                                        std::uint32_t segment, const Limits& limits, std::uint32_t epoch);
  bool has_index(const Known& known, std::uint32_t epoch) const noexcept;
  std::optional<Known> find_known(const Key& key);
  void remember(const Key& key, const Known& known);
  void forget_most() noexcept;
  void remember_last(const Key& key, const Known& known) noexcept;
  void rely_on_creator(Session& session);
  bool has_lost_creator() const noexcept;
  void doubt_deposits() noexcept;
  bool must_ask(Session& session, const Known& known) const;
  void ask_creator(Session& session, const Tensor& tensor, SegmentKind kind, Known& known);
  void enter(const SegmentRef& segment, Access access, TimePoint deadline, Known& known);
  template <class Put>
  bool until_settled(Put&& put);
  bool put_message(Session& session, const Message& message, const Limits& limits, Stream stream);
  bool try_put_message(Session& session, const Message& message, const Limits& limits, Stream stream);
  bool try_put_one(Session& session, const Tensor& tensor, TimePoint deadline, Stream stream,
                   Tensor* given);
  /// `given` is what the blocks were taken from: it goes.
  bool put_inline(Session& session, const Parts& parts, std::span<const BlockRef> blocks,
                  TimePoint deadline, Tensor* given = nullptr);
  bool put_elsewhere(Session& session, const Parts& parts, std::vector<BlockRef> blocks,
                     const Limits& limits);

  Ring& ring_;
  SegmentDirectory& directory_;
  const ProcessId creator_;
  SentItems sent_;
  std::mutex known_mutex_;
  std::map<Key, Known> known_;
  LastLookup last_;  ///< written under known_mutex_; of what is settled only
  /// Over this connection the creator was asked to keep what is settled; null when it keeps nothing for us.
  std::atomic<const std::atomic<bool>*> relied_on_{nullptr};
  std::vector<ConnectionEnd> relied_on_once_;  ///< those it was, and is; under known_mutex_
  std::atomic<std::uint64_t> unkept_{0};
};

}  // namespace onecopy
