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
#include <string>

#include "onecopy/os/process.h"

namespace onecopy {
namespace {

enum class Seen : std::uint8_t { mapped, not_mapped, no_memory, refused, gone, nothing };

Seen look(int pid, const MappedFile& file) {
  errno = 0;
  std::ifstream maps(fmt::format("/proc/{}/maps", pid));
  if (!maps && (errno == ENOENT || errno == ESRCH)) return Seen::gone;
  if (!maps)
    return errno == EACCES || errno == EPERM ? Seen::refused : Seen::nothing;  // short of descriptors, say
  const std::string wanted = fmt::format(" {} ", file.inode);
  bool has_memory = false;
  for (std::string line; std::getline(maps, line); has_memory = true)
    if (line.find(file.name) != std::string::npos && line.find(wanted) != std::string::npos)
      return Seen::mapped;
  if (maps.bad()) return Seen::nothing;
  return has_memory ? Seen::not_mapped : Seen::no_memory;
}

/// Also of a process that forbids others to look at it.
bool is_of_our_user(int pid) {
  std::ifstream status(fmt::format("/proc/{}/status", pid));
  for (std::string word; status >> word;)
    if (uid_t real = 0; word == "Uid:" && status >> real) return real == ::getuid();
  return false;
}

/// What may not be looked at is another user's, mostly: only root has children that become such.
bool may_use(int pid, const MappedFile& file) {
  const Seen seen = look(pid, file);
  if (seen == Seen::refused) return ::geteuid() == 0 || is_of_our_user(pid);
  return seen == Seen::mapped || seen == Seen::nothing;
}

/// Also when processes cannot be seen. The file is ours, so its users are younger than we are.
bool is_mapped_by_others(const MappedFile& file, const std::function<bool(int pid)>& is_known) {
  const std::unique_ptr<DIR, int (*)(DIR*)> all(::opendir("/proc"), &::closedir);
  if (!all || look(current_pid(), file) != Seen::mapped) return true;
  const std::uint64_t ours = process_start_time(current_pid());
  while (const dirent* entry = ::readdir(all.get())) {
    const int pid = std::atoi(entry->d_name);
    if (pid <= 0 || pid == current_pid() || is_known(pid)) continue;
    const std::uint64_t theirs = process_start_time(pid);  // 0: it cannot be read
    if ((theirs == 0 || theirs >= ours) && may_use(pid, file)) return true;
  }
  return false;
}

}  // namespace

/// One without any memory is ending, and a device may still be at work for it until its pidfd says that it has ended.
bool maps_file(int pid, const MappedFile& file) { return look(pid, file) != Seen::not_mapped; }

bool UnseenUsers::are_all_gone(const MappedFile& file, const std::function<bool(int pid)>& is_known) {
  constexpr std::chrono::milliseconds kLongest{10'000};
  if (!visible_ || Clock::now() < next_look_) return false;
  times_gone_ = is_mapped_by_others(file, is_known) ? 0 : times_gone_ + 1;
  next_look_ = Clock::now() + pause_;
  pause_ = std::min(2 * pause_, kLongest);
  return times_gone_ >= 2;
}

}  // namespace onecopy
