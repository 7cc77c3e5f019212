// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "store/client/client.h"

namespace onecopy::store::ferry {

/// The versions of an object in the keeper of this host.
struct LocalVersions {
  std::uint64_t current = 0;           ///< 0: there is none
  std::uint64_t newest = 0;            ///< the largest number
  std::vector<std::uint64_t> numbers;  ///< of those whose memory is here

  static LocalVersions of(Client& client, const std::string& name);
};

/// Returns the token of a version; nothing if there is no such version.
std::optional<Token> token_of(Client& client, const std::string& name, std::uint64_t number);

}  // namespace onecopy::store::ferry
