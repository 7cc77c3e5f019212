// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

#include "channel/codec/item.h"
#include "channel/codec/segment_directory.h"
#include "channel/codec/tensor_order.h"
#include "channel/codec/tensor_unpacker.h"
#include "onecopy/channel/queue.h"
#include "onecopy/memory/tensor.h"
#include "share/session.h"

namespace onecopy {

/// Takes messages out of a queue and opens their tensors: claims the tensors first, then advances the head. A short
/// item that can be opened without asking another process is opened under the ring's lock. Other items are opened while
/// they stay in the queue, where another consumer may take them.
///
/// Thread safety: all members may be called concurrently, but for reset().
class Receiver {
 public:
  Receiver(Ring& ring, const SegmentDirectory& directory, const TensorUnpacker::Holders& holders);

  /// Returns the next message, or nothing if none arrived by the deadline. Later work in the stream sees the tensors as
  /// their putter's stream left them. Throws closed, and what open() throws.
  std::optional<Message> get(Session& session, Deadline deadline, Stream stream);
  /// Returns the first message if it can be opened without asking another process.
  std::optional<Message> get_at_once(Session& session, Stream stream);
  /// Returns the next message as get() does, if it was put as one tensor; throws invalid_argument otherwise.
  std::optional<Tensor> get_tensor(Session& session, Deadline deadline, Stream stream);

  TensorUnpacker& unpacker() noexcept { return unpacker_; }

 private:
  struct Contents {
    std::uint32_t tag = 0;
    MessageKind kind = MessageKind::user;
    Bytes data;
    UnpackedTensors tensors;
    bool is_elsewhere = false;  ///< tensors.first is the block that the item was written to

    void clear() noexcept {
      data.clear();
      tensors.clear();
    }
  };
  struct Attempt;
  enum class Wants : std::uint8_t { message, quick_message, tensor };

  bool take(Session& session, Deadline deadline, Wants wants, Stream stream, Contents& contents);
  static Message to_message(Contents& contents);
  bool accept(Session& session, const RingItem& item, Attempt& attempt);
  void open_slowly(Session& session, Attempt& attempt, Deadline deadline);
  template <class Unpack>
  static bool read(ByteSpan item, Contents& contents, Unpack&& unpack);
  void open(Session& session, ByteSpan item, Contents& contents);
  void open_elsewhere(Session& session, Contents& contents);
  static void order(Session& session, Contents& contents, Stream stream);

  Ring& ring_;
  TensorUnpacker unpacker_;
};

}  // namespace onecopy
