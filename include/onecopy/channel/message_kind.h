// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace onecopy {

/// Which layer a message belongs to, and so how its tag and data are to be read.
enum class MessageKind : std::uint8_t {
  user,    ///< the program's own
  python,  ///< a value of the Python package, docs/formats/python-message-v1.md
  rpc,     ///< a call or an answer, docs/formats/rpc-message-v1.md
};

}  // namespace onecopy
