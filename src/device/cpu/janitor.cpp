// SPDX-License-Identifier: Apache-2.0
#include "device/janitor.h"

#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#include <memory>

#include "named_file_memory.h"
#include "os/file.h"

namespace onecopy {

namespace {

struct CloseDirectory {
  void operator()(DIR* directory) const noexcept { ::closedir(directory); }
};

bool is_ours(const std::string& path) noexcept {
  struct stat info {};
  return ::lstat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode) && info.st_uid == ::geteuid();
}

}  // namespace

std::string shared_directory() {
  std::string directory = directory_in("ONECOPY_SHM_DIR");
  if (directory.empty()) return "/dev/shm";
  while (directory.size() > 1 && directory.back() == '/') directory.pop_back();
  return directory;
}

CleanupReport remove_abandoned_files() {
  CleanupReport report;
  const std::string directory = shared_directory();
  const std::unique_ptr<DIR, CloseDirectory> listing(::opendir(directory.c_str()));
  if (!listing) return report;
  while (const dirent* entry = ::readdir(listing.get())) {
    const std::string path = directory + "/" + entry->d_name;
    if (!is_segment_file(entry->d_name) || !is_ours(path)) continue;
    const long long freed = unlink_if_unused(path);
    report.files += freed >= 0 ? 1 : 0;
    report.in_use += freed < 0 ? 1 : 0;
    report.bytes += freed > 0 ? static_cast<std::uint64_t>(freed) : 0;
  }
  return report;
}

}  // namespace onecopy
