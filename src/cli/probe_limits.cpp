// SPDX-License-Identifier: Apache-2.0
#include <sys/resource.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include <fmt/format.h>

#include "onecopy/core/error.h"
#include "os/memory_limit.h"
#include "os/process.h"
#include "probe.h"
#include "text.h"

namespace onecopy::cli {
namespace {

rlimit limit_of(int resource) {
  rlimit limit{};
  if (::getrlimit(static_cast<__rlimit_resource>(resource), &limit) != 0) throw_errno("getrlimit", errno);
  return limit;
}

std::string limit_text(rlim_t limit) {
  return limit == RLIM_INFINITY ? "unlimited" : fmt::format("{}", limit);
}

/// Returns the number of descriptors, without the one of the listing itself.
std::ptrdiff_t count_descriptors() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {}) - 1;
}

Finding probe_descriptors() {
  const rlimit limit = limit_of(RLIMIT_NOFILE);
  const std::string detail = fmt::format("{} open of {} (hard limit {})", count_descriptors(),
                                         limit_text(limit.rlim_cur), limit_text(limit.rlim_max));
  constexpr rlim_t kComfortable = 256;
  if (limit.rlim_cur >= kComfortable) return works(detail);
  return slower(detail, "Processes with many peers run out. Raise it: `ulimit -n 1024`");
}

Finding probe_mappings() {
  std::ifstream setting("/proc/sys/vm/max_map_count");
  std::uint64_t most = 0;
  if (!(setting >> most)) return missing("cannot read /proc/sys/vm/max_map_count", "");
  std::ifstream maps("/proc/self/maps");
  std::uint64_t now = 0;
  for (std::string line; std::getline(maps, line);) ++now;
  const std::string detail = fmt::format("{} in use of {} (vm.max_map_count)", now, most);
  constexpr std::uint64_t kDefault = 65530;
  if (most >= kDefault) return works(detail);
  return slower(detail,
                "Fewer large tensors can be open at once. Root can: `sysctl vm.max_map_count=65530`");
}

Finding probe_address_space() {
  const rlimit limit = limit_of(RLIMIT_AS);
  if (limit.rlim_cur == RLIM_INFINITY) return works("unlimited (RLIMIT_AS)");
  return slower(fmt::format("{} (RLIMIT_AS)", format_bytes(limit.rlim_cur)),
                "Segments reserve address space and soon hit this limit. Lift it: `ulimit -v unlimited`");
}

Finding probe_memory_limit() {
  const std::string available =
      fmt::format("{} available on the host", format_bytes(MemoryLimits().machine_available().value_or(0)));
  const auto limit = memory_limit();
  if (!limit) return works(fmt::format("no cgroup limits it; {}", available));
  const std::string detail = fmt::format("{} used of {} by cgroup {}; {}", format_bytes(limit->usage),
                                         format_bytes(limit->limit), limit->cgroup, available);
  if (limit->usage + limit->limit / 10 < limit->limit) return works(detail);
  return slower(detail, "Less than a tenth is left: large tensors will be refused. Raise the limit.");
}

Finding probe_cpus() {
  const int cpus = usable_cpus();
  if (cpus > 1) return works(fmt::format("{} usable", cpus));
  return slower("1 usable", "Waiting processes sleep instead of spinning: about 50 µs a hand-over.");
}

}  // namespace

std::vector<Probe> limit_probes() {
  return {{"memory limit", probe_memory_limit},
          {"address space", probe_address_space},
          {"mappings", probe_mappings},
          {"descriptors", probe_descriptors},
          {"processors", probe_cpus}};
}

}  // namespace onecopy::cli
