// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "onecopy/share/load.h"

namespace onecopy::cli {

/// A directory of this process under TMPDIR or /tmp, removed with its content by the destructor. Thread safety: none.
/// Objects cannot be copied or moved.
class TemporaryDirectory {
 public:
  TemporaryDirectory();
  ~TemporaryDirectory();
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;

  const std::string& path() const noexcept { return path_; }
  void remove() noexcept;

 private:
  std::string path_;
};

/// Writes a safetensors file of 256 MiB that resembles a small language model: seven element types, with numbers
/// between -1 and 1 in the floating-point ones.
void write_sample_file(const std::string& path, const LoadProgress& progress);

}  // namespace onecopy::cli
