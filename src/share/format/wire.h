// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "device/backend.h"
#include "onecopy/core/bytes.h"
#include "onecopy/core/device.h"
#include "onecopy/core/error.h"
#include "os/process_origin.h"
#include "os/unix_socket.h"
#include "peer/handshake.h"
#include "peer/message.h"

/// The messages between brokers and peers, see peer/message.h. The processes of other owners are named by public_name().
namespace onecopy::wire {

/// The number is above all types, because versions up to 4 had a message's type where its version is now.
inline constexpr peer::Protocol kProtocol{
    64,
    "onecopy's protocol",
    "a message",
    "use the same release in both",
    "broker",
    "borrower",
    "another process listens in the place of this handle's owner and does not know its secret; the handle "
    "was not used",
    "the owner refuses: this process does not know the secret that its handles carry"};

enum class Type : std::uint32_t {
  hello = 1,  // the types begin with the types of peer::First
  challenge,
  prove,
  welcome,  ///< broker: sends block table and claim page
  refused,
  want_segment,  ///< borrower: asks for the descriptors of a segment of the broker's process
  want_foreign,  ///< borrower: asks for the descriptors of another owner's segment
  segment,       ///< broker: answers both
  ask_limbo,     ///< borrower, with its slot raised: asks whether a freed block is still held
  limbo,         ///< broker: answers yes or no
  /// Tells, from any process that knows the hold's number, that the hold's handle has arrived (no answer).
  acknowledge,
  adopt_child,  ///< borrower: sends a claim page and a socket for its next forked child (no answer)
  child_hello,  ///< the child, over its socket: sends its pid (no answer)
  retain,       ///< putter: asks to retain a segment for the getters of the broker's queue
  retained,     ///< broker: confirms
  /// Tells, from a borrower, that it has opened the broker's queue. Before the answer, the broker sends `retain_mine`
  /// for segments in use.
  join_queue,
  leave_queue,    ///< borrower: tells that it has closed the queue (no answer)
  retain_mine,    ///< broker, unasked: asks to retain its segment, in case it dies before the item is taken
  retire,         ///< owner, unasked: tells that a segment is gone and must be unmapped
  want_info,      ///< any process of the same user: asks for a description of the process
  info,           ///< broker: sends the description in JSON
  joined,         ///< broker: tells that it has sent all segments that would be needed if it died
  want_timeline,  ///< borrower: asks for the words that the process's streams write
  timeline,       ///< broker: sends a descriptor of the page with the words
  forget,         ///< putter: tells that the owner has given back a retained segment (no answer)
  want_rest,      ///< borrower: asks for more descriptors of a segment, if one message could not take all
  rest,           ///< owner: sends the remaining descriptors, and nothing else
  release,        ///< putter: tells that it holds and will put no block of a segment (no answer)
  want_segments,  ///< borrower: asks for several segments of a kind that takes no descriptors
  segments,       ///< owner: describes the segments, in the same order
  detach,  ///< borrower: tells that it holds no block and will not use its claim page again (no answer)
};
/// The last type above, for tests that try every type.
inline constexpr Type kLastType = Type::detach;

template <Type type>
using EmptyMessage = peer::EmptyMessage<type>;

/// A description of memory, whose descriptors come with the message.
struct Described {
  std::uint64_t size = 0;
  SegmentKind kind = SegmentKind::memfd;
  Uuid device;
  std::uint32_t missing =
      0;       ///< the number of descriptors for which the message has no room, see want_rest
  Bytes blob;  ///< vendor bytes

  Described() = default;
  explicit Described(const ExportedMemory& memory);
  /// Returns the memory with these descriptors.
  ExportedMemory with(std::vector<Fd> fds) &&;
  void fields(auto& f) { f(size, kind, device.bytes, missing, blob); }
};

using Welcome = EmptyMessage<Type::welcome>;
struct WantSegment {
  static constexpr Type kType = Type::want_segment;
  std::uint32_t segment = 0;
  bool read_only = false;
  std::int32_t number = 0;  ///< Backend::borrower_number()
  void fields(auto& f) { f(segment, read_only, number); }
};
struct WantRest {
  static constexpr Type kType = Type::want_rest;
  std::uint32_t segment = 0;
  std::uint32_t first = 0;  ///< the number of the first wanted descriptor
  void fields(auto& f) { f(segment, first); }
};
struct WantForeign {
  static constexpr Type kType = Type::want_foreign;
  std::string owner;
  WantSegment wanted;
  void fields(auto& f) { f(owner, wanted); }
};
/// An answer with descriptors: the block table first if `has_table`, then the descriptors of the segment.
struct Segment {
  static constexpr Type kType = Type::segment;
  Described memory;
  bool has_table = false;
  bool owner_gone = false;
  void fields(auto& f) { f(memory, has_table, owner_gone); }
};
/// Asks for kMaxAskedAtOnce segments or fewer.
struct WantSegments {
  static constexpr Type kType = Type::want_segments;
  std::vector<WantSegment> wanted;
  void fields(auto& f) { f(wanted); }
};
/// An answer with as many segments as were asked for. The borrower asks for a segment of 0 bytes alone, and gets its
/// descriptors, or the reason for the refusal.
struct Segments {
  static constexpr Type kType = Type::segments;
  std::vector<Described> segments;
  void fields(auto& f) { f(segments); }
};
/// The max number of segments in one question: an answer is some 10 KB.
inline constexpr std::uint32_t kMaxAskedAtOnce = 64;
struct AskLimbo {
  static constexpr Type kType = Type::ask_limbo;
  std::uint64_t generation = 0;
  std::uint32_t block = 0;
  void fields(auto& f) { f(generation, block); }
};
struct Limbo {
  static constexpr Type kType = Type::limbo;
  bool yes = false;
  void fields(auto& f) { f(yes); }
};
struct Acknowledge {
  static constexpr Type kType = Type::acknowledge;
  std::uint64_t hold = 0;
  void fields(auto& f) { f(hold); }
};
using AdoptChild = EmptyMessage<Type::adopt_child>;
struct ChildHello {
  static constexpr Type kType = Type::child_hello;
  ProcessOrigin child;
  void fields(auto& f) { f(child.pid, child.start_time); }
};
/// A request with descriptors: the block table, then the descriptors of the segment.
template <Type type>
struct RequestToRetain {
  static constexpr Type kType = type;
  std::string owner;
  std::uint32_t segment = 0;
  ProcessOrigin origin;     ///< the owner's
  std::uint64_t queue = 0;  ///< the random number of the queue, the same in all processes
  std::uint64_t number =
      0;  ///< the number of the putter's request, higher than all before; 0 in `retain_mine`
  Described memory;
  void fields(auto& f) { f(owner, segment, origin.pid, origin.start_time, queue, number, memory); }
};
using Retain = RequestToRetain<Type::retain>;
using RetainMine = RequestToRetain<Type::retain_mine>;
using Retained = EmptyMessage<Type::retained>;
using Rest = EmptyMessage<Type::rest>;
struct Forget {
  static constexpr Type kType = Type::forget;
  std::string owner;
  std::uint32_t segment = 0;
  void fields(auto& f) { f(owner, segment); }
};
struct Release {
  static constexpr Type kType = Type::release;
  std::string owner;
  std::uint32_t segment = 0;
  std::uint64_t number = 0;  ///< the number of the last request that ends
  void fields(auto& f) { f(owner, segment, number); }
};
template <Type type>
struct AboutQueue {
  static constexpr Type kType = type;
  std::uint64_t queue = 0;
  void fields(auto& f) { f(queue); }
};
using JoinQueue = AboutQueue<Type::join_queue>;
using LeaveQueue = AboutQueue<Type::leave_queue>;
using Joined = EmptyMessage<Type::joined>;
struct Retire {
  static constexpr Type kType = Type::retire;
  std::uint32_t segment = 0;
  void fields(auto& f) { f(segment); }
};
using Detach = EmptyMessage<Type::detach>;
using WantInfo = EmptyMessage<Type::want_info>;
struct Info {
  static constexpr Type kType = Type::info;
  std::string json;
  void fields(auto& f) { f(json); }
};
using WantTimeline = EmptyMessage<Type::want_timeline>;
/// An answer with a descriptor of the page with the words.
using Timeline = EmptyMessage<Type::timeline>;

template <class Message>
Bytes pack(const Message& message) {
  return peer::pack(kProtocol, message);
}
template <class Message>
Message unpack(ByteSpan packet) {
  return peer::unpack<Message>(kProtocol, packet);
}
inline Type type_of(ByteSpan packet) { return Type{peer::type_of(kProtocol, packet)}; }
inline Bytes refuse(const Error& error) { return peer::refuse(kProtocol, error); }
/// Throws the Error of a `refused`, and protocol for another type than `expected`.
inline void expect(ByteSpan packet, Type expected) {
  peer::fields_of(kProtocol, packet, static_cast<std::uint32_t>(expected));
}
/// Returns whether the sender of a message of this type expects an answer. To others no refusal may be sent, because it
/// would be taken for the answer to another question.
bool is_answered(Type type) noexcept;

/// Returns the descriptors to send with `segment`, `retain` and `retain_mine`: the block table first, if it is sent,
/// then the memory.
std::vector<int> descriptors(const ExportedMemory& memory, const Fd& table = Fd());
/// Removes the block table from descriptors that have one and returns it. Throws protocol if there are none.
Fd take_table(std::vector<Fd>& fds);

}  // namespace onecopy::wire
