// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "transport/arriving_tensor.h"
#include "transport/wire.h"

namespace onecopy::transport {

/// The head of an active message. `session` is the random number that the receiver has given to the channel.
struct UcxHead {
  /// Stands in place of a piece: all that was sent before the question has arrived.
  static constexpr std::uint32_t kAnswer = UINT32_MAX;
  /// The bytes of each part of a large tensor but the last. UCX sends a part in one go, and nothing else meanwhile.
  static constexpr std::size_t kPartBytes = std::size_t{4} << 20;

  std::uint64_t session = 0;
  std::uint64_t number = 0;  ///< the message's number, from 1 on
  std::uint32_t piece = 0;   ///< 0: the beginning of the message; otherwise a tensor's number, from 1 on
  std::uint32_t part = 0;    ///< the part of the tensor, from 0 on

  std::size_t offset() const noexcept { return part * kPartBytes; }
};
static_assert(sizeof(UcxHead) == 24);

/// Returns whether a tensor of so many bytes is sent apart from the beginning of its message.
constexpr bool is_sent_separately(std::uint64_t bytes) noexcept { return bytes > (8 << 10); }
inline bool is_sent_separately(const Tensor& tensor) noexcept {
  return is_sent_separately(tensor.layout().extent_bytes());
}
/// Returns the first piece of a message: its beginning, its plain bytes, and the bytes of the tensors that are not sent
/// apart. docs/design/formats/rpc-stream-v1.md describes it.
Bytes encode_first_piece(const Message& message);
/// Returns the beginning that asks the receiver to tell when it has all that was sent before.
Bytes encode_question();

/// The messages that come over one channel. The pieces of a message may arrive in any order after its beginning, which
/// must arrive before room() is called. A message in order is returned after all messages that were sent before it.
/// Thread safety: none of its own.
class UcxInbox {
 public:
  struct Arrived {
    Message message;
    bool is_question = false;  ///< a question instead of a message: all that was sent before it has arrived
  };

  /// Takes the first piece of a message. If `takes_cards` is true, UCX can write to memory of CUDA devices.
  /// Throws protocol.
  void begin(std::uint64_t number, ByteSpan first_piece, bool takes_cards = false);
  bool has_begun(std::uint64_t number) const { return number < next_ || incoming_.count(number) != 0; }
  /// Reserves further memory for a part of a tensor. Returns whether room() may be called. Throws out_of_memory.
  bool reserve(const UcxHead& head);
  /// Returns the tensor into which a part of so many bytes goes. Throws protocol when there is none.
  Tensor room(const UcxHead& head, std::uint64_t bytes);
  /// Records that so many bytes of a message's tensors have arrived.
  void fill(std::uint64_t number, std::uint64_t bytes);
  bool has_arrived() const noexcept { return !arrived_.empty(); }
  /// Returns the messages that may be handled now, in order.
  std::vector<Arrived> take() { return std::exchange(arrived_, {}); }

 private:
  struct Incoming {
    Arrived what;
    std::vector<ArrivingTensor> tensors;
    /// The bytes of each tensor that are sent apart and not asked for yet.
    std::vector<std::uint64_t> apart;
    std::uint64_t missing = 0;  ///< bytes
    bool is_in_order = false;
  };

  void complete(std::uint64_t number, Incoming&& incoming);
  void give_out(Incoming&& incoming) { arrived_.push_back(std::move(incoming.what)); }

  std::map<std::uint64_t, Incoming> incoming_;  ///< messages that have begun and were not returned
  std::uint64_t next_ = 1;                      ///< all messages with a smaller number were returned
  std::set<std::uint64_t> given_out_;           ///< numbers above next_ of messages that were returned
  std::vector<Arrived> arrived_;
};

}  // namespace onecopy::transport
