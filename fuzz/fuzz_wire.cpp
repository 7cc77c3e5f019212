// SPDX-License-Identifier: Apache-2.0
// What a broken or foreign peer may send to a broker: packets and descriptions in JSON.
#include "fuzz_input.h"
#include "share/format/info_text.h"
#include "share/format/wire.h"

namespace onecopy::fuzz {
namespace {

constexpr auto kRefusals = {ErrorCode::protocol, ErrorCode::version_mismatch};

template <class Body>
void check_body(ByteSpan packet) {
  const auto body = accepted(kRefusals, [&] { return wire::body_of<Body>(packet); });
  const auto tail = accepted(kRefusals, [&] { return wire::tail_of<Body>(packet); });
  require(body.has_value() == tail.has_value(), "a packet has a body and a tail or neither");
  if (!body) return;
  const Bytes again = wire::pack(*body, *tail);
  require(again.size() == packet.size(), "what was unpacked packs to the same size");
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
  check_body<wire::Hello>(packet);
  check_body<wire::Challenge>(packet);
  check_body<wire::Prove>(packet);
  check_body<wire::WantForeign>(packet);
  check_body<wire::WantRest>(packet);
  check_body<wire::Segment>(packet);
  check_body<wire::Retain>(packet);
  accepted(kRefusals, [&] { return wire::segments_wanted(packet); });
  for (const std::size_t wanted : {1, 3})
    accepted(kRefusals, [&] { return wire::segments_in(packet, wanted); });
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
  if (packet.size() >= sizeof(wire::Head)) write_value(packet.data() + 4, wire::kVersion);
  fuzz::check_packet(packet);
  fuzz::check_description(std::string(reinterpret_cast<const char*>(data), size));
  return 0;
}
