// SPDX-License-Identifier: Apache-2.0
#include "support/memory.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "onecopy/core/error.h"

namespace onecopy::bench {
namespace {

std::uint64_t lines_in(const char* path) {
  std::ifstream file(path);
  return static_cast<std::uint64_t>(std::count(std::istreambuf_iterator<char>(file), {}, '\n'));
}

}  // namespace

Footprint footprint() {
  Footprint now;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    (void)entry;
    ++now.descriptors;
  }
  now.mappings = lines_in("/proc/self/maps");
  const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  std::uint64_t size = 0;
  std::ifstream("/proc/self/statm") >> size >> now.resident >> now.resident_shared;
  now.resident *= page;
  now.resident_shared *= page;
  return now;
}

std::uint64_t memfd_bytes() {
  std::uint64_t bytes = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const std::string target = std::filesystem::read_symlink(entry.path(), gone).string();
    struct stat file {};
    if (target.rfind("/memfd:", 0) == 0 && ::stat(entry.path().c_str(), &file) == 0)
      bytes += static_cast<std::uint64_t>(file.st_blocks) * 512;
  }
  return bytes;
}

FreshMemory::FreshMemory(std::size_t size)
    : data_(::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)),
      size_(size) {
  if (data_ == MAP_FAILED) throw_errno("mmap", errno);
}

FreshMemory::~FreshMemory() { ::munmap(data_, size_); }

}  // namespace onecopy::bench
