// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <string>

#include "os/fd.h"
#include "support/eventually.h"

namespace onecopy::testing {

/// Captures this process's output on stderr instead of showing it. REQUIRES: this process is a Child.
class StderrText {
 public:
  StderrText() : file_(::memfd_create("stderr", MFD_CLOEXEC)) { ::dup2(file_.get(), STDERR_FILENO); }

  std::string read() const {
    std::string text(std::size_t{1} << 20, '\0');
    const ssize_t size = ::pread(file_.get(), text.data(), text.size(), 0);
    text.resize(size < 0 ? 0 : static_cast<std::size_t>(size));
    return text;
  }
  /// Waits until the output contains a text. Returns false at the deadline.
  bool says(const std::string& words) const {
    return eventually([&] { return read().find(words) != std::string::npos; });
  }

 private:
  Fd file_;
};

}  // namespace onecopy::testing
