// SPDX-License-Identifier: Apache-2.0
#include "support/limits.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>

namespace onecopy::testing {
namespace {

std::string failed(const char* what) { return std::string(what) + ": " + std::strerror(errno); }

/// Maps the ids of the outside in a new user namespace. The kernel maps groups only after setgroups is denied.
std::string try_keep_ids(uid_t user, gid_t group) {
  const auto itself = [](auto id) { return std::to_string(id) + " " + std::to_string(id) + " 1"; };
  if (!(std::ofstream("/proc/self/setgroups") << "deny" << std::flush)) return failed("setgroups");
  if (!(std::ofstream("/proc/self/uid_map") << itself(user) << std::flush)) return failed("uid_map");
  if (!(std::ofstream("/proc/self/gid_map") << itself(group) << std::flush)) return failed("gid_map");
  return {};
}

}  // namespace

Limit::Limit(int resource, rlim_t value) : resource_(resource) {
  ::getrlimit(static_cast<__rlimit_resource_t>(resource_), &before_);
  const rlimit lower{value, before_.rlim_max};
  ::setrlimit(static_cast<__rlimit_resource_t>(resource_), &lower);
}

void Limit::lift() noexcept { ::setrlimit(static_cast<__rlimit_resource_t>(resource_), &before_); }

rlim_t descriptors_for(int count) {
  int number = 0;
  for (int free = 0;; ++number) {
    free += ::fcntl(number, F_GETFD) < 0 ? 1 : 0;
    if (free > count) return static_cast<rlim_t>(number);
  }
}

rlim_t address_space_for(std::size_t bytes) {
  std::size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)) + bytes;
}

std::string try_private_mounts() {
  const uid_t user = ::geteuid();
  const gid_t group = ::getegid();
  if (::unshare(user == 0 ? CLONE_NEWNS : CLONE_NEWUSER | CLONE_NEWNS) != 0) return failed("unshare");
  if (std::string why = user == 0 ? "" : try_keep_ids(user, group); !why.empty()) return why;
  if (::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return failed("private mounts");
  return {};
}

std::string try_mount_tmpfs(const std::string& directory, const std::string& options) {
  if (::mount("tmpfs", directory.c_str(), "tmpfs", 0, options.c_str()) != 0)
    return failed("mount of a tmpfs");
  return {};
}

}  // namespace onecopy::testing
