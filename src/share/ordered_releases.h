// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <functional>
#include <mutex>

#include "share/keeper.h"
#include "share/timeline.h"

namespace onecopy {

/// Leases that end only once a stream has done all that was in it when the last reference went: what the stream
/// still reads or writes is not used for anything else before. Nobody waits for that.
///
/// Thread safety: all members may be called concurrently.
class OrderedReleases {
 public:
  explicit OrderedReleases(Timeline& timeline) : timeline_(timeline) {}

  /// Called (without locks) when something is waiting: somebody has to call sweep() until it says no more.
  std::function<void()> on_wait;

  /// The same block; dropping it is ordered in the stream, which must live as long.
  BlockRef order(BlockRef block, Device device, Stream stream);
  /// Ends what has become due. True while something is waiting.
  bool sweep() noexcept;
  std::size_t size() const;

 private:
  class Lease;
  struct Waiting {
    BlockRef block;
    TimelinePoint point;
  };
  /// A stream that is being captured takes no mark: the block waits for the end of that first.
  struct Unmarked {
    BlockRef block;
    Device device;
    Stream stream;
  };

  void drop(BlockRef block, Device device, Stream stream) noexcept;
  /// False when it has to be tried again.
  bool mark(Unmarked& block, std::vector<Waiting>& marked) noexcept;
  bool mark_again() noexcept;

  Timeline& timeline_;
  mutable std::mutex mutex_;
  std::deque<Waiting> waiting_;
  std::vector<Unmarked> unmarked_;
  std::mutex marking_again_;  ///< before mutex_; held while the driver is asked
};

}  // namespace onecopy
