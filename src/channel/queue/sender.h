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
#include "channel/queue/origins.h"
#include "channel/queue/sent_items.h"
#include "onecopy/channel/queue.h"
#include "onecopy/memory/tensor.h"
#include "share/session.h"

namespace onecopy {

/// The origin that was looked up last, for readers that take no lock.
/// Thread safety: find() may be called by anybody, remember() by one thread at a time.
class LastOrigin {
 public:
  std::optional<std::uint16_t> find(std::uint64_t keeper, std::uint32_t segment,
                                    Access access) const noexcept {
    const std::uint32_t version = version_.load();
    const bool same = keeper_.load() == keeper && segment_.load() == segment && access_.load() == access;
    const std::uint16_t origin = origin_.load();
    if (!same || (version & 1) != 0 || version_.load() != version) return std::nullopt;
    return origin;
  }
  void remember(std::uint64_t keeper, std::uint32_t segment, Access access, std::uint16_t origin) noexcept {
    version_.fetch_add(1);
    keeper_.store(keeper);
    segment_.store(segment);
    access_.store(access);
    origin_.store(origin);
    version_.fetch_add(1);
  }

 private:
  std::atomic<std::uint32_t> version_{0};  ///< odd while the rest is being written
  std::atomic<std::uint64_t> keeper_{0};   ///< its serial()
  std::atomic<std::uint32_t> segment_{0};
  std::atomic<Access> access_{Access::read_only};
  std::atomic<std::uint16_t> origin_{0};
};

/// Puts messages into a queue: names their segments, encodes them, keeps their blocks until somebody
/// has taken them.
///
/// Thread safety: all members may be called concurrently.
class Sender {
 public:
  Sender(Ring& ring, OriginTable& origins, const ProcessId& creator) noexcept
      : ring_(ring), origins_(origins), creator_(creator), sent_(origins.channel()) {}

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
    std::uint16_t origin = 0;
    bool is_unkept = false;                  ///< and counted
    TimePoint ask_again = TimePoint::max();  ///< the creator, once it is not silent
    bool is_settled() const noexcept { return ask_again == TimePoint::max(); }
  };

  /// Nothing when the creator would have to be asked and may not.
  std::optional<Outgoing> outgoing(Session& session, const Tensor& tensor, const Limits& limits);
  std::optional<std::uint16_t> origin_of(Session& session, const Tensor& tensor, SharedKeeper& keeper,
                                         std::uint32_t segment, const Limits& limits);
  std::optional<Known> find_known(const Key& key);
  void remember(const Key& key, const Known& known);
  void forget_most() noexcept;
  void remember_last(const Key& key, const Known& known) noexcept;
  void rely_on_creator(Session& session);
  bool has_lost_creator() const noexcept;
  void doubt_deposits() noexcept;
  bool must_ask(Session& session, const Known& known) const;
  Known ask_creator(Session& session, const Tensor& tensor, SharedKeeper& keeper, TimePoint deadline,
                    const std::optional<Known>& before);
  std::uint16_t add_origin(const Origin& origin, TimePoint deadline);
  bool put_message(Session& session, const Message& message, const Limits& limits, Stream stream);
  bool put_one(Session& session, const Tensor& tensor, TimePoint deadline, Stream stream, Tensor* given);
  /// `given` is what the blocks were taken from: it goes.
  bool put_inline(Session& session, const Parts& parts, std::span<const BlockRef> blocks,
                  TimePoint deadline, Tensor* given = nullptr);
  bool put_elsewhere(Session& session, const Parts& parts, std::vector<BlockRef> blocks,
                     const Limits& limits);

  Ring& ring_;
  OriginTable& origins_;
  const ProcessId creator_;
  SentItems sent_;
  std::mutex known_mutex_;
  std::map<Key, Known> known_;
  LastOrigin last_;  ///< written under known_mutex_; of what is settled only
  /// Over this connection the creator was asked to keep what is settled; null when it keeps nothing for us.
  std::atomic<const std::atomic<bool>*> relied_on_{nullptr};
  std::vector<ConnectionEnd> relied_on_once_;  ///< those it was, and is; under known_mutex_
  std::atomic<std::uint64_t> unkept_{0};
};

}  // namespace onecopy
