// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "os/host_port.h"

namespace onecopy {

/// A TCP port of another host, which an address or a name gives: "10.0.0.1:7000", "[fd00::1]:7000" or "trainer:7000". Thread
/// safety: as a value.
class HostAddress {
 public:
  /// Throws invalid_argument for a text of another form.
  explicit HostAddress(std::string text);

  const std::string& str() const noexcept { return text_; }
  /// Returns the addresses, in the order in which to try them. Looks a name up at each call, because the name of a host may
  /// move to another address. Throws system if the name has no address now.
  std::vector<HostPort> resolve() const;

 private:
  std::string text_, name_;  ///< `name_`: empty if the text has an address
  HostPort at_;              ///< of a name: the port alone
};

}  // namespace onecopy
