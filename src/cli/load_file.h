// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "onecopy/share/load.h"

namespace onecopy::cli {

/// The tensors of a file, and the time of loading.
struct LoadedFile {
  std::vector<NamedTensor> tensors;
  /// False for .npy: one tensor without a name.
  bool is_bundle = true;
  std::uint64_t bytes = 0;
  std::chrono::nanoseconds duration{};
};

/// "130.2 ms, 1.9 GiB/s"; only the time where a rate means nothing.
std::string format_speed(const LoadedFile& loaded);

/// A safetensors or npy file, told apart by its first bytes, in shared memory.
LoadedFile load_file(const std::string& path, const LoadProgress& progress);

}  // namespace onecopy::cli
