// SPDX-License-Identifier: Apache-2.0
// What a broken or foreign peer may send to a broker: packets and descriptions in JSON.
#include "fuzz_input.h"
#include "share/format/info_text.h"
#include "share/format/wire.h"

namespace onecopy::fuzz {
namespace {

constexpr auto kRefusals = {ErrorCode::protocol, ErrorCode::version_mismatch};

/// Checks that a message that was read and written has the same bytes after another round.
template <class Message>
void check_message(wire::Type type, ByteSpan packet) {
  if (type != wire::Type{static_cast<std::uint32_t>(Message::kType)}) return;
  const auto message = accepted({ErrorCode::protocol}, [&] { return wire::unpack<Message>(packet); });
  if (!message) return;
  const Bytes written = wire::pack(*message);
  require(wire::pack(wire::unpack<Message>(written)) == written,
          "a message survives being written and read");
}

template <class... Messages>
void check_one_of(wire::Type type, ByteSpan packet) {
  (check_message<Messages>(type, packet), ...);
}

void check_packet(ByteSpan packet) {
  const auto type = accepted(kRefusals, [&] { return wire::type_of(packet); });
  if (!type) return;
  try {
    wire::expect(packet, wire::Type::welcome);
    require(*type == wire::Type::welcome, "only what is expected passes");
  } catch (const Error& error) {
    require(std::string_view(name(error.code())) != "unknown",
            "an error that was sent has a code that exists");
    require(*type != wire::Type::welcome, "what is expected passes");
  }
  using namespace wire;
  check_one_of<peer::Hello, peer::Challenge, peer::Prove, Welcome, peer::Refused, WantSegment, WantForeign,
               Segment, AskLimbo, Limbo, Acknowledge, AdoptChild, ChildHello, Retain, Retained, JoinQueue,
               LeaveQueue, RetainMine, Retire, WantInfo, Info, Joined, WantTimeline, wire::Timeline, Forget,
               WantRest, Rest, wire::Release, WantSegments, Segments>(*type, packet);
}

void check_description(const std::string& text) {
  const auto info = accepted({ErrorCode::protocol}, [&] { return owner_from_json(text); });
  if (!info) return;
  const std::string once = to_json(*info);
  require(to_json(owner_from_json(once)) == once, "a description survives being sent on");
}

}  // namespace
}  // namespace onecopy::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace onecopy;
  const ByteSpan input = fuzz::span_of(data, size);
  fuzz::check_packet(input);
  Bytes packet(input.begin(), input.end());
  if (packet.size() >= 4) write_value(packet.data(), wire::kProtocol.version);
  fuzz::check_packet(packet);
  fuzz::check_description(std::string(reinterpret_cast<const char*>(data), size));
  return 0;
}
