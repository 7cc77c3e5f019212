// SPDX-License-Identifier: Apache-2.0
#include "rpc/hosts/host_connection.h"

#include <algorithm>
#include <chrono>

#include "rpc/message.h"

namespace onecopy::rpc {
namespace {

std::int64_t clock_ns() noexcept { return std::chrono::steady_clock::now().time_since_epoch().count(); }

/// Changes the deadline in the tail of a call.
template <class Change>
void change_deadline(Message& message, Change&& change) {
  const bool is_call = (message.tag & kFormBits) == static_cast<std::uint32_t>(Form::call);
  if (!is_call || message.data.size() < sizeof(CallTail)) return;
  std::byte* const at = message.data.data() + message.data.size() - sizeof(CallTail);
  auto tail = load<CallTail>(at);
  if (tail.deadline == 0) return;
  tail.deadline = change(tail.deadline);
  write_value(at, tail);
}

}  // namespace

Message leaving(const Message& message) {
  Message copy{message.tag, message.data, message.tensors, message.kind, message.cards};
  if ((copy.tag & kFormBits) == static_cast<std::uint32_t>(Form::note)) copy.tag |= kInOrder;
  const std::int64_t now = clock_ns();
  change_deadline(copy, [&](std::int64_t at) { return std::max<std::int64_t>(1, at - now); });
  return copy;
}

void arrive(Message& message) {
  const std::int64_t now = clock_ns();
  constexpr std::int64_t kLongest = std::int64_t{1} << 61;  // 73 years
  change_deadline(message,
                  [&](std::int64_t left) { return now + std::clamp<std::int64_t>(left, 1, kLongest); });
}

}  // namespace onecopy::rpc
