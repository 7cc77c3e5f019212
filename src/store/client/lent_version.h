// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "onecopy/memory/block.h"
#include "os/mutex.h"
#include "store/client/reading.h"
#include "store/format/record.h"

namespace onecopy {
class LentMemory;
}

namespace onecopy::store {

/// The blocks by which tensors of a version are sent without a copy. What receivers map is the version's own memory. A
/// page of the host that a receiver writes to becomes the receiver's own; a card's memory is lent for reading.
///
/// An open file has a read lock and travels with the memory: that of the memory itself, or that of the table if the memory
/// is on a card. So the keeper keeps the version as long as any process maps what was sent, whoever has died. The first
/// tensor that is sent makes the blocks' segment: a mapping of the whole version, a descriptor, and a question to the
/// keeper if this process has not kept the descriptors. Versions of Ascend cards, versions that were published as they are, and versions of which no descriptor can be had are
/// not lent: they are sent as copies.
///
/// Thread safety: all members may be called concurrently. A forked child makes a segment of its own, and maps the
/// segment that its parent had made, so the keeper keeps the version, until the parent drops the segment. A parent that
/// ends first never does: its segment stays mapped until the child has ended.
class LentVersion {
 public:
  struct Bytes {
    std::uint64_t offset;
    std::uint64_t size;
  };

  /// Returns a block of these bytes of the version, and sets `at` to its address. Returns an empty reference if the
  /// version is not lent.
  BlockRef lend(const VersionRecord& version, const Reading& reading, const Bytes& bytes, std::byte*& at);

 private:
  std::shared_ptr<LentMemory> known() const;
  std::shared_ptr<LentMemory> made(const VersionRecord& version, const Reading& reading);

  std::atomic<bool> is_copied_{false};   ///< the version is not lent
  std::atomic<bool> has_failed_{false};  ///< once, which was logged
  mutable Mutex mutex_;
  std::shared_ptr<LentMemory> memory_ GUARDED_BY(mutex_);  ///< shared with threads that lend
};

}  // namespace onecopy::store
