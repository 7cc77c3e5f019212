// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <string>

namespace onecopy {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#elif defined(__has_feature)
inline constexpr bool kSanitized = __has_feature(address_sanitizer) || __has_feature(thread_sanitizer);
#else
inline constexpr bool kSanitized = false;
#endif

/// A directory of this test's own, in memory, that ONECOPY_SHM_DIR names while the object lives.
class ScratchDirectory {
 public:
  ScratchDirectory() {
    std::string pattern = "/dev/shm/scratch-XXXXXX";
    if (!std::filesystem::is_directory("/dev/shm")) pattern = "/tmp/scratch-XXXXXX";
    if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("no scratch directory");
    path_ = pattern;
    ::setenv("ONECOPY_SHM_DIR", path_.c_str(), 1);
  }
  ~ScratchDirectory() {
    ::unsetenv("ONECOPY_SHM_DIR");
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ScratchDirectory(const ScratchDirectory&) = delete;
  ScratchDirectory& operator=(const ScratchDirectory&) = delete;

  const std::string& path() const { return path_; }
  std::size_t files() const {
    std::size_t count = 0;
    for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(path_)) ++count;
    return count;
  }

 private:
  std::string path_;
};

}  // namespace onecopy
