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

/// Lowers a soft limit of this process until it is lifted or the object is destroyed.
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

/// Returns the RLIMIT_NOFILE with which exactly `count` more descriptors can be opened.
rlim_t descriptors_for(int count);
/// Returns the RLIMIT_AS with which `bytes` more can be mapped.
rlim_t address_space_for(std::size_t bytes);

/// Moves a child with one thread into a new mount namespace, and into a new user namespace if it does not run as root.
/// Returns an empty text, or the reason of the failure.
std::string try_private_mounts();
std::string try_mount_tmpfs(const std::string& directory, const std::string& options);

}  // namespace onecopy::testing
