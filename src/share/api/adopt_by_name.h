// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>

#include "onecopy/memory/tensor.h"
#include "os/fd.h"

namespace onecopy {

/// As adopt_file(), for a file that has a name, and without a descriptor that stays open: the file gets a second name
/// beside the segment files of this process, and is lengthened to whole pages. The second name goes with the last
/// process that has the segment mapped, whatever becomes of the first one.
/// Nothing for a file that cannot have such a name: it has none any more, belongs to another user, or lies on another
/// file system than shared_directory(). Throws as adopt_file(). REQUIRES: `file` is the caller's own open of it.
std::optional<Tensor> try_adopt_by_name(const Fd& file, std::size_t size, std::size_t offset);

}  // namespace onecopy
