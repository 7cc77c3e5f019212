// SPDX-License-Identifier: Apache-2.0
#include "process_memory.h"

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>

#include <fmt/format.h>

#include "onecopy/core/error.h"

namespace onecopy::cli {

ProcessMemory memory_of(int pid) {
  const std::string path = fmt::format("/proc/{}/smaps_rollup", pid);
  std::ifstream file(path);
  if (!file) throw_errno(fmt::format("cannot read {}", path), errno);
  ProcessMemory memory;
  const auto kibibytes = [](const std::string& line) {
    return std::stoull(line.substr(line.find(':') + 1)) * 1024;
  };
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("Pss:")) memory.pss = kibibytes(line);
    if (line.starts_with("Pss_Shmem:")) memory.shared = kibibytes(line);
    if (line.starts_with("Pss_File:")) memory.files = kibibytes(line);
  }
  return memory;
}

std::vector<std::string> open_descriptors() {
  std::vector<std::string> targets;
  std::error_code gone;  // the descriptor of the listing itself
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const auto target = std::filesystem::read_symlink(entry.path(), gone);
    if (!gone && !target.string().ends_with("/fd")) targets.push_back(target.string());
  }
  std::sort(targets.begin(), targets.end());
  return targets;
}

}  // namespace onecopy::cli
