// SPDX-License-Identifier: Apache-2.0
#include "support/proc_entries.h"

#include <system_error>

namespace onecopy::testing {

std::vector<std::filesystem::path> proc_entries(const std::filesystem::path& directory) {
  std::vector<std::filesystem::path> entries;
  std::error_code gone;
  for (std::filesystem::directory_iterator at(directory, gone), end; !gone && at != end; at.increment(gone))
    entries.push_back(at->path());
  return entries;
}

}  // namespace onecopy::testing
