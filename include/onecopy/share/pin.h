// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "onecopy/memory/tensor.h"

namespace onecopy {

// Memory of the host that the driver of a card has pinned: every card of its kind copies it at the speed of the link,
// and no caller waits for that. Each process pins for itself what it has mapped; the memory is one all the same.
//
// Memory is pinned in pieces of 64 MiB, or by whole tensors of 32 MiB and more, and stays pinned for the tensors that
// come after. While a process has it pinned, its owner gives no page of it back to the system.
//
// When the last reference to a pinned tensor goes, the memory is used again only once all work has been done that this
// process had given to its cards by then, in primary contexts, by whatever library. With contexts of its own
// (cuCtxCreate) a program keeps
// the tensor until its copies are done.

/// Pins the memory that the tensor lies in. `card`: for which first; none: one that this process uses already. Throws
/// unsupported, saying what is missing (no card, an old driver, a file system that cannot be pinned), invalid_argument
/// for memory of other libraries or of a card, out_of_memory beyond ONECOPY_PIN_LIMIT (half of the memory).
void pin(const Tensor& tensor, std::optional<Device> card = {});
/// The caller has no use for that any more. It is unpinned by a thread that nobody waits for, once no tensor beside it
/// was pinned, too. Without effect on what is not pinned.
void unpin(const Tensor& tensor);
/// Is all of the tensor pinned here, by onecopy? Costs a look-up.
bool is_pinned(const Tensor& tensor);

}  // namespace onecopy
