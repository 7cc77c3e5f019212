// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "onecopy/core/api.h"

ONECOPY_API_BEGIN
namespace onecopy {

/// The layer that a message belongs to, which reads the message's tag and data.
enum class MessageKind : std::uint8_t {
  user,    ///< a message of the program's own
  python,  ///< a value of the Python package, docs/design/formats/python-message-v1.md
  rpc,     ///< a call or an answer, docs/design/formats/rpc-message-v1.md
};

}  // namespace onecopy
ONECOPY_API_END
