// SPDX-License-Identifier: Apache-2.0
// Messages of rpc, taken apart alone: tags, tails, names, addresses, greetings, failures. The input is a tag and data.
#include <algorithm>

#include "fuzz_input.h"
#include "rpc/address.h"
#include "rpc/message.h"

namespace onecopy::fuzz {
namespace {

using namespace rpc;

template <class Tail>
void check_tail(const Bytes& data) {
  Bytes left = data;
  const auto tail = accepted({ErrorCode::bad_handle}, [&] { return take_tail<Tail>(left); });
  require(tail.has_value() == (data.size() >= sizeof(Tail)), "a tail is there or the message is too short");
  if (!tail) return require(left == data, "a refused message stays as it was");
  append_tail(left, *tail);
  require(left == data, "a tail survives being taken and appended");
}

void check_name(const Bytes& data) {
  Bytes left = data;
  if (left.size() < sizeof(CallTail)) return;
  const CallTail tail = take_tail<CallTail>(left);
  const Bytes before = left;
  const auto name = accepted({ErrorCode::bad_handle}, [&] { return take_name(left, tail); });
  if (!name) return require(left == before, "a refused name leaves the body alone");
  require(name->size() == tail.name_bytes && name->size() <= kMaxNameBytes, "a name has its length");
  append_name(left, *name);
  require(left == before, "a name survives being taken and appended");
}

void check_tag(std::uint32_t tag) {
  const auto form = accepted({ErrorCode::bad_handle}, [&] { return form_of(tag); });
  if (!form) return;
  require(tag_of(*form, tag, (tag & kInOrder) != 0) == tag, "a tag that is known is one that is written");
}

constexpr auto kHandleRefusals = {ErrorCode::bad_handle, ErrorCode::version_mismatch, ErrorCode::other_boot,
                                  ErrorCode::other_user};

void check_address(ByteSpan bytes) {
  const auto address = accepted(kHandleRefusals, [&] { return Address::from_bytes(bytes); });
  if (!address) return;
  const Bytes again = address->to_bytes();
  require(std::equal(again.begin(), again.end(), bytes.begin(), bytes.end()),
          "an address survives being read and written");
}

void check_greeting(ByteSpan bytes) {
  const auto greeting = accepted(kHandleRefusals, [&] { return decode_greeting(bytes); });
  if (!greeting) return;
  const Bytes again = encode_greeting(greeting->first, greeting->second);
  require(std::equal(again.begin(), again.end(), bytes.begin(), bytes.end()),
          "a greeting survives being read and written");
}

void check_failure(std::uint32_t tag, const Bytes& data) {
  try {
    throw_failure({tag, data, {}});
  } catch (const Error& error) {
    require(error.code() <= kLastErrorCode, "a failure has a code that exists");
    if (body_form(tag) != 0 || data.empty()) return;
    const auto end = std::find(data.begin() + 1, data.end(), std::byte{0});
    const Message again = encode_failure(error.code(), error.what());
    require(std::equal(again.data.begin() + 1, again.data.end(), data.begin() + 1, end),
            "a failure has the text that was sent");
  }
}

}  // namespace
}  // namespace onecopy::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace onecopy;
  const ByteSpan input = fuzz::span_of(data, size);
  fuzz::check_address(input);
  fuzz::check_greeting(input);
  if (size < sizeof(std::uint32_t)) return 0;
  const auto tag = load<std::uint32_t>(input.data());
  const Bytes body(input.begin() + sizeof tag, input.end());
  fuzz::check_tag(tag);
  fuzz::check_tail<rpc::CallTail>(body);
  fuzz::check_tail<rpc::AnswerTail>(body);
  fuzz::check_tail<rpc::NoteTail>(body);
  fuzz::check_name(body);
  fuzz::check_failure(tag, body);
  return 0;
}
