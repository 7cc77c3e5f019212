// SPDX-License-Identifier: Apache-2.0
#include "rpc/transport/tls/tls_hello.h"

#include <cstring>

#include "rpc/transport/tls/parcel.h"

namespace onecopy::rpc {
namespace {

struct HelloHead {
  std::uint64_t host = 0, start_time = 0;  ///< of the process that is wanted
  std::int32_t pid = 0;
  std::uint32_t number = 0;
};
static_assert(sizeof(HelloHead) == 24);

HelloHead wanted(const Address& to) { return {to.host, to.start_time, to.pid, to.number}; }

}  // namespace

Bytes encode_hello(const Address& to, const Address& own) {
  Bytes out(sizeof(HelloHead));
  store(out.data(), wanted(to));
  const Bytes address = own.to_bytes();
  out.insert(out.end(), address.begin(), address.end());
  return out;
}

Address decode_hello(ByteSpan hello, const Address& own) {
  if (hello.size() < sizeof(HelloHead)) refuse_frame("is too short to say who sends");
  const auto head = load<HelloHead>(hello.data());
  const HelloHead right = wanted(own);
  if (std::memcmp(&head, &right, sizeof head) != 0)
    refuse_frame("was meant for another process, which listened here before");
  return Address::from_bytes(hello.subspan(sizeof head));
}

}  // namespace onecopy::rpc
