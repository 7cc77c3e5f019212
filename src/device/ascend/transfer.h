// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/backend.h"

namespace onecopy::ascend {

/// See Backend::copy(). A copy between the host and another card's memory that was opened here goes through memory of
/// the own card. Between cards without a path it goes through the host: then it is done at return.
void enqueue(const Transfer& transfer, Stream stream);
/// Throws unsupported for a stream that is being captured, whose capture goes on.
void synchronize(int ordinal, Stream stream);
/// Also false if the runtime does not know of captures.
bool is_captured(int ordinal, Stream stream);
std::optional<Error> failure(int ordinal);

}  // namespace onecopy::ascend
