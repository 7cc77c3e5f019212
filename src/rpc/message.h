// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "onecopy/channel/queue.h"
#include "onecopy/core/bytes.h"
#include "onecopy/core/error.h"
#include "transport/wire.h"

/// The messages of rpc as items of a lane, described byte by byte in docs/design/formats/rpc-message-v1.md. A tail behind
/// the body says which call it is about, so that neither side moves the body.
namespace onecopy::rpc {

enum class Form : std::uint8_t { call = 4, answer = 5, note = 6 };

/// Bits of a message's tag.
inline constexpr std::uint32_t kFormBits = 0x7f;
inline constexpr int kBodyShift = 8;  ///< eight bits: how the body is written; 0 in C++
inline constexpr std::uint32_t kBodyBits = 0xff00;
using transport::kInOrder;  ///< the next message with this bit waits for this one
inline constexpr std::uint32_t kHasContext = 0x2'0000;  ///< a CallContext lies behind the body
inline constexpr std::uint32_t kKnownTagBits = kFormBits | kBodyBits | kInOrder | kHasContext;

/// A number that is unique in the group: the number of a member, and a number that this member has chosen.
struct GroupId {
  std::uint64_t number = 0;
  std::uint32_t member = 0;
  std::uint32_t reserved = 0;

  bool operator==(const GroupId&) const = default;
};

/// The context of a call, which the call and its answer carry. Other messages carry none.
struct CallContext {
  enum Part : std::uint32_t { kAutograd = 1, kRecord = 2, kTrace = 4, kResult = 8 };

  std::uint32_t parts = 0;  ///< bits of Part: the fields that are used
  /// The number of bytes of marks before the context: a bit for each tensor says whether the record contains the tensor.
  std::uint32_t mark_bytes = 0;
  std::uint64_t autograd = 0;  ///< the id of a context of distributed autograd
  std::uint64_t record = 0;  ///< the number of the sender's record of the message's tensors in that context
  GroupId trace{};           ///< the first of the nested calls that led to this one
  GroupId result{};          ///< the reference that the call makes to its result

  bool has(Part part) const noexcept { return (parts & part) != 0; }
  bool operator==(const CallContext&) const = default;
};
static_assert(sizeof(CallContext) == 56);

/// The tail of a call. `function` is the sender's number for a name; the tail includes the name if the receiver may not
/// know the number.
struct CallTail {
  std::uint64_t call = 0;     ///< 0: no answer is wanted
  std::int64_t deadline = 0;  ///< nanoseconds of CLOCK_MONOTONIC; 0: none
  std::uint32_t function = 0;
  std::uint16_t name_bytes = 0;
  std::uint16_t reserved = 0;
};
static_assert(sizeof(CallTail) == 24);

enum class Status : std::uint32_t { value = 0, failure = 1 };
struct AnswerTail {
  std::uint64_t call = 0;
  Status status = Status::value;
  std::uint32_t reserved = 0;
};
static_assert(sizeof(AnswerTail) == 16);

enum class NoteKind : std::uint32_t {
  user = 0,
  greeting = 1,
  farewell = 2,
  refusal = 3,  ///< the answer to a greeting of a process whose number or name is another member's
};
struct NoteTail {
  NoteKind kind = NoteKind::user;
  std::uint32_t reserved = 0;
};
static_assert(sizeof(NoteTail) == 8);

/// The max number of functions that a member may name. Each costs the receiver memory, and the sender is another
/// process.
inline constexpr std::uint32_t kMaxFunctions = 1 << 16;
inline constexpr std::size_t kMaxNameBytes = 1024;

inline std::uint32_t body_form(std::uint32_t tag) noexcept { return (tag & kBodyBits) >> kBodyShift; }

/// Returns the tag of a message whose body has the form `body`. Ignores the other bits of `body`.
inline std::uint32_t tag_of(Form form, std::uint32_t body, bool is_in_order) noexcept {
  return static_cast<std::uint32_t>(form) | (body & (kBodyBits | kHasContext)) |
         (is_in_order ? kInOrder : 0);
}

/// Appends a tail to the data.
template <class Tail>
void append_tail(Bytes& data, const Tail& tail) {
  const std::size_t size = data.size();
  data.resize(size + sizeof tail);
  write_value(data.data() + size, tail);
}
void append_name(Bytes& data, std::string_view name);

/// Returns the form of the message with this tag. Throws bad_handle for a tag that no member writes.
Form form_of(std::uint32_t tag);
/// Removes the tail from the data and returns it. Throws bad_handle if there is none.
template <class Tail>
Tail take_tail(Bytes& data);
/// Appends the context behind the body and its marks, and sets its bit in the tag, unless the context has no parts.
void append_context(Message& message, const CallContext& context);
/// Removes the context and returns it; an empty one if the tag says that there is none. Throws bad_handle.
CallContext take_context(Message& message);
/// Removes the marks of that context from the data and returns them. Throws bad_handle.
Bytes take_marks(Bytes& data, const CallContext& context);
/// Removes the name of that tail's call from the data and returns it. Throws bad_handle.
std::string take_name(Bytes& data, const CallTail& tail);

[[noreturn]] void refuse_message(const char* problem);

/// The body's form of a failure that includes a class of Python.
inline constexpr std::uint32_t kFailureWithClass = 6;
/// Returns an answer that reports a failure: its body is the code of an error and a text.
Message encode_failure(ErrorCode code, const std::string& text);
/// Appends the bytes of a class, which programs in C++ ignore.
void append_class(Message& failure, ByteSpan bytes);
/// Removes the bytes of the class and returns them. Throws bad_handle.
Bytes take_class(Message& failure);
/// Throws the failure again, as an Error.
[[noreturn]] void throw_failure(Message answer);

template <class Tail>
Tail take_tail(Bytes& data) {
  if (data.size() < sizeof(Tail)) refuse_message("is too short");
  const Tail tail = load<Tail>(data.data() + data.size() - sizeof(Tail));
  data.resize(data.size() - sizeof(Tail));
  return tail;
}

}  // namespace onecopy::rpc
