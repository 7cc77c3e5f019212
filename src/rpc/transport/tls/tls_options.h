// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <string>

#include "onecopy/core/bytes.h"

namespace onecopy::rpc {

/// The options for reaching members on other hosts, and for being reached.
struct TlsOptions {
  Bytes key;               ///< the group's secret; without one a member listens on loopback alone
  std::string listen;      ///< "10.0.0.1:0"; empty: nowhere
  bool is_forced = false;  ///< also members of this host are called this way
  bool uses_ucx = false;   ///< messages go over UCX, unencrypted
  /// The time for which the network may be cut, or a member may take nothing, before the connection ends.
  std::chrono::milliseconds peer_timeout{30'000};

  /// Returns what `transport` says, "tls" or "ucx"; empty: what ONECOPY_RPC_FABRIC says. The rest is as ONECOPY_RPC_KEY,
  /// ONECOPY_RPC_LISTEN, ONECOPY_RPC_LINK and ONECOPY_RPC_PEER_TIMEOUT say. Throws invalid_argument.
  static TlsOptions of_environment(const std::string& transport = {});
};

}  // namespace onecopy::rpc
