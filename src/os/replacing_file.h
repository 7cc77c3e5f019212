// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "onecopy/core/bytes.h"
#include "os/fd.h"

namespace onecopy {

/// A new file beside `path` that takes its place as a whole: readers find the old content or the new one. The new file is
/// removed if it does not take the place. Each writer has its own, because several may write to one path.
///
/// Thread safety: none.
class ReplacingFile {
 public:
  /// Throws what open_file() throws.
  explicit ReplacingFile(std::string path, unsigned mode = 0600);
  ~ReplacingFile();
  ReplacingFile& operator=(ReplacingFile&&) = delete;

  const Fd& fd() const noexcept { return fd_; }
  /// Lets the new file take the place. `on_disk`: the content then survives a crash of the machine.
  void finish(bool on_disk = false);

 private:
  std::string path_;
  std::string temporary_;
  Fd fd_;
  bool done_ = false;
};

/// Replaces a file by one with this content, as ReplacingFile does. Throws out_of_memory if the file system is full, and system.
void replace_file(const std::string& path, ByteSpan content, bool on_disk = false);
/// Renames a file to `path`, in place of whatever is there; removes the file and throws if that fails.
void rename_over(const std::string& fresh, const std::string& path);

}  // namespace onecopy
