// SPDX-License-Identifier: Apache-2.0
#include "rpc/hosts/tls_hello.h"

#include <cstring>

#include "transport/tls/parcel.h"

namespace onecopy::rpc {
namespace {

/// The process that a client wants to reach, and not another one that listens at the same address later.
struct Wanted {
  std::uint64_t host = 0, start_time = 0;
  std::int32_t pid = 0;
  std::uint32_t number = 0;
};
struct HelloHead {
  Wanted wanted;
  std::uint64_t session = 0;
};
static_assert(sizeof(HelloHead) == 32);

Wanted wanted(const Address& to) { return {to.host, to.start_time, to.pid, to.number}; }

}  // namespace

Bytes encode_hello(const Address& to, const Hello& hello) {
  Bytes out(sizeof(HelloHead));
  write_value(out.data(), HelloHead{wanted(to), hello.session});
  const Bytes address = hello.from.to_bytes();
  out.insert(out.end(), address.begin(), address.end());
  return out;
}

Hello decode_hello(ByteSpan bytes, const Address& own) {
  if (bytes.size() < sizeof(HelloHead)) transport::refuse_frame("is too short to say who sends");
  const auto head = load<HelloHead>(bytes.data());
  const Wanted right = wanted(own);
  if (std::memcmp(&head.wanted, &right, sizeof right) != 0)
    transport::refuse_frame("was meant for another process, which listened here before");
  if (head.session == 0 || head.session > UINT32_MAX) transport::refuse_frame("has no number of a session");
  return {Address::from_bytes(bytes.subspan(sizeof head)), static_cast<std::uint32_t>(head.session)};
}

}  // namespace onecopy::rpc
