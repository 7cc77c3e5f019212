// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "onecopy/memory/block.h"
#include "os/mutex.h"
#include "os/process.h"

namespace onecopy {

/// A block that keeps another object and drops it with the last reference, but not in a forked child, because the
/// object is the parent's. Thread safety: all members may be called concurrently.
class ObjectBlock final : public BlockGroup {
 public:
  static BlockRef keep(std::shared_ptr<const void> owner) {
    return {std::make_unique<ObjectBlock>(std::move(owner)).release(), 0};
  }
  explicit ObjectBlock(std::shared_ptr<const void> owner) : BlockGroup(false), owner_(std::move(owner)) {}

  void add_reference(std::uint32_t) noexcept override {
    references_.fetch_add(1, std::memory_order_relaxed);
  }
  void release(std::uint32_t) noexcept override {
    if (references_.fetch_sub(1, std::memory_order_acq_rel) != 1 || current_pid() != pid_) return;
    const std::unique_ptr<ObjectBlock> last(this);
  }

 private:
  std::shared_ptr<const void> owner_;  // shared with the framework's own users of the memory
  const int pid_ = current_pid();
  std::atomic<std::uint64_t> references_{1};
};

/// The objects of this process that handles name, each by the block that stands for it.
///
/// Thread safety: all members may be called concurrently. Invariant: an entry exists exactly as long as its block keeps
/// the object.
class PinnedObjects {
 public:
  struct Name {
    std::uint32_t block = 0;
    std::uint64_t generation = 0;
    auto operator<=>(const Name&) const = default;  // NOLINT(modernize-use-nullptr)
  };

  /// Adds an object, and returns a pointer that the block must keep. REQUIRES: the block is the only owner of the
  /// pointer; this registry outlives the block.
  std::shared_ptr<const void> add(Name name, std::shared_ptr<const void> object);
  /// Returns the object; empty if it is gone.
  std::shared_ptr<const void> find(Name name) const;

 private:
  struct Pin;

  mutable Mutex mutex_;
  std::map<Name, std::weak_ptr<const Pin>> pins_ GUARDED_BY(mutex_);
};

/// The blocks that are kept for handles that were written down (pickled, or sent by other means) and have not been
/// opened yet. The acknowledgement of the first process that opens the handle ends a hold; otherwise the hold expires.
/// A permanent hold does not expire, because its handle is in a channel that may be read at any time.
///
/// Thread safety: all members may be called concurrently.
class Holds {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::minutes kLifetime{10};

  enum class Until : std::uint8_t { opened_or_late, opened };

  /// Adds a hold and returns the nonce that ends it, which is never 0. A permanent hold does not expire.
  std::uint64_t add(BlockRef block, Clock::time_point now = Clock::now(),
                    Until until = Until::opened_or_late);
  void end(std::uint64_t nonce) noexcept;
  /// Makes a hold permanent. Has no effect if the hold is over.
  void make_permanent(std::uint64_t nonce) noexcept;
  /// Ends holds that are older than kLifetime and not permanent. Returns when the next hold expires, if any.
  std::optional<Clock::duration> expire(Clock::time_point now = Clock::now()) noexcept;
  /// Ends all holds that were made at `than` or before.
  void end_older(Clock::time_point than) noexcept;
  /// Returns whether the block is held for a handle.
  bool contain(const BlockRef& block) const noexcept;
  /// Returns when each hold was made.
  std::vector<Clock::time_point> list() const;

  // The fork handlers call the following members. A child holds nothing for others.
  void lock() ACQUIRE(mutex_) { mutex_.lock(); }
  void unlock() RELEASE(mutex_) { mutex_.unlock(); }
  void clear() noexcept;

 private:
  struct Hold {
    BlockRef block;
    Clock::time_point since;
    bool lasts = false;
  };
  template <typename IsOver>
  void end_those(IsOver is_over) noexcept;
  std::uint64_t take_nonce() REQUIRES(mutex_);

  mutable Mutex mutex_;
  /// A map whose nodes move without an allocation, so that a hold can end even if memory is short.
  std::map<std::uint64_t, Hold> holds_ GUARDED_BY(mutex_);
  std::array<std::uint64_t, 64> nonces_
      GUARDED_BY(mutex_){};  ///< random numbers, of which the kernel is asked for many at once
  std::size_t nonces_left_ GUARDED_BY(mutex_) = 0;
};

}  // namespace onecopy
