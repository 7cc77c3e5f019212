// SPDX-License-Identifier: Apache-2.0
#include "os/page_users.h"

#include <dirent.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>

#include "core/point.h"
#include "os/process.h"

namespace onecopy {
namespace {

enum class Sighting : std::uint8_t { memory, no_memory, refused, gone, nothing };

/// Calls `note` with each line of the mappings of the process that has this number in /proc.
template <class Note>
Sighting look(int number, const Note& note) {
  errno = 0;
  std::ifstream maps(fmt::format("/proc/{}/maps", number));
  if (!maps && (errno == ENOENT || errno == ESRCH)) return Sighting::gone;
  if (!maps)
    // The process may be short of descriptors, for instance.
    return errno == EACCES || errno == EPERM ? Sighting::refused : Sighting::nothing;
  bool has_memory = false;
  for (std::string line; std::getline(maps, line); has_memory = true) note(line);
  if (maps.bad()) return Sighting::nothing;
  return has_memory ? Sighting::memory : Sighting::no_memory;
}

/// Returns the inode of the file in a line of maps if its name contains `name`, else 0, which is not a valid inode.
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

/// Returns whether the process runs as this user; also true for a process that forbids others to inspect it.
bool is_of_our_user(int pid) {
  std::ifstream status(fmt::format("/proc/{}/status", pid));
  for (std::string word; status >> word;)
    if (uid_t real = 0; word == "Uid:" && status >> real) return real == ::getuid();
  return false;
}

/// Returns whether the process may use the memory unknown to this one. A process that cannot be inspected mostly
/// belongs to another user, and only root has children of other users.
bool may_be_untracked(int pid, const BorrowerFiles& files) {
  std::size_t tables = 0;
  std::set<std::uint64_t> pages;
  const Sighting seen = look(pid, [&](const std::string& line) {
    if (is_of(line, files.table)) ++tables;
    if (const std::uint64_t page = inode_in(line, files.page_name); files.pages.contains(page))
      pages.insert(page);
  });
  if (seen == Sighting::refused) return ::geteuid() == 0 || is_of_our_user(pid);
  return seen == Sighting::nothing || tables > pages.size();
}

/// Returns whether /proc shows this file in this process's own mappings. If not, /proc does not show memfds at all.
bool is_mapped_here(const MappedFile& file) {
  bool is_mapped = false;
  look(number_in_proc(current_pid()),
       [&](const std::string& line) { is_mapped = is_mapped || is_of(line, file); });
  return is_mapped;
}

}  // namespace

/// Returns true also for a process without any memory, which is ending: a device may still work for it until its pidfd
/// reports the end.
bool maps_file(int pid, const MappedFile& file) {
  const int number = number_in_proc(pid);
  if (number == 0) return true;
  bool is_mapped = false;
  const Sighting seen =
      look(number, [&](const std::string& line) { is_mapped = is_mapped || is_of(line, file); });
  return is_mapped || seen != Sighting::memory;
}

/// Scans the processes that are younger than this one, since only they can use its table.
bool UntrackedMappers::look(const BorrowerFiles& files) {
  point("unseen.look");
  looks_.looked();
  const std::unique_ptr<DIR, int (*)(DIR*)> all(::opendir("/proc"), &::closedir);
  const std::uint64_t ours = process_start_time(current_pid());
  if (!all || !is_mapped_here(files.table)) return true;
  while (const dirent* entry = ::readdir(all.get())) {
    const int pid = std::atoi(entry->d_name);
    if (pid <= 0 || pid == current_pid() || files.is_harmless(pid)) continue;
    const std::uint64_t theirs = process_start_time(pid);  // 0: it cannot be read
    if ((theirs == 0 || theirs >= ours) && may_be_untracked(pid, files)) return true;
  }
  return false;
}

}  // namespace onecopy
