// SPDX-License-Identifier: Apache-2.0
#include "share/format/wire.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>

namespace onecopy::wire {

Type type_of(ByteSpan packet) {
  require_size(packet, sizeof(Head));
  const Head head = load<Head>(packet.data());
  if (head.version != kVersion)
    throw Error(ErrorCode::version_mismatch,
                fmt::format("the other process speaks version {} of onecopy's protocol, this one {}; "
                            "use the same release in both",
                            head.version, kVersion));
  return head.type;
}

bool is_answered(Type type) noexcept {
  switch (type) {
    case Type::acknowledge:
    case Type::adopt_child:
    case Type::child_hello:
    case Type::leave_queue:
    case Type::forget:
    case Type::release: return false;
    default: return true;
  }
}

std::uint32_t serial_of(ByteSpan packet) noexcept { return load<Head>(packet.data()).serial; }

void set_serial(Bytes& packet, std::uint32_t serial) noexcept {
  write_value(packet.data() + offsetof(Head, serial), serial);
}

void require_size(ByteSpan packet, std::size_t size) {
  if (packet.size() < size)
    throw Error(ErrorCode::protocol,
                fmt::format("a message of {} bytes where at least {} belong", packet.size(), size));
}

void expect(ByteSpan packet, Type expected) {
  const Type type = type_of(packet);
  if (type == expected) return;
  if (type == Type::refused) {
    const ByteSpan text = tail_of<Refused>(packet);
    const ErrorCode code = body_of<Refused>(packet).code;
    if (std::string_view(name(code)) == "unknown")
      throw Error(ErrorCode::protocol, "a refusal with an error code that does not exist");
    throw Error(code, std::string(reinterpret_cast<const char*>(text.data()), text.size()));
  }
  throw Error(ErrorCode::protocol,
              fmt::format("a message of type {} where {} was expected", static_cast<std::uint32_t>(type),
                          static_cast<std::uint32_t>(expected)));
}

Bytes refuse(const Error& error) {
  const std::string_view text = error.what();
  return pack(Refused{error.code()}, std::as_bytes(std::span(text)));
}

Bytes want_segments(std::span<const WantSegment> wanted) {
  return pack(WantSegments{static_cast<std::uint32_t>(wanted.size())}, std::as_bytes(wanted));
}

std::vector<WantSegment> segments_wanted(ByteSpan packet) {
  const auto count = body_of<WantSegments>(packet).count;
  const ByteSpan tail = tail_of<WantSegments>(packet);
  if (count > kMaxAskedAtOnce || tail.size() != count * sizeof(WantSegment))
    throw Error(ErrorCode::protocol,
                fmt::format("a message that asks for {} segments in {} bytes", count, tail.size()));
  std::vector<WantSegment> wanted;
  for (std::size_t i = 0; i < count; ++i)
    wanted.push_back(load<WantSegment>(tail.data() + i * sizeof(WantSegment)));
  return wanted;
}

void add_segment(Bytes& tail, const std::optional<ExportedMemory>& memory) {
  const std::size_t described = memory ? sizeof(Segment) + memory->blob.size() : 0;
  const std::size_t at = tail.size();
  tail.resize(at + sizeof(std::uint32_t) + described);
  write_value(tail.data() + at, static_cast<std::uint32_t>(described));
  if (!memory) return;
  write_value(tail.data() + at + sizeof(std::uint32_t),
              Segment{memory->size, static_cast<std::uint8_t>(memory->kind), 0, 0, memory->device});
  std::copy(memory->blob.begin(), memory->blob.end(),
            tail.end() - static_cast<std::ptrdiff_t>(memory->blob.size()));
}

namespace {

[[noreturn]] void refuse_answer(std::size_t wanted) {
  throw Error(ErrorCode::protocol, fmt::format("an answer about {} segments does not have them", wanted));
}

/// Removes `bytes` bytes from the front and returns them.
ByteSpan take(ByteSpan& rest, std::size_t bytes, std::size_t wanted) {
  if (rest.size() < bytes) refuse_answer(wanted);
  const ByteSpan taken = rest.first(bytes);
  rest = rest.subspan(bytes);
  return taken;
}

std::optional<ExportedMemory> memory_described(ByteSpan part) {
  if (part.empty()) return {};
  require_size(part, sizeof(Segment));
  const auto body = load<Segment>(part.data());
  const ByteSpan blob = part.subspan(sizeof(Segment));
  return ExportedMemory{
      static_cast<SegmentKind>(body.kind), body.size, {}, {blob.begin(), blob.end()}, body.device};
}

}  // namespace

std::vector<std::optional<ExportedMemory>> segments_in(ByteSpan packet, std::size_t wanted) {
  ByteSpan rest = tail_of<Segments>(packet);
  if (body_of<Segments>(packet).count != wanted) refuse_answer(wanted);
  std::vector<std::optional<ExportedMemory>> segments;
  for (std::size_t i = 0; i < wanted; ++i) {
    const auto described = load<std::uint32_t>(take(rest, sizeof(std::uint32_t), wanted).data());
    segments.push_back(memory_described(take(rest, described, wanted)));
  }
  if (!rest.empty()) refuse_answer(wanted);
  return segments;
}

std::vector<int> descriptors(const ExportedMemory& memory, const Fd& table) {
  std::vector<int> numbers;
  if (table) numbers.push_back(table.get());
  for (const Fd& fd : memory.fds) numbers.push_back(fd.get());
  return numbers;
}

Name to_name(const std::string& public_name) {
  Name name{};
  std::copy_n(public_name.begin(), std::min(public_name.size(), name.size()), name.begin());
  return name;
}

std::string to_string(const Name& name) { return {name.data(), name.size()}; }

}  // namespace onecopy::wire
