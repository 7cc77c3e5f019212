// SPDX-License-Identifier: Apache-2.0
#include "rpc/message.h"
#include "core/throw_error.h"

namespace onecopy::rpc {

void refuse_message(const char* problem) {
  throw_error(ErrorCode::bad_handle, "a message of another member {}", problem);
}

void append_name(Bytes& data, std::string_view name) {
  const auto* begin = reinterpret_cast<const std::byte*>(name.data());
  data.insert(data.end(), begin, begin + name.size());
}

Form form_of(std::uint32_t tag) {
  const std::uint32_t form = tag & kFormBits;
  if ((tag & ~kKnownTagBits) != 0 || form < 4 || form > 6) refuse_message("has an unknown tag");
  return static_cast<Form>(form);
}

void append_context(Message& message, const CallContext& context) {
  if (context.parts == 0) return;
  append_tail(message.data, context);
  message.tag |= kHasContext;
}

CallContext take_context(Message& message) {
  if ((message.tag & kHasContext) == 0) return {};
  message.tag &= ~kHasContext;
  return take_tail<CallContext>(message.data);
}

Message encode_failure(ErrorCode code, const std::string& text) {
  Message message;
  message.data.push_back(static_cast<std::byte>(code));
  append_name(message.data, text);
  return message;
}

void append_class(Message& failure, ByteSpan bytes) {
  failure.data.insert(failure.data.end(), bytes.begin(), bytes.end());
  append_tail(failure.data, static_cast<std::uint32_t>(bytes.size()));
  failure.tag = kFailureWithClass << kBodyShift;
}

Bytes take_class(Message& failure) {
  const auto size = take_tail<std::uint32_t>(failure.data);
  if (size >= failure.data.size()) refuse_message("has a failure that is cut off");
  const auto begin = failure.data.end() - static_cast<std::ptrdiff_t>(size);
  Bytes bytes(begin, failure.data.end());
  failure.data.erase(begin, failure.data.end());
  return bytes;
}

void throw_failure(Message answer) {
  if (body_form(answer.tag) == kFailureWithClass) take_class(answer);
  else if (body_form(answer.tag) != 0) refuse_message("has a failure of an unknown form");
  if (answer.data.empty()) refuse_message("has a failure without a code");
  auto code = static_cast<ErrorCode>(answer.data.front());
  if (code > kLastErrorCode) code = ErrorCode::remote_error;
  throw Error(code,
              std::string(reinterpret_cast<const char*>(answer.data.data() + 1), answer.data.size() - 1));
}

Bytes take_marks(Bytes& data, const CallContext& context) {
  if (context.mark_bytes > data.size()) refuse_message("is cut off in its marks");
  const auto begin = data.end() - static_cast<std::ptrdiff_t>(context.mark_bytes);
  Bytes marks(begin, data.end());
  data.erase(begin, data.end());
  return marks;
}

std::string take_name(Bytes& data, const CallTail& tail) {
  if (tail.name_bytes > kMaxNameBytes) refuse_message("names a function at too great length");
  if (tail.name_bytes > data.size()) refuse_message("is cut off in a function's name");
  const std::size_t left = data.size() - tail.name_bytes;
  std::string name(reinterpret_cast<const char*>(data.data() + left), tail.name_bytes);
  data.resize(left);
  return name;
}

}  // namespace onecopy::rpc
