// SPDX-License-Identifier: Apache-2.0
#include "support/cpu.h"

#include <sched.h>
#include <sys/resource.h>

namespace onecopy::bench {
namespace {

void allow(const std::vector<int>& cpus) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : cpus) CPU_SET(static_cast<unsigned>(cpu), &set);
  ::sched_setaffinity(0, sizeof set, &set);
}

double ms(const timeval& t) {
  return static_cast<double>(t.tv_sec) * 1e3 + static_cast<double>(t.tv_usec) / 1e3;
}

}  // namespace

std::vector<int> allowed_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  ::sched_getaffinity(0, sizeof set, &set);
  std::vector<int> cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
    if (CPU_ISSET(static_cast<unsigned>(cpu), &set)) cpus.push_back(cpu);
  return cpus;
}

Pin::Pin(int index) : before_(allowed_cpus()) {
  allow({before_[static_cast<std::size_t>(index) % before_.size()]});
}

Pin::~Pin() { allow(before_); }

double cpu_time_ms() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return ms(usage.ru_utime) + ms(usage.ru_stime);
}

void give_way() noexcept { ::sched_yield(); }

}  // namespace onecopy::bench
