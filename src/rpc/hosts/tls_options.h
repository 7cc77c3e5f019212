// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <string>

#include "onecopy/core/bytes.h"

namespace onecopy::rpc {

/// The options for connections between this process and members on other hosts.
struct TlsOptions {
  Bytes key;               ///< the group's secret; without one a member listens on loopback alone
  std::string listen;      ///< the address to listen on, e.g. "10.0.0.1:0"; empty for none
  bool is_forced = false;  ///< members of this host are reached this way, too
  std::string fabric;      ///< messages go over this fabric, unencrypted; empty for TLS
  /// The time for which the network may be cut, or a member may take nothing, before the connection ends.
  std::chrono::milliseconds peer_timeout{30'000};

  /// Returns the options that ONECOPY_RPC_KEY, ONECOPY_RPC_LISTEN, ONECOPY_RPC_LINK and ONECOPY_RPC_PEER_TIMEOUT give.
  /// `transport`: "tls" or "ucx"; empty for the value of ONECOPY_RPC_FABRIC. Throws invalid_argument.
  static TlsOptions of_environment(const std::string& transport = {});
};

}  // namespace onecopy::rpc
