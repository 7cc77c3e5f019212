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
#include "os/mutual_proof.h"
#include "os/unix_socket.h"

/// The messages between brokers and peers, one packet each: {type, version}, a fixed body, and for some a tail.
/// Messages are written and read on one host only, so bodies travel as they lie in memory.
namespace onecopy::wire {

inline constexpr std::uint32_t kVersion = 4;

enum class Type : std::uint32_t {
  hello = 1,     ///< borrower: here I am
  challenge,     ///< broker: prove it; and my own proof
  prove,         ///< borrower: my proof
  welcome,       ///< broker: block table and claim page
  refused,       ///< broker: an error code and its text, instead of any answer
  want_segment,  ///< borrower: descriptors of a segment of yours
  want_foreign,  ///< borrower: descriptors of a segment of another owner that you hold
  segment,       ///< broker: the answer to both
  ask_limbo,     ///< borrower, its slot raised: is this block still held, though you have freed it?
  limbo,         ///< broker: yes or no
  /// A process that knows its number: the handle with this hold has arrived (no answer).
  acknowledge,
  adopt_child,  ///< borrower: a claim page and a socket for a child I am about to fork (no answer)
  child_hello,  ///< that child, over that socket: my pid (no answer)
  retain,       ///< putter: retain this segment for the getters of your queue
  retained,     ///< broker: done
  /// Asks, from a borrower: I have your queue open; before the answer comes `retain_mine` for segments in use.
  join_queue,
  leave_queue,    ///< borrower: I have closed your queue (no answer)
  retain_mine,    ///< broker, unasked: retain this segment of mine, I may die before you take the item
  retire,         ///< owner, unasked: this segment is gone, drop your mapping
  want_info,      ///< any process of the same user: describe yourself
  info,           ///< broker: JSON
  joined,         ///< broker: all segments that you would need, should I die, have been sent
  want_timeline,  ///< borrower: the words that your streams write
  timeline,       ///< broker: a descriptor of the page with them
  forget,         ///< putter: the owner has given back this segment, which you retain for me (no answer)
  want_rest,      ///< borrower: more descriptors of a segment of yours that has more than one message takes
  rest,           ///< owner: the wanted rest, and nothing else
  release,        ///< putter: I hold nothing of this segment, and will put nothing of it (no answer)
  want_segments,  ///< borrower: several segments of yours, of a kind that takes no descriptors
  segments,       ///< owner: the blobs that open them, in their order
};
/// The last type above, for tests that try every type.
inline constexpr Type kLastType = Type::segments;

using Nonce = NonceOf<16>;
using Name = std::array<char, 32>;

struct Head {
  Type type;
  std::uint32_t version = kVersion;
  std::uint32_t serial = 0;  ///< an answer has its question's; 0 = not asked for
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
  Name name;  ///< public name of the borrower
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
  std::uint32_t first;  ///< the number of the first descriptor wanted
};
struct WantForeign {
  static constexpr Type kType = Type::want_foreign;
  Name owner;
  std::uint32_t segment;
  std::uint8_t read_only;
  std::int32_t number = 0;
};
/// Descriptors: the block table first when `has_table`, then the segment's own. Tail: vendor bytes.
struct Segment {
  static constexpr Type kType = Type::segment;
  std::uint64_t size;
  std::uint8_t kind;
  std::uint8_t has_table;
  std::uint8_t owner_gone;
  Uuid device;
  std::uint32_t missing = 0;  ///< descriptors that this message has no room for: want_rest
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
/// Descriptors: block table, then the segment's own. Tail: vendor bytes.
struct Retain {
  static constexpr Type kType = Type::retain;
  Name owner;
  std::int32_t owner_pid;
  std::uint64_t owner_start;
  std::uint64_t size;
  std::uint64_t queue;   ///< random, equal in every process
  std::uint64_t number;  ///< of the putter's request, which grows; 0 in `retain_mine`
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
  std::uint64_t number;  ///< of the last request that ends
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
/// An answer with a descriptor: the page with the words.
struct Timeline {
  static constexpr Type kType = Type::timeline;
};

/// A message of any type and body. For tests of messages that no process sends; others use pack().
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

/// The message whose type is the body's.
template <class Body>
Bytes pack(const Body& body, ByteSpan tail = {}) {
  return pack_as(Body::kType, body, tail);
}

/// Throws protocol, version_mismatch.
Type type_of(ByteSpan packet);
/// Returns false for messages whose sender awaits no answer: a refusal would be taken for the answer to another
/// question.
bool is_answered(Type type) noexcept;
/// REQUIRES: type_of() did not throw.
std::uint32_t serial_of(ByteSpan packet) noexcept;
void set_serial(Bytes& packet, std::uint32_t serial) noexcept;
/// Throws protocol when the packet is too short.
void require_size(ByteSpan packet, std::size_t size);
/// Turns a `refused` into the Error it carries, and any other type than `expected` into protocol.
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

/// The memory that came with `segment`, `retain` and `retain_mine`, whose first descriptors may be others. REQUIRES:
/// the other descriptors are there.
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
/// Throws protocol if the packet has fewer than it says, or says too many.
std::vector<WantSegment> segments_wanted(ByteSpan packet);
/// Adds one to the tail of `segments`; if empty, the borrower asks for it alone.
void add_segment(Bytes& tail, const std::optional<ExportedMemory>& memory);
/// As many as were asked for. Throws protocol for another number, and for bytes that do not fit into the packet.
std::vector<std::optional<ExportedMemory>> segments_in(ByteSpan packet, std::size_t wanted);

/// The numbers of the descriptors that travel with `segment`, `retain` and `retain_mine`: the block table first, if it
/// does.
std::vector<int> descriptors(const ExportedMemory& memory, const Fd& table = Fd());

Name to_name(const std::string& public_name);
std::string to_string(const Name& name);

}  // namespace onecopy::wire
