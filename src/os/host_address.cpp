// SPDX-License-Identifier: Apache-2.0
#include "os/host_address.h"

#include <arpa/inet.h>
#include <netdb.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "core/throw_error.h"

namespace onecopy {
namespace {

/// Returns the name in front of the port; an empty one for an address, and for a text that is neither.
std::string name_in(const std::string& text) {
  const std::size_t colon = text.rfind(':');
  const std::string host = colon == std::string::npos ? "" : text.substr(0, colon);
  in_addr ipv4{};
  const bool is_address =
      host.find_first_of(":[]") != std::string::npos || ::inet_pton(AF_INET, host.c_str(), &ipv4) == 1;
  return is_address ? "" : host;
}

}  // namespace

HostAddress::HostAddress(std::string text) : text_(std::move(text)), name_(name_in(text_)) {
  if (name_.empty()) at_ = HostPort::parse(text_);
  else at_.port = HostPort::parse_port(text_);
}

std::vector<HostPort> HostAddress::resolve() const {
  if (name_.empty()) return {at_};
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  if (const int failed = ::getaddrinfo(name_.c_str(), nullptr, &hints, &found); failed != 0)
    throw_error(ErrorCode::system, "the host \"{}\" has no address: {}", name_, ::gai_strerror(failed));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, &::freeaddrinfo);
  std::vector<HostPort> all;
  for (const addrinfo* one = found; one; one = one->ai_next) {
    sockaddr_storage address{};
    std::memcpy(&address, one->ai_addr, std::min<std::size_t>(one->ai_addrlen, sizeof address));
    all.push_back({HostPort::of(address).host, at_.port});
  }
  return all;
}

}  // namespace onecopy
