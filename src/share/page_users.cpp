// SPDX-License-Identifier: Apache-2.0
#include "share/page_users.h"

#include <dirent.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>

#include "onecopy/core/point.h"
#include "onecopy/os/process.h"

namespace onecopy {
namespace {

enum class Seen : std::uint8_t { memory, no_memory, refused, gone, nothing };

/// Calls `note` with each line of what the process maps.
template <class Note>
Seen look(int pid, const Note& note) {
  errno = 0;
  std::ifstream maps(fmt::format("/proc/{}/maps", pid));
  if (!maps && (errno == ENOENT || errno == ESRCH)) return Seen::gone;
  if (!maps)
    return errno == EACCES || errno == EPERM ? Seen::refused : Seen::nothing;  // short of descriptors, say
  bool has_memory = false;
  for (std::string line; std::getline(maps, line); has_memory = true) note(line);
  if (maps.bad()) return Seen::nothing;
  return has_memory ? Seen::memory : Seen::no_memory;
}

/// Of the file that a line is about, when its name has that in it; else 0, which no file has.
std::uint64_t inode_in(const std::string& line, const char* name) {
  if (line.find(name) == std::string::npos) return 0;
  std::istringstream fields(line);
  std::string address, access, offset, device;
  std::uint64_t inode = 0;
  fields >> address >> access >> offset >> device >> inode;
  return inode;
}

bool is_of(const std::string& line, const MappedFile& file) {
  return inode_in(line, file.name) == file.inode;
}

/// Also of a process that forbids others to look at it.
bool is_of_our_user(int pid) {
  std::ifstream status(fmt::format("/proc/{}/status", pid));
  for (std::string word; status >> word;)
    if (uid_t real = 0; word == "Uid:" && status >> real) return real == ::getuid();
  return false;
}

/// What may not be looked at is another user's, mostly: only root has children that become such.
bool may_be_unseen(int pid, const BorrowerFiles& files) {
  std::size_t tables = 0;
  std::set<std::uint64_t> pages;
  const Seen seen = look(pid, [&](const std::string& line) {
    if (is_of(line, files.table)) ++tables;
    if (const std::uint64_t page = inode_in(line, files.page_name); files.pages.contains(page))
      pages.insert(page);
  });
  if (seen == Seen::refused) return ::geteuid() == 0 || is_of_our_user(pid);
  return seen == Seen::nothing || tables > pages.size();
}

/// Else /proc does not show what we look for.
bool is_mapped_here(const MappedFile& file) {
  bool is_mapped = false;
  look(current_pid(), [&](const std::string& line) { is_mapped = is_mapped || is_of(line, file); });
  return is_mapped;
}

}  // namespace

/// One without any memory is ending, and a device may still be at work for it until its pidfd says that it has ended.
bool maps_file(int pid, const MappedFile& file) {
  bool is_mapped = false;
  const Seen seen = look(pid, [&](const std::string& line) { is_mapped = is_mapped || is_of(line, file); });
  return is_mapped || seen != Seen::memory;
}

void UnseenUsers::hurry() noexcept {
  next_look_ = {};
  pause_ = kShortest;
}

/// The table is ours, so its users are younger than we are.
bool UnseenUsers::look(const BorrowerFiles& files) {
  constexpr std::chrono::milliseconds kLongest{10'000};
  point("unseen.look");
  next_look_ = Clock::now() + pause_;
  pause_ = std::min(2 * pause_, kLongest);
  const std::unique_ptr<DIR, int (*)(DIR*)> all(::opendir("/proc"), &::closedir);
  const std::uint64_t ours = process_start_time(current_pid());
  if (!all || !is_mapped_here(files.table)) return true;
  while (const dirent* entry = ::readdir(all.get())) {
    const int pid = std::atoi(entry->d_name);
    if (pid <= 0 || pid == current_pid() || files.is_harmless(pid)) continue;
    const std::uint64_t theirs = process_start_time(pid);  // 0: it cannot be read
    if ((theirs == 0 || theirs >= ours) && may_be_unseen(pid, files)) return true;
  }
  return false;
}

}  // namespace onecopy
