// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "onecopy/core/api.h"
#include "onecopy/memory/tensor.h"

ONECOPY_API_BEGIN
namespace onecopy {

// The driver of a card can pin host memory. Every card of the same type then copies the memory at the speed of the
// link, and the copy does not block the caller. Each process pins its own mappings of the one memory.
//
// Memory is pinned in pieces of 64 MiB, or by whole tensors of 32 MiB and more, and stays pinned for later tensors.
// While a process has it pinned, the owner gives no page of it back to the system.
//
// After the last reference to a pinned tensor is dropped, its memory is reused only once all work is done that this
// process had given to its cards until then, in primary contexts, through any library. A program with contexts of its
// own (cuCtxCreate) must keep the tensor until its copies are done.

/// Pins the memory of the tensor. `card` is the first card that will use it; by default a card that this process uses
/// already. Throws unsupported and names what is missing: a card, a newer driver, a file system that can be pinned.
/// Throws invalid_argument for memory of other libraries or of a card, and out_of_memory beyond ONECOPY_PIN_LIMIT (half
/// of the memory).
void pin(const Tensor& tensor, std::optional<Device> card = {});
/// Ends the caller's use of the pinned memory and unpins it, unless another tensor of this process lies in the same
/// pinned piece. Waits for the card's work. REQUIRES: no thread copies the tensor during the call. Does nothing for
/// memory that is not pinned.
void unpin(const Tensor& tensor);
/// Returns a tensor of `device` on the same host memory: the card reads and writes it in place, over the link, and
/// nothing is copied. Pins the memory if necessary. The view keeps the block alive; after the last view is dropped, the
/// block is reused only once the work that the card had by then is done. unpin() leaves the block pinned while this
/// process holds it.
///
/// A view cannot be shared with other processes: share the tensor itself. Throws what pin() throws, and unsupported if
/// the card maps host memory at other addresses.
Tensor view_on(const Tensor& tensor, Device device);
/// Returns whether the tensor is a view of view_on(). Costs one load while nothing is pinned.
bool is_view(const Tensor& tensor) noexcept;
/// Returns whether onecopy has pinned all of the tensor in this process. Costs a look-up.
bool is_pinned(const Tensor& tensor);

}  // namespace onecopy
ONECOPY_API_END
