// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "channel/codec/item.h"
#include "channel/codec/segment_directory.h"
#include "channel/codec/tensor_packer.h"
#include "channel/queue/items_in_flight.h"
#include "onecopy/channel/queue.h"
#include "onecopy/memory/tensor.h"
#include "share/session.h"

namespace onecopy {

/// Puts messages into a queue, and keeps their blocks until a getter has taken them.
///
/// Thread safety: all members may be called concurrently.
class Sender {
 public:
  Sender(Ring& ring, SegmentDirectory& directory, const ProcessId& creator) noexcept
      : ring_(ring),
        directory_(directory),
        packer_(ring, directory, creator),
        in_flight_(ring, directory.queue()) {}

  /// Puts a tensor. Returns false if there was no space by the deadline. Getters' streams will wait for the work that
  /// is in `stream` now. Throws closed, out_of_memory (with nothing changed), and invalid_argument for memory of other
  /// libraries.
  bool put(Session& session, const Tensor& tensor, Deadline deadline, Stream stream);
  bool put(Session& session, const Message& message, Deadline deadline, Stream stream);
  /// Puts the tensor and empties it, unless it returns false.
  bool put(Session& session, Tensor&& tensor, Deadline deadline, Stream stream);
  /// Puts without waiting; also returns false if the creator would have to be asked first.
  bool put_at_once(Session& session, const Message& message, Stream stream);
  /// Asks the creator to retain segments that it has not been asked for. Throws as put() does.
  void prepare(Session& session, const Message& message, Deadline deadline);

  /// Returns the number of known segments that the creator does not retain.
  std::uint64_t unkept() const noexcept { return packer_.unkept(); }

  ItemsInFlight& in_flight() noexcept { return in_flight_; }
  const ItemsInFlight& in_flight() const noexcept { return in_flight_; }

  // The fork handlers call the following members. A forked child forgets what its parent had put.
  void lock() NO_THREAD_SAFETY_ANALYSIS;
  void unlock() NO_THREAD_SAFETY_ANALYSIS;
  void reset() noexcept;

 private:
  using Limits = TensorPacker::Limits;
  /// The contents of an item, in the order of its bytes.
  struct Parts {
    ItemHead head;
    const Manifest& tensors;
    ByteSpan data;

    std::size_t bytes() const noexcept { return sizeof head + tensors.bytes() + data.size(); }
    /// Writes the contents and returns their size in bytes.
    std::size_t write(std::byte* begin) const;
  };
  /// An exception that begins the put anew, because the directory has begun another epoch since the rows were looked
  /// up.
  struct DirectoryTurn {};

  template <class Put>
  bool until_settled(Put&& put);
  bool put_message(Session& session, const Message& message, const Limits& limits, Stream stream);
  bool try_put_message(Session& session, const Message& message, const Departure& departure,
                       const Limits& limits);
  bool try_put_one(Session& session, const Departure& departure, Deadline deadline, Tensor* given);
  /// Puts the contents into the ring. `given` is the tensor of the blocks, which is moved into the queue.
  bool put_inline(Session& session, const Parts& parts, std::span<const BlockRef> blocks, Deadline deadline,
                  Tensor* given = nullptr);
  bool put_elsewhere(Session& session, const Parts& parts, std::vector<BlockRef> blocks,
                     const Limits& limits);

  Ring& ring_;
  SegmentDirectory& directory_;
  TensorPacker packer_;
  ItemsInFlight in_flight_;
};

}  // namespace onecopy
