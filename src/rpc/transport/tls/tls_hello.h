// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "onecopy/core/bytes.h"
#include "rpc/address.h"

namespace onecopy::rpc {

/// Returns the first frame of a client: the member that it wants to reach, and its own address.
Bytes encode_hello(const Address& to, const Address& own);
/// Returns the sender's address. Throws protocol when the sender wants another process than `own`.
Address decode_hello(ByteSpan hello, const Address& own);

}  // namespace onecopy::rpc
