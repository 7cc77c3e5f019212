// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "onecopy/core/bytes.h"
#include "rpc/address.h"

namespace onecopy::rpc {

/// The first frame of a client: who connects, and in which session with the process that it wants to reach. Its sessions with
/// one process have rising numbers, from 1 on.
struct Hello {
  Address from;
  std::uint32_t session = 0;
};

Bytes encode_hello(const Address& to, const Hello& hello);
/// Decodes a hello. Throws protocol if the sender wants to reach another process than `own`.
Hello decode_hello(ByteSpan bytes, const Address& own);

}  // namespace onecopy::rpc
