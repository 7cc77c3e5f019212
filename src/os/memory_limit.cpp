// SPDX-License-Identifier: Apache-2.0
#include "os/memory_limit.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <string_view>
#include <vector>

#include "core/throw_error.h"
#include "os/cgroup.h"
#include "os/file.h"
#include "os/mutex.h"

namespace onecopy {
namespace {

/// The least number that means "no limit": v1 writes its largest number of pages.
constexpr std::uint64_t kUnlimited = std::uint64_t{1} << 62;

std::uint64_t number_at(std::string_view text, std::size_t at) noexcept {
  at = std::min(text.find_first_not_of(' ', at), text.size());
  std::uint64_t number = 0;
  std::from_chars(text.data() + at, text.data() + text.size(), number);
  return number;
}

/// Returns the number after `key` at the start of a line; empty if no line starts with `key`.
std::optional<std::uint64_t> value_of(std::string_view text, std::string_view key) noexcept {
  for (std::size_t line = 0; line < text.size();) {
    if (text.substr(line).starts_with(key)) return number_at(text, line + key.size());
    const auto end = text.find('\n', line);
    if (end == std::string_view::npos) break;
    line = end + 1;
  }
  return std::nullopt;
}

/// Returns limit and charge of one group, without reading its file cache, which is slower.
std::optional<MemoryLimit> raw_limit(const CgroupDirectory& group) {
  const auto limit = read_number(group.path + (group.v2 ? "/memory.max" : "/memory.limit_in_bytes"));
  if (!limit || *limit >= kUnlimited) return std::nullopt;
  const auto usage = read_number(group.path + (group.v2 ? "/memory.current" : "/memory.usage_in_bytes"));
  return MemoryLimit{*limit, usage.value_or(0), group.path};
}

void subtract_file_cache(MemoryLimit& limit, bool v2) {
  const auto stat = try_read_text(limit.cgroup + "/memory.stat");
  if (!stat) return;
  const auto cache = value_of(*stat, v2 ? "inactive_file " : "total_inactive_file ").value_or(0);
  limit.usage -= std::min(limit.usage, cache);
}

std::string mebibytes(std::uint64_t bytes) {
  return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / (1024.0 * 1024.0));
}

[[noreturn]] void throw_over_limit(std::uint64_t bytes, std::uint64_t margin, const MemoryLimit& limit) {
  throw_error(ErrorCode::out_of_memory,
              "{} more would exceed the memory limit of the control group {}: limit {}, used {} without "
              "file cache, kept free {}; release tensors or raise the limit (of the container)",
              mebibytes(bytes), limit.cgroup, mebibytes(limit.limit), mebibytes(limit.usage),
              mebibytes(margin));
}

[[noreturn]] void throw_over_machine(std::uint64_t bytes, std::uint64_t available) {
  throw_error(ErrorCode::out_of_memory,
              "{} more is not possible: this machine has {} left (MemAvailable + SwapFree); release "
              "tensors or stop other programs",
              mebibytes(bytes), mebibytes(available));
}

/// Returns the limits of this machine. The object is never destroyed, because threads may allocate while the process
/// ends.
const MemoryLimits& this_machine() {
  static const MemoryLimits* const limits = std::make_unique<MemoryLimits>().release();
  return *limits;
}

}  // namespace

struct MemoryLimits::State {
  explicit State(std::string root_directory) : root(std::move(root_directory)), tree(root) {}

  /// Returns the groups that this process is in now.
  std::vector<CgroupDirectory> groups() {
    std::string now = tree.membership();
    // The lock is only tried, because after a fork it may be held by a thread that does not exist in the child.
    if (!mutex.try_lock()) return tree.directories(now, "memory");
    const LockGuard lock(mutex, std::adopt_lock);
    if (now != membership) {
      directories = tree.directories(now, "memory");
      membership = std::move(now);
    }
    return directories;
  }

  const std::string root;
  const CgroupTree tree;
  Mutex mutex;
  std::string membership GUARDED_BY(mutex);
  std::vector<CgroupDirectory> directories GUARDED_BY(mutex);
};

MemoryLimits::MemoryLimits(std::string root) : state_(std::make_unique<State>(std::move(root))) {}
MemoryLimits::~MemoryLimits() = default;

std::optional<MemoryLimit> MemoryLimits::tightest() const {
  std::optional<MemoryLimit> tightest;
  for (const CgroupDirectory& group : state_->groups()) {
    auto limit = raw_limit(group);
    if (!limit) continue;
    subtract_file_cache(*limit, group.v2);
    if (!tightest || limit->available() < tightest->available()) tightest = std::move(limit);
  }
  return tightest;
}

std::optional<std::uint64_t> MemoryLimits::machine_available() const {
  const auto text = try_read_text(state_->root + "/proc/meminfo");
  if (!text) return std::nullopt;
  const auto available = value_of(*text, "MemAvailable:");
  if (!available) return std::nullopt;
  return (*available + value_of(*text, "SwapFree:").value_or(0)) * 1024;
}

void MemoryLimits::require(std::uint64_t bytes, std::uint64_t margin) const {
  const auto fits = [&](std::uint64_t available) {
    return available >= margin && available - margin >= bytes;
  };
  for (const CgroupDirectory& group : state_->groups()) {
    auto limit = raw_limit(group);
    if (!limit || fits(limit->available())) continue;
    subtract_file_cache(*limit, group.v2);
    if (!fits(limit->available())) throw_over_limit(bytes, margin, *limit);
  }
  const auto available = machine_available();
  if (available && !fits(*available)) throw_over_machine(bytes, *available);
}

std::optional<std::uint64_t> address_space_left() {
  rlimit space{};
  if (::getrlimit(RLIMIT_AS, &space) != 0 || space.rlim_cur == RLIM_INFINITY) return {};
  const auto text = try_read_text("/proc/self/statm");  // begins with the number of mapped pages
  const std::uint64_t used =
      text ? number_at(*text, 0) * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE)) : 0;
  return space.rlim_cur - std::min<std::uint64_t>(used, space.rlim_cur);
}

std::optional<MemoryLimit> memory_limit() { return this_machine().tightest(); }

void require_memory(std::uint64_t bytes, std::uint64_t margin) { this_machine().require(bytes, margin); }

}  // namespace onecopy
