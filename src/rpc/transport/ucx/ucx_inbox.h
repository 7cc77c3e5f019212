// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "rpc/transport/arriving_tensor.h"
#include "rpc/transport/wire.h"

namespace onecopy::rpc {

/// Returns the beginning of a message: its tag, the layouts of its tensors, its plain bytes, and the bytes of small tensors
/// in memory
/// of the CPU. docs/design/formats/rpc-stream-v1.md describes it. `apart` gets the numbers of the other tensors, which are
/// sent apart.
Bytes encode_beginning(const Message& message, std::vector<std::uint32_t>& apart);
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

  /// Takes the beginning of a message. Throws protocol.
  void begin(std::uint64_t number, ByteSpan beginning);
  bool has_begun(std::uint64_t number) const { return number < next_ || incoming_.count(number) != 0; }
  /// Reserves a further part of the memory of a piece. Returns whether room() may be called. Throws out_of_memory.
  bool reserve(std::uint64_t number, std::uint32_t piece);
  /// Returns the tensor into which a piece of so many bytes goes. Throws protocol when there is none.
  Tensor room(std::uint64_t number, std::uint32_t piece, std::uint64_t bytes);
  /// Records that a tensor has arrived.
  void fill(std::uint64_t number);
  bool has_arrived() const noexcept { return !arrived_.empty(); }
  /// Returns the messages that may be handled now, in order.
  std::vector<Arrived> take() { return std::exchange(arrived_, {}); }

 private:
  struct Incoming {
    Arrived what;
    std::vector<ArrivingTensor> tensors;
    /// The bytes of each tensor that is sent apart and not asked for yet, or 0.
    std::vector<std::uint64_t> apart;
    std::size_t missing = 0;
    bool is_in_order = false;
  };

  void complete(std::uint64_t number, Incoming&& incoming);
  void give_out(Incoming&& incoming);

  std::map<std::uint64_t, Incoming> incoming_;  ///< messages that have begun and were not returned
  std::uint64_t next_ = 1;                      ///< all messages with a smaller number were returned
  std::set<std::uint64_t> given_out_;           ///< numbers above next_ of messages that were returned
  std::vector<Arrived> arrived_;
};

}  // namespace onecopy::rpc
