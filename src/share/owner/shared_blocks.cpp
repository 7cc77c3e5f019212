// SPDX-License-Identifier: Apache-2.0
#include "share/owner/shared_blocks.h"

#include <fmt/format.h>

#include "device/pinned_ranges.h"
#include "onecopy/core/error.h"

namespace onecopy {

SharedBlocks& shared_blocks(const Tensor& tensor, const char* verb) {
  BlockGroup* const group = tensor.block().group();
  if (!group) [[unlikely]]
    throw Error(ErrorCode::invalid_argument,
                fmt::format("an empty tensor has no memory to {}; make one first", verb));
  if (!group->shareable()) [[unlikely]]
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
  return as_shared(*group).root();
}

}  // namespace onecopy
