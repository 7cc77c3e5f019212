// SPDX-License-Identifier: Apache-2.0
#include "share/owner/keeper.h"

#include <fmt/format.h>

#include "device/pinned_ranges.h"
#include "onecopy/core/error.h"

namespace onecopy {

SharedKeeper& shared_keeper(const Tensor& tensor, const char* verb) {
  BlockKeeper* const keeper = tensor.block().keeper();
  if (!keeper) [[unlikely]]
    throw Error(ErrorCode::invalid_argument,
                fmt::format("an empty tensor has no memory to {}; make one first", verb));
  if (!keeper->shareable()) [[unlikely]]
    throw Error(ErrorCode::invalid_argument,
                fmt::format("this tensor's memory belongs to another library and cannot be opened by other "
                            "processes; {} onecopy::copy(tensor.view()) instead",
                            verb));
  if (PinnedRanges::is_view(tensor.device(), tensor.data())) [[unlikely]]
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("this is {}'s view of memory of the host, and stays in this process; {} the tensor "
                    "that it is a view of",
                    tensor.device().str(), verb));
  return static_cast<SharedKeeper&>(*keeper).root();
}

}  // namespace onecopy
