// SPDX-License-Identifier: Apache-2.0
#include "os/cgroup_owner.h"

#include <fmt/format.h>
#include <unistd.h>

#include <sstream>
#include <string_view>

#include "os/file.h"
#include "os/process.h"

namespace onecopy {
namespace {

constexpr std::size_t kIdLength = 64;  // of a container, in hexadecimal digits

/// Returns the first digits of a container's id in "docker-<id>.scope", "cri-containerd-<id>.scope" or "<id>".
std::string container_in(std::string_view part) {
  const auto end = part.find(".scope");
  if (end != std::string_view::npos) part = part.substr(0, end);
  if (part.size() < kIdLength) return {};
  const std::string_view id = part.substr(part.size() - kIdLength);
  if (id.find_first_not_of("0123456789abcdef") != std::string_view::npos) return {};
  return std::string(id.substr(0, 12));
}

std::string owner_in(std::string_view part, bool is_in_slurm) {
  if (const std::string id = container_in(part); !id.empty()) return "the container " + id;
  if (is_in_slurm && part.starts_with("job_")) return fmt::format("the job {} of Slurm", part.substr(4));
  if (part == "init.scope") return {};
  if (part.starts_with("session-") && part.ends_with(".scope")) return fmt::format("the login {}", part);
  if (part.ends_with(".service") || part.ends_with(".scope")) return fmt::format("the unit {}", part);
  return {};
}

/// Returns the owner in the last part of the path that names one. A unit of the store's own has none.
std::string owner_of_path(std::string_view path) {
  const bool is_in_slurm = path.find("slurm") != std::string_view::npos;
  while (!path.empty()) {
    const auto slash = path.rfind('/');
    const std::string_view part = path.substr(slash == std::string_view::npos ? 0 : slash + 1);
    if (part.starts_with("onecopy-store")) return {};
    if (std::string owner = owner_in(part, is_in_slurm); !owner.empty()) return owner;
    path = slash == std::string_view::npos ? std::string_view() : path.substr(0, slash);
  }
  return {};
}

bool is_in_container() noexcept {
  return ::access("/.dockerenv", F_OK) == 0 || ::access("/run/.containerenv", F_OK) == 0;
}

}  // namespace

std::string owner_of_cgroup(const std::string& membership) {
  std::istringstream lines(membership);
  std::string owner;
  for (std::string line; owner.empty() && std::getline(lines, line);) {
    const auto first = line.find(':');
    const auto second = line.find(':', first + 1);
    if (first != std::string::npos && second != std::string::npos)
      owner = owner_of_path(line.substr(second + 1));
  }
  return owner;
}

std::string what_ends(int pid) {
  const auto membership = try_read_text(fmt::format("/proc/{}/cgroup", number_in_proc(pid)));
  std::string owner = owner_of_cgroup(membership.value_or(""));
  return owner.empty() && is_in_container() ? "this container" : owner;
}

}  // namespace onecopy
