// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "onecopy/core/bytes.h"

namespace onecopy::rpc {

/// The part of an address that members on other hosts read, as "10.0.0.1:4711/tls/3f2a". Thread safety: as a value.
struct Endpoint {
  std::string at;         ///< the address at which the member listens
  std::string fabric;     ///< "tls" or "ucx"
  std::string key_check;  ///< check_of_key()

  /// Throws bad_handle.
  static Endpoint parse(const std::string& text);
  std::string str() const { return at + "/" + fabric + "/" + key_check; }
};

/// Returns a number of 16 bits of the key. It shows nearly each difference of two keys, and too little to guess a key by.
std::string check_of_key(ByteSpan key);

}  // namespace onecopy::rpc
