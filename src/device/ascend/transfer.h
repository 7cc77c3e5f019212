// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/backend.h"

namespace onecopy::ascend {

/// As Backend::copy() says. Between the host and another card's memory that was opened here it goes through
/// memory of the own card, and between cards without a path through the host: then it has been done at return.
void enqueue(const Transfer& transfer, Stream stream);
/// Throws unsupported for a stream that is being captured, whose capture goes on.
void synchronize(int ordinal, Stream stream);
/// False as well where the runtime does not know of captures.
bool is_captured(int ordinal, Stream stream);
std::optional<Error> failure(int ordinal);

}  // namespace onecopy::ascend
