// SPDX-License-Identifier: Apache-2.0
#include "rpc/hosts/tls_options.h"

#include <charconv>
#include <cmath>
#include <cstdlib>
#include <span>

#include "core/throw_error.h"
#include "os/host_port.h"
#include "transport/fabric.h"
#include "transport/tls/tls_context.h"

namespace onecopy::rpc {
namespace {

std::string environment(const char* name) {
  const char* const text = std::getenv(name);
  return text ? text : "";
}

/// Returns the address to listen on if ONECOPY_RPC_LISTEN names none: an address that other hosts reach for a process
/// with a key, and loopback for a process without a key that is told to listen.
std::string usual_listen(bool has_key, bool is_forced) {
  if (!has_key && !is_forced) return "";
  const auto host = has_key ? first_host_address() : std::nullopt;
  return host.value_or(HostPort::of_ipv4(INADDR_LOOPBACK, 0)).str();
}

Bytes key_of(const std::string& text) {
  if (!text.empty() && text.size() < transport::TlsContext::kMinSecretBytes)
    throw_error(ErrorCode::invalid_argument,
                "ONECOPY_RPC_KEY has {} bytes, and needs at least {}: `onecopy key` prints a new one",
                text.size(), transport::TlsContext::kMinSecretBytes);
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

bool is_forced_by(const std::string& link) {
  if (!link.empty() && link != "auto" && link != "tcp")
    throw_error(ErrorCode::invalid_argument, "ONECOPY_RPC_LINK must be auto or tcp, not \"{}\"", link);
  return link == "tcp";
}

void check_loopback(const TlsOptions& options) {
  if (!options.key.empty() || options.listen.empty()) return;
  const HostPort at = HostPort::parse(options.listen);
  if (at.is_loopback()) return;
  throw_error(ErrorCode::invalid_argument,
              "without a key rpc listens on 127.0.0.1 alone, and not on {}: set "
              "ONECOPY_RPC_KEY to one secret of "
              "the group in all members (`onecopy key` prints a new one)",
              at.str());
}

std::chrono::milliseconds peer_timeout_of(const std::string& text) {
  constexpr double kMinSeconds = 1, kMaxSeconds = 86'400;
  if (text.empty()) return TlsOptions{}.peer_timeout;
  double seconds = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seconds);
  if (error != std::errc{} || end != text.data() + text.size() ||
      !(seconds >= kMinSeconds && seconds <= kMaxSeconds))
    throw_error(ErrorCode::invalid_argument,
                "ONECOPY_RPC_PEER_TIMEOUT must be a number of seconds from {} to {}, not \"{}\"",
                kMinSeconds, kMaxSeconds, text);
  return std::chrono::milliseconds(std::llround(seconds * 1000));
}

}  // namespace

TlsOptions TlsOptions::of_environment(const std::string& transport) {
  TlsOptions options;
  options.key = key_of(environment("ONECOPY_RPC_KEY"));
  options.is_forced = is_forced_by(environment("ONECOPY_RPC_LINK"));
  options.fabric = transport.empty()
                       ? transport::fabric_by("ONECOPY_RPC_FABRIC", environment("ONECOPY_RPC_FABRIC"))
                       : transport::fabric_by("the transport between hosts", transport);
  options.listen = environment("ONECOPY_RPC_LISTEN");
  if (options.listen.empty()) options.listen = usual_listen(!options.key.empty(), options.is_forced);
  options.peer_timeout = peer_timeout_of(environment("ONECOPY_RPC_PEER_TIMEOUT"));
  check_loopback(options);
  return options;
}

}  // namespace onecopy::rpc
