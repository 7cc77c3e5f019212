// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/resource.h>

#include <string>

namespace onecopy::testing {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif
#else
inline constexpr bool kSanitized = false;
#endif

/// Lowers the soft limit of this process until it is lifted or destroyed.
class Limit {
 public:
  Limit(int resource, rlim_t value);
  Limit(const Limit&) = delete;
  Limit& operator=(const Limit&) = delete;
  ~Limit() { lift(); }
  void lift() noexcept;

 private:
  int resource_;
  rlimit before_;
};

/// RLIMIT_NOFILE so that exactly `count` more descriptors can be opened now.
rlim_t descriptors_for(int count);
/// RLIMIT_AS so that `bytes` more can be mapped now.
rlim_t address_space_for(std::size_t bytes);

/// For children that have one thread: a mount namespace of their own, with a user namespace around it where they
/// are not root's. Empty when all went well, else why not.
std::string try_private_mounts();
std::string try_mount_tmpfs(const std::string& directory, const std::string& options);

}  // namespace onecopy::testing
