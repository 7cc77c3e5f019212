// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "device/backend.h"
#include "onecopy/core/bytes.h"
#include "onecopy/core/device.h"
#include "onecopy/core/error.h"
#include "os/unix_socket.h"
#include "peer/mutual_proof.h"

/// The messages between brokers and peers, one packet each: {type, version}, a fixed body, and for some a tail.
/// Messages are written and read on one host only, so bodies are sent as they are in memory.
namespace onecopy::wire {

inline constexpr std::uint32_t kVersion = 4;

enum class Type : std::uint32_t {
  hello = 1,     ///< borrower: greets the broker
  challenge,     ///< broker: asks for a proof, and sends its own
  prove,         ///< borrower: sends its proof
  welcome,       ///< broker: sends block table and claim page
  refused,       ///< broker: sends an error code and its text in place of an answer
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
  segments,       ///< owner: sends the blobs that open the segments, in the same order
};
/// The last type above, for tests that try every type.
inline constexpr Type kLastType = Type::segments;

using Nonce = NonceOf<16>;
using Name = std::array<char, 32>;

struct Head {
  Type type;
  std::uint32_t version = kVersion;
  /// An answer has the number of its question; 0 in a message that is not an answer.
  std::uint32_t serial = 0;
};
struct Hello {
  static constexpr Type kType = Type::hello;
  Nonce nonce;
};
struct Challenge {
  static constexpr Type kType = Type::challenge;
  Nonce nonce;
  Digest proof;
};
struct Prove {
  static constexpr Type kType = Type::prove;
  Digest proof;
  Name name;  ///< the public name of the borrower
};
struct Welcome {
  static constexpr Type kType = Type::welcome;
};
struct Refused {
  static constexpr Type kType = Type::refused;
  ErrorCode code;
};
struct WantSegment {
  static constexpr Type kType = Type::want_segment;
  std::uint32_t segment;
  std::uint8_t read_only;
  std::int32_t number = 0;  ///< Backend::borrower_number()
};
struct WantRest {
  static constexpr Type kType = Type::want_rest;
  std::uint32_t segment;
  std::uint32_t first;  ///< the number of the first wanted descriptor
};
struct WantForeign {
  static constexpr Type kType = Type::want_foreign;
  Name owner;
  std::uint32_t segment;
  std::uint8_t read_only;
  std::int32_t number = 0;
};
/// An answer with descriptors: the block table first if `has_table`, then the descriptors of the segment. The tail
/// contains vendor bytes.
struct Segment {
  static constexpr Type kType = Type::segment;
  std::uint64_t size;
  std::uint8_t kind;
  std::uint8_t has_table;
  std::uint8_t owner_gone;
  Uuid device;
  /// The number of descriptors for which this message has no room, see want_rest.
  std::uint32_t missing = 0;
};
/// A question whose tail is `count` bodies of want_segment.
struct WantSegments {
  static constexpr Type kType = Type::want_segments;
  std::uint32_t count;
};
/// An answer whose tail is, for each segment, a number of bytes, then so many bytes: the body and the tail of
/// `segment`. After 0 bytes the borrower asks for that segment alone, and gets its descriptors, or the reason for the
/// refusal.
struct Segments {
  static constexpr Type kType = Type::segments;
  std::uint32_t count;
};
/// The max number of segments in one question: an answer is some 10 KB.
inline constexpr std::uint32_t kMaxAskedAtOnce = 64;
struct AskLimbo {
  static constexpr Type kType = Type::ask_limbo;
  std::uint64_t generation;
  std::uint32_t block;
};
struct Limbo {
  static constexpr Type kType = Type::limbo;
  std::uint8_t yes;
};
struct Acknowledge {
  static constexpr Type kType = Type::acknowledge;
  std::uint64_t hold;
};
struct AdoptChild {
  static constexpr Type kType = Type::adopt_child;
};
struct ChildHello {
  static constexpr Type kType = Type::child_hello;
  std::int32_t pid;
  std::uint64_t start_time;
};
/// A request with descriptors: the block table, then the descriptors of the segment. The tail contains vendor bytes.
struct Retain {
  static constexpr Type kType = Type::retain;
  Name owner;
  std::int32_t owner_pid;
  std::uint64_t owner_start;
  std::uint64_t size;
  std::uint64_t queue;   ///< the random number of the queue, the same in all processes
  std::uint64_t number;  ///< the number of the putter's request, higher than all before; 0 in `retain_mine`
  std::uint32_t segment;
  std::uint8_t kind;
  Uuid device;
};
struct Rest {
  static constexpr Type kType = Type::rest;
};
struct RetainMine : Retain {
  static constexpr Type kType = Type::retain_mine;
};
struct Retained {
  static constexpr Type kType = Type::retained;
};
struct Forget {
  static constexpr Type kType = Type::forget;
  Name owner;
  std::uint32_t segment;
};
struct Release {
  static constexpr Type kType = Type::release;
  Name owner;
  std::uint32_t segment;
  std::uint64_t number;  ///< the number of the last request that ends
};
struct JoinQueue {
  static constexpr Type kType = Type::join_queue;
  std::uint64_t queue;
  std::uint64_t unused = 0;
};
struct LeaveQueue {
  static constexpr Type kType = Type::leave_queue;
  std::uint64_t queue;
  std::uint64_t unused = 0;
};
struct Joined {
  static constexpr Type kType = Type::joined;
};
struct Retire {
  static constexpr Type kType = Type::retire;
  std::uint32_t segment;
};
struct WantInfo {
  static constexpr Type kType = Type::want_info;
};
struct Info {
  static constexpr Type kType = Type::info;
};  ///< Tail: JSON.
struct WantTimeline {
  static constexpr Type kType = Type::want_timeline;
};
/// An answer with a descriptor of the page with the words.
struct Timeline {
  static constexpr Type kType = Type::timeline;
};

/// Returns a message of any type and body, for tests of messages that no process sends; other code uses pack().
template <class Body>
Bytes pack_as(Type type, const Body& body, ByteSpan tail = {}) {
  static_assert(std::is_trivially_copyable_v<Body>);
  const std::size_t fixed = std::is_empty_v<Body> ? 0 : sizeof(Body);
  Bytes bytes(sizeof(Head) + fixed + tail.size());
  write_value(bytes.data(), Head{type});
  if constexpr (!std::is_empty_v<Body>) write_value(bytes.data() + sizeof(Head), body);
  std::copy(tail.begin(), tail.end(), bytes.begin() + static_cast<std::ptrdiff_t>(sizeof(Head) + fixed));
  return bytes;
}

/// Returns a message with this body and its type.
template <class Body>
Bytes pack(const Body& body, ByteSpan tail = {}) {
  return pack_as(Body::kType, body, tail);
}

/// Returns the type of a packet. Throws protocol, version_mismatch.
Type type_of(ByteSpan packet);
/// Returns whether the sender of a message of this type expects an answer. To others no refusal may be sent, because it
/// would be taken for the answer to another question.
bool is_answered(Type type) noexcept;
/// Returns the serial number of a packet. REQUIRES: type_of() did not throw.
std::uint32_t serial_of(ByteSpan packet) noexcept;
void set_serial(Bytes& packet, std::uint32_t serial) noexcept;
/// Throws protocol if the packet is shorter than `size`.
void require_size(ByteSpan packet, std::size_t size);
/// Throws the Error of a `refused`, and protocol for another type than `expected`.
void expect(ByteSpan packet, Type expected);
Bytes refuse(const Error& error);

template <class Body>
Body body_of(ByteSpan packet) {
  require_size(packet, sizeof(Head) + sizeof(Body));
  return load<Body>(packet.data() + sizeof(Head));
}
template <class Body>
ByteSpan tail_of(ByteSpan packet) {
  require_size(packet, sizeof(Head) + sizeof(Body));
  return packet.subspan(sizeof(Head) + sizeof(Body));
}

/// Returns the memory that came with `segment`, `retain` or `retain_mine`, without `others` descriptors at the
/// beginning. REQUIRES: the packet has at least as many descriptors.
template <class Body>
ExportedMemory memory_in(Packet packet, std::size_t others) {
  const auto body = body_of<Body>(packet.bytes);
  const ByteSpan blob = tail_of<Body>(packet.bytes);
  packet.fds.erase(packet.fds.begin(), packet.fds.begin() + static_cast<std::ptrdiff_t>(others));
  ExportedMemory memory{static_cast<SegmentKind>(body.kind), body.size, std::move(packet.fds),
                        Bytes(blob.begin(), blob.end()), body.device};
  if constexpr (requires { body.missing; }) memory.missing = body.missing;
  return memory;
}

Bytes want_segments(std::span<const WantSegment> wanted);
/// Returns the questions of a `want_segments`. Throws protocol if the packet has fewer than it announces, or announces
/// too many.
std::vector<WantSegment> segments_wanted(ByteSpan packet);
/// Adds a segment to the tail of `segments`; if `memory` is empty, the borrower asks for that segment alone.
void add_segment(Bytes& tail, const std::optional<ExportedMemory>& memory);
/// Returns the segments of an answer, as many as were asked for. Throws protocol for another number, and for bytes that
/// do not fit into the packet.
std::vector<std::optional<ExportedMemory>> segments_in(ByteSpan packet, std::size_t wanted);

/// Returns the descriptors to send with `segment`, `retain` and `retain_mine`: the block table first, if it is sent,
/// then the memory.
std::vector<int> descriptors(const ExportedMemory& memory, const Fd& table = Fd());

Name to_name(const std::string& public_name);
std::string to_string(const Name& name);

}  // namespace onecopy::wire
