// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "onecopy/memory/tensor.h"
#include "onecopy/share/handle.h"

namespace onecopy {

/// A new tensor, row-major, uninitialised, in memory that other processes can open at no further
/// cost. `layout` must be contiguous. Throws out_of_memory with the numbers.
Tensor empty(const Layout& layout, Device device = kCpu);

/// A tensor of our own with the same elements, row-major: the way to share foreign memory.
Tensor copy(const TensorView& source);

/// Names a tensor for other processes. It must have been made by empty(), copy(), a loader, or opened
/// here: a borrowed tensor may be shared on, also after its owner's death. Costs no system call.
/// Throws invalid_argument for memory of other libraries (use copy()).
Handle share(const Tensor& tensor);

/// The tensor that a handle names, on the same memory. The first open of an owner connects to it;
/// later ones cost well under a microsecond.
/// Throws stale_handle (freed meanwhile), owner_died, other_boot, other_user, bad_secret, bad_handle,
/// out_of_descriptors, out_of_mappings; nothing is held or mapped then.
Tensor open(const Handle& handle, Access access = Access::read_write);

/// How new segments are made, in the words of torch.multiprocessing.
enum class Strategy : std::uint8_t {
  file_descriptor,  ///< anonymous memory, nothing to leak: the default
  file_system,      ///< named files in shared_directory(), for users that need names
};
void set_strategy(Strategy strategy);
Strategy strategy() noexcept;

}  // namespace onecopy
