// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "onecopy/memory/tensor.h"

namespace onecopy {

// Memory of the host that the driver of a card has pinned. Every card of its kind copies it at the speed of the link,
// and no caller waits for that. Each process pins its own mappings; the memory is one nevertheless.
//
// Memory is pinned in pieces of 64 MiB, or by whole tensors of 32 MiB and more, and stays pinned for the tensors that
// come after. While a process has it pinned, its owner gives no page of it back to the system.
//
// After the last reference to a pinned tensor went, the memory is reused only once certain work is done. It is all work
// that this process had given to its cards by then, in primary contexts, through any library. With contexts of its
// own (cuCtxCreate) a program must keep the tensor until its copies are done.

/// Pins the memory that the tensor lies in. `card`: the first card to use it; by default one that this process uses
/// already. Throws unsupported with the missing part: no card, an old driver, a file system that cannot be pinned.
/// Throws invalid_argument for memory of other libraries or of a card, out_of_memory beyond ONECOPY_PIN_LIMIT (half
/// of the memory).
void pin(const Tensor& tensor, std::optional<Device> card = {});
/// Ends the caller's use of the pinned memory, and unpins it, unless this process has another tensor beside it, which
/// may be on its way to a card. Waits for the card's work. No thread may copy the tensor meanwhile. Has no effect on
/// memory that is not pinned.
void unpin(const Tensor& tensor);
/// The tensor as work of a card has it: the card reads and writes the host's memory where it is, over the link, and
/// nothing is copied. Memory that is not pinned is pinned. The view keeps the block as any tensor does; after the last
/// one, the block is used again only once the card's work of that moment is done. While this process has the block,
/// unpin() leaves it pinned.
///
/// A view stays in this process: share the tensor itself. Throws as pin() does, and unsupported if the card sees
/// memory of the host at other addresses.
Tensor view_on(const Tensor& tensor, Device device);
/// Is it memory of the host, as a card has it? Costs one load while nothing is pinned.
bool is_view(const Tensor& tensor) noexcept;
/// Is all of the tensor pinned here, by onecopy? Costs a look-up.
bool is_pinned(const Tensor& tensor);

}  // namespace onecopy
