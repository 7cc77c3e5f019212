// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "interrupts.h"
#include "onecopy/share/load.h"

namespace onecopy::cli {

/// The tensors of a file, and the time that loading took.
struct LoadedFile {
  std::vector<NamedTensor> tensors;
  /// Says that the result is a bundle; false for .npy, which is one tensor without a name.
  bool is_bundle = true;
  std::uint64_t bytes = 0;
  std::chrono::nanoseconds duration{};
};

/// Returns e.g. "130.2 ms, 1.9 GiB/s", or only the time where a rate means nothing.
std::string format_speed(const LoadedFile& loaded);

/// Loads a safetensors or npy file into shared memory of the device; the format is determined by the first bytes of the
/// file. Cards take safetensors alone. Shows a progress bar with this label. Throws if the user interrupts.
LoadedFile load_file(const std::string& path, std::string label, Interrupts& interrupts,
                     Device device = kCpu);

}  // namespace onecopy::cli
