// SPDX-License-Identifier: Apache-2.0
// The plain bytes of a connection to a member on another host, as a process that knows the key sends them: an inbox gives out
// whole messages, or refuses. The input goes in as it is.
#include <algorithm>

#include "fuzz_input.h"
#include "onecopy/core/error.h"
#include "os/log.h"
#include "transport/tls/tls_link.h"

namespace onecopy::fuzz {
namespace {

using namespace transport;

constexpr std::uint64_t kMaxBytes = 1 << 20;

void run(ByteSpan rest) {
  Inbox inbox(true, kMaxBytes);
  Inbox::Arrived arrived;
  while (!rest.empty()) {
    const auto room = inbox.room();
    require(!room.empty(), "there is room for the next bytes");
    const std::size_t part = std::min(room.size(), rest.size());
    std::copy_n(rest.begin(), part, room.begin());
    inbox.take(part, arrived);
    rest = rest.subspan(part);
  }
  for (const Message& message : arrived.messages)
    for (const Tensor& tensor : message.tensors)
      require(tensor.layout().extent_bytes() == 0 || tensor.data() != nullptr, "a tensor has memory");
}

}  // namespace
}  // namespace onecopy::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace onecopy;
  set_log_sink([](LogLevel, std::string_view) {});
  if (size > 16384) return 0;
  fuzz::accepted({ErrorCode::protocol}, [&] { return fuzz::run(fuzz::span_of(data, size)), true; });
  return 0;
}
