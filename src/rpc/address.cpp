// SPDX-License-Identifier: Apache-2.0
#include "rpc/address.h"

#include <algorithm>

#include "core/throw_error.h"
#include "os/hmac.h"
#include "os/host_port.h"
#include "os/process.h"
#include "rpc/message.h"

namespace onecopy::rpc {
namespace {

constexpr std::uint32_t kMagic = 0x4d52434f;  // "OCRM"
constexpr std::uint16_t kVersion = 3;
constexpr std::size_t kMaxEndpoint = 64;

struct Head {
  std::uint32_t magic = kMagic;
  std::uint16_t version = kVersion;
  std::uint16_t name_bytes = 0;
  std::uint32_t number = 0;
  std::int32_t pid = 0;
  std::uint64_t start_time = 0;
  std::uint32_t door_bytes = 0;
  std::uint32_t bell_bytes = 0;
  std::uint64_t host = 0;
  std::uint64_t endpoint_bytes = 0;
};
static_assert(sizeof(Head) == 48);

[[noreturn]] void refuse_address(const char* problem) {
  throw_error(ErrorCode::bad_handle, "this address of a member of a group {}", problem);
}

void append(Bytes& out, ByteSpan bytes) { out.insert(out.end(), bytes.begin(), bytes.end()); }

ByteSpan cut(ByteSpan& rest, std::size_t size) {
  if (size > rest.size()) refuse_address("is cut off");
  const ByteSpan part = rest.first(size);
  rest = rest.subspan(size);
  return part;
}

}  // namespace

Bytes Address::to_bytes() const {
  const Bytes door_handle = door.to_bytes(), bell_handle = bell.to_bytes();
  Head head;
  head.name_bytes = static_cast<std::uint16_t>(name.size());
  head.number = number;
  head.pid = pid;
  head.start_time = start_time;
  head.door_bytes = static_cast<std::uint32_t>(door_handle.size());
  head.bell_bytes = static_cast<std::uint32_t>(bell_handle.size());
  head.host = host;
  head.endpoint_bytes = endpoint.size();
  Bytes out(sizeof head);
  write_value(out.data(), head);
  append(out, std::as_bytes(std::span(name)));
  append(out, door_handle);
  append(out, bell_handle);
  append(out, std::as_bytes(std::span(endpoint)));
  return out;
}

Address Address::from_bytes(ByteSpan bytes) {
  ByteSpan rest = bytes;
  const Head head = load<Head>(cut(rest, sizeof(Head)).data());
  if (head.magic != kMagic) refuse_address("does not begin with \"OCRM\"");
  if (head.version != kVersion)
    throw_error(ErrorCode::version_mismatch,
                "this address of a member of a group has version {}, this program reads version {}",
                head.version, kVersion);
  Address address;
  const ByteSpan name = cut(rest, head.name_bytes);
  address.name.assign(reinterpret_cast<const char*>(name.data()), name.size());
  address.number = head.number;
  address.pid = head.pid;
  address.start_time = head.start_time;
  address.door = Handle::from_bytes(cut(rest, head.door_bytes));
  address.bell = Handle::from_bytes(cut(rest, head.bell_bytes));
  address.host = head.host;
  if (head.endpoint_bytes > kMaxEndpoint) refuse_address("has too long an endpoint");
  const ByteSpan endpoint = cut(rest, head.endpoint_bytes);
  address.endpoint.assign(reinterpret_cast<const char*>(endpoint.data()), endpoint.size());
  if (!rest.empty()) refuse_address("is followed by something else");
  if (!address.door.fields().is_queue()) refuse_address("names something that is not a queue");
  return address;
}

std::uint64_t this_host() {
  const auto boot = boot_id();
  std::array<std::uint64_t, 2> namespaces{network_namespace(), pid_namespace()};
  Bytes all;
  append(all, std::as_bytes(std::span(boot)));
  append(all, std::as_bytes(std::span(namespaces)));
  const Digest digest = sha256(all);
  return load<std::uint64_t>(std::as_bytes(std::span(digest)).data());
}

Bytes encode_greeting(const Address& from, const Handle& lane) {
  const Bytes address = from.to_bytes(), handle = lane.to_bytes();
  Bytes out(sizeof(std::uint32_t));
  write_value(out.data(), static_cast<std::uint32_t>(address.size()));
  append(out, address);
  append(out, handle);
  return out;
}

std::pair<Address, Handle> decode_greeting(ByteSpan bytes) {
  ByteSpan rest = bytes;
  const auto size = load<std::uint32_t>(cut(rest, sizeof(std::uint32_t)).data());
  Address address = Address::from_bytes(cut(rest, size));
  Handle lane = Handle::from_bytes(rest);
  if (!lane.fields().is_queue()) refuse_address("comes with a lane that is not a queue");
  return {std::move(address), std::move(lane)};
}

}  // namespace onecopy::rpc
