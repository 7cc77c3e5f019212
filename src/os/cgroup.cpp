// SPDX-License-Identifier: Apache-2.0
#include "os/cgroup.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <sstream>

#include "os/file.h"

namespace onecopy {
namespace {

bool is_octal(const std::string& text, std::size_t at) {
  return text.size() >= at + 3 && text.find_first_not_of("01234567", at) >= at + 3;
}

/// Decodes the \ooo escapes that /proc/self/mountinfo uses for spaces and the like.
std::string unescape(const std::string& text) {
  std::string plain;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\' && is_octal(text, i + 1)) {
      plain += static_cast<char>(std::stoi(text.substr(i + 1, 3), nullptr, 8));
      i += 3;
    } else {
      plain += text[i];
    }
  }
  return plain;
}

/// Returns the part of `group` below `mounted`; empty if `group` does not lie there.
std::optional<std::string> below(const std::string& mounted, const std::string& group) {
  if (group.starts_with("/..")) return std::nullopt;  // moved out of this cgroup namespace
  if (mounted == "/") return group == "/" ? "" : group;
  if (group == mounted) return "";
  if (group.starts_with(mounted + "/")) return group.substr(mounted.size());
  return std::nullopt;
}

bool has_item(const std::string& list, const std::string& item) {
  return ("," + list + ",").find("," + item + ",") != std::string::npos;
}

double quota_v2(const std::string& directory) {
  std::istringstream text(try_read_text(directory + "/cpu.max").value_or(""));
  double quota = 0;
  double period = 0;
  text >> quota >> period;  // fails on "max 100000"
  return text && period > 0 ? quota / period : std::numeric_limits<double>::infinity();
}

double quota_v1(const std::string& directory) {
  const auto quota = read_number(directory + "/cpu.cfs_quota_us");  // -1: none
  const auto period = read_number(directory + "/cpu.cfs_period_us");
  if (!quota || !period || *period == 0) return std::numeric_limits<double>::infinity();
  return static_cast<double>(*quota) / static_cast<double>(*period);
}

}  // namespace

CgroupTree::CgroupTree(std::string root) : root_(std::move(root)) {
  std::istringstream lines(try_read_text(root_ + "/proc/self/mountinfo").value_or(""));
  for (std::string line; std::getline(lines, line);)
    if (auto mount = parse_mount(line)) mounts_.push_back(std::move(*mount));
}

/// Parses "36 35 98:0 /root /mount/point options optional... - type source super-options".
std::optional<CgroupTree::Mount> CgroupTree::parse_mount(const std::string& line) {
  if (line.find(" - cgroup") == std::string::npos) return std::nullopt;
  std::istringstream fields(line);
  std::string id, parent, device, group, path, word, type, source, options;
  fields >> id >> parent >> device >> group >> path;
  while (fields >> word && word != "-") {
  }
  fields >> type >> source >> options;
  if (!fields || (type != "cgroup" && type != "cgroup2")) return std::nullopt;
  const bool v2 = type == "cgroup2";
  return Mount{unescape(group), unescape(path), v2 ? "" : options, v2};
}

std::string CgroupTree::membership() const {
  return try_read_text(root_ + "/proc/self/cgroup").value_or("");
}

/// Parses lines "4:memory,other:/group" (v1) and "0::/group" (v2).
std::vector<CgroupDirectory> CgroupTree::directories(const std::string& membership,
                                                     const std::string& controller) const {
  std::vector<CgroupDirectory> directories;
  std::istringstream lines(membership);
  for (std::string line; std::getline(lines, line);) {
    const auto first = line.find(':');
    const auto second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool v2 = controllers.empty();
    if (v2 || has_item(controllers, controller))
      append(directories, line.substr(second + 1), v2, controller);
  }
  return directories;
}

void CgroupTree::append(std::vector<CgroupDirectory>& directories, const std::string& group, bool v2,
                        const std::string& controller) const {
  const Mount* chosen = nullptr;
  std::string relative;
  for (const Mount& mount : mounts_) {
    if (mount.v2 != v2 || (!v2 && !has_item(mount.controllers, controller))) continue;
    const auto part = below(mount.group, group);
    if (part || !chosen) chosen = &mount;
    if (!part) continue;  // falls back to the mount point itself
    relative = *part;
    break;
  }
  if (!chosen) return;
  for (;;) {
    directories.push_back({root_ + chosen->path + relative, v2});
    if (relative.empty()) return;
    relative.erase(relative.rfind('/'));
  }
}

std::optional<std::uint64_t> read_number(const std::string& path) {
  const auto text = try_read_text(path);
  if (!text) return std::nullopt;
  std::uint64_t number = 0;
  const auto [at, error] = std::from_chars(text->data(), text->data() + text->size(), number);
  return error == std::errc{} ? std::optional(number) : std::nullopt;
}

double cpu_quota(const CgroupTree& tree) {
  double quota = std::numeric_limits<double>::infinity();
  for (const CgroupDirectory& group : tree.directories(tree.membership(), "cpu"))
    quota = std::min(quota, group.v2 ? quota_v2(group.path) : quota_v1(group.path));
  return quota;
}

}  // namespace onecopy
