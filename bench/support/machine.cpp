// SPDX-License-Identifier: Apache-2.0
#include "support/machine.h"

#include <fmt/format.h>
#include <sched.h>
#include <sys/utsname.h>

#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <memory>
#include <sstream>

#include "os/process.h"

namespace onecopy::bench {
namespace {

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

/// Returns the text after "key<spaces>:" in a file.
std::string value_in(const std::string& path, const std::string& key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.rfind(key, 0) != 0) continue;
    const std::size_t begin = line.find_first_not_of(" \t", line.find(':') + 1);
    return begin == std::string::npos ? "" : line.substr(begin);
  }
  return {};
}

std::string output_of(const std::string& command) {
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(::popen(command.c_str(), "r"), ::pclose);
  std::string text;
  if (pipe)
    for (int c = 0; (c = std::fgetc(pipe.get())) != EOF && c != '\n';) text += static_cast<char>(c);
  return text;
}

std::string slug(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (std::isalnum(static_cast<unsigned char>(c))) out += static_cast<char>(std::tolower(c));
    else if (!out.empty() && out.back() != '-') out += '-';
  }
  while (!out.empty() && out.back() == '-') out.pop_back();
  return out;
}

bool is_virtual() {
  return fmt::format(" {} ", value_in("/proc/cpuinfo", "flags")).find(" hypervisor ") != std::string::npos;
}

std::string today() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  ::gmtime_r(&now, &utc);
  return fmt::format("{:04}-{:02}-{:02}", utc.tm_year + 1900, utc.tm_mon + 1, utc.tm_mday);
}

std::string memory() {
  const double kib = std::strtod(value_in("/proc/meminfo", "MemTotal").c_str(), nullptr);
  return fmt::format("{:.1f} GiB", kib / (1 << 20));
}

std::string processors() {
  std::string model = value_in("/proc/cpuinfo", "model name");
  return model.empty() ? "unknown processor" : model;
}

std::string commit() {
  const std::string git = std::string("git -C ") + ONECOPY_SOURCE_DIR + " ";
  const std::string hash = output_of(git + "rev-parse --short=12 HEAD 2>/dev/null");
  const bool changed = !output_of(git + "status --porcelain -uno 2>/dev/null").empty();
  return hash + (changed ? " with changes" : "");
}

}  // namespace

Machine describe_machine() {
  utsname kernel{};
  ::uname(&kernel);
  const int cpus = usable_cpus();
  const bool is_vm = is_virtual();
  Machine machine;
  machine.date = today();
  machine.kind = fmt::format("{}-{}cpu{}", slug(processors()), cpus, is_vm ? "-vm" : "");
  machine.facts = {
      {"processor", processors() + (is_vm ? ", in a virtual machine" : "")},
      {"processors usable", std::to_string(cpus)},
      {"memory", memory()},
      {"kernel", fmt::format("{} {}", kernel.sysname, kernel.release)},
      {"huge pages", "anonymous " + first_line("/sys/kernel/mm/transparent_hugepage/enabled") +
                         ", shared " + first_line("/sys/kernel/mm/transparent_hugepage/shmem_enabled")},
      {"compiler", std::string(
#ifdef __clang__
                       "clang "
#else
                       "g++ "
#endif
                       ) +
                       __VERSION__},
#ifdef NDEBUG
      {"build", "release"},
#else
      {"build", "debug: the numbers mean nothing"},
#endif
      {"commit", commit()},
      {"scheduling", ::sched_getscheduler(0) == SCHED_OTHER ? "normal" : "real time: others wait (chrt)"},
      {"load average at the start", first_line("/proc/loadavg")},
  };
  return machine;
}

}  // namespace onecopy::bench
