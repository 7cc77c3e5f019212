// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "onecopy/channel/queue.h"
#include "onecopy/core/bytes.h"
#include "onecopy/core/error.h"

/// The messages of rpc as items of a lane, described byte by byte in docs/design/formats/rpc-message-v1.md. A tail behind
/// the body says which call it is about, so that neither side moves the body.
namespace onecopy::rpc {

enum class Form : std::uint8_t { call = 4, answer = 5, note = 6 };

/// Bits of a message's tag.
inline constexpr std::uint32_t kFormBits = 0x7f;
inline constexpr int kBodyShift = 8;  ///< eight bits: how the body is written; 0 in C++
inline constexpr std::uint32_t kBodyBits = 0xff00;
inline constexpr std::uint32_t kInOrder = 0x1'0000;  ///< handled before the next such message of its lane
inline constexpr std::uint32_t kHasContext = 0x2'0000;  ///< a CallContext lies behind the body
inline constexpr std::uint32_t kKnownTagBits = kFormBits | kBodyBits | kInOrder | kHasContext;

/// A number that a member has given, unique in the group with the number of the member.
struct GroupId {
  std::uint64_t number = 0;
  std::uint32_t member = 0;
  std::uint32_t reserved = 0;

  bool operator==(const GroupId&) const = default;
};

/// The surroundings of a call, which travel along with the call and with its answer. Other messages carry none.
struct CallContext {
  enum Part : std::uint32_t { kAutograd = 1, kRecord = 2, kTrace = 4, kResult = 8 };

  std::uint32_t parts = 0;  ///< which of the following are there
  std::uint32_t mark_bytes =
      0;  ///< bytes in front of the context: a bit for each tensor says if it is in the record
  std::uint64_t autograd = 0;  ///< the id of a context of distributed autograd
  std::uint64_t record =
      0;  ///< the number under which the sender has recorded tensors of the message there
  GroupId
      trace{};  ///< the first of the calls that led to this one: (the caller's number of it, the caller)
  GroupId result{};  ///< the reference that the call makes to its result

  bool has(Part part) const noexcept { return (parts & part) != 0; }
  bool operator==(const CallContext&) const = default;
};
static_assert(sizeof(CallContext) == 56);

/// The tail of a call. `function` is the sender's number for a name; the name itself is there when the receiver may not know it.
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

enum class NoteKind : std::uint32_t { user = 0, greeting = 1, farewell = 2 };
struct NoteTail {
  NoteKind kind = NoteKind::user;
  std::uint32_t reserved = 0;
};
static_assert(sizeof(NoteTail) == 8);

/// A number for a function costs memory at the receiver, which another process decides about.
inline constexpr std::uint32_t kMaxFunctions = 1 << 16;
inline constexpr std::size_t kMaxNameBytes = 1024;

inline std::uint32_t body_form(std::uint32_t tag) noexcept { return (tag & kBodyBits) >> kBodyShift; }

/// The tag of a message whose body is written as `body` says; its other bits do not matter.
inline std::uint32_t tag_of(Form form, std::uint32_t body, bool is_in_order) noexcept {
  return static_cast<std::uint32_t>(form) | (body & (kBodyBits | kHasContext)) |
         (is_in_order ? kInOrder : 0);
}

/// Appends a tail.
template <class Tail>
void append_tail(Bytes& data, const Tail& tail) {
  const std::size_t size = data.size();
  data.resize(size + sizeof tail);
  write_value(data.data() + size, tail);
}
void append_name(Bytes& data, std::string_view name);

/// The message's form. Throws bad_handle for a tag that no member writes.
Form form_of(std::uint32_t tag);
/// Takes the tail off. Throws bad_handle if there is none.
template <class Tail>
Tail take_tail(Bytes& data);
/// Appends the context behind the body and its marks, and sets its bit in the tag, unless the context has no parts.
void append_context(Message& message, const CallContext& context);
/// Takes the context off, where the tag says that there is one. Throws bad_handle.
CallContext take_context(Message& message);
/// Takes the marks off that a context says are there. Throws bad_handle.
Bytes take_marks(Bytes& data, const CallContext& context);
/// Takes the name off that a call's tail says is there. Throws bad_handle.
std::string take_name(Bytes& data, const CallTail& tail);

[[noreturn]] void refuse_message(const char* problem);

/// The form of the body of a failure that has a class of Python.
inline constexpr std::uint32_t kFailureWithClass = 6;
/// Makes the body of an answer of a failure: the code of an error, and the text.
Message encode_failure(ErrorCode code, const std::string& text);
/// Appends the bytes of a class, which programs in C++ pass over.
void append_class(Message& failure, ByteSpan bytes);
/// Takes the bytes of the class off. Throws bad_handle.
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
