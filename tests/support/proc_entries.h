// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <vector>

namespace onecopy::testing {

/// Returns the entries of a directory of /proc, which another process's death may empty at any moment: those seen until
/// then. (`for (entry : directory_iterator(path, error))` throws in that case, since only the constructor uses `error`.)
std::vector<std::filesystem::path> proc_entries(const std::filesystem::path& directory);

}  // namespace onecopy::testing
