// SPDX-License-Identifier: Apache-2.0
#include "keeper_processes.h"

#include <poll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <charconv>
#include <csignal>
#include <filesystem>
#include <set>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "core/throw_error.h"
#include "os/deadline.h"
#include "os/file.h"
#include "os/process.h"

namespace onecopy::cli {
namespace {

using File = std::pair<std::uint64_t, std::uint64_t>;  ///< device and inode
using store::StoreDirectories;
using store::StoreDirectory;

constexpr std::chrono::seconds kEndPatience{10};

/// Returns the files whose lock makes a process the keeper: the directory, and in earlier versions a file in it.
std::set<File> locked_files(const StoreDirectories& directories) {
  std::set<File> files;
  struct stat status {};
  for (const StoreDirectory& directory : directories.all())
    for (const std::string& path : {directory.path(), directory.path() + "/lock"})
      if (::stat(path.c_str(), &status) == 0) files.emplace(status.st_dev, status.st_ino);
  return files;
}

/// Calls `use` with the name and the status of each descriptor of a process of this user.
template <class Use>
void for_each_descriptor(int pid, const Use& use) {
  std::error_code error;
  const std::string process = fmt::format("/proc/{}/", pid);
  for (std::filesystem::directory_iterator at(process + "fd", error), end; !error && at != end;
       at.increment(error)) {
    struct stat status {};
    if (::stat(at->path().c_str(), &status) == 0) use(at->path(), status);
  }
}

bool holds_lock(int pid, const std::set<File>& files) {
  bool holds = false;
  for_each_descriptor(pid, [&](const std::filesystem::path& path, const struct stat& status) {
    if (holds || !files.contains({status.st_dev, status.st_ino})) return;
    const auto info = try_read_text(fmt::format("/proc/{}/fdinfo/{}", pid, path.filename().string()));
    holds = info && info->find("FLOCK") != std::string::npos;
  });
  return holds;
}

int pid_of(const std::filesystem::path& process) {
  const std::string name = process.filename();
  int pid = 0;
  std::from_chars(name.data(), name.data() + name.size(), pid);
  return pid;
}

}  // namespace

std::vector<KeeperProcess> keeper_processes(const StoreDirectories& directories) {
  const std::set<File> files = locked_files(directories);
  std::vector<KeeperProcess> found;
  for (const auto& process : std::filesystem::directory_iterator("/proc")) {
    const int pid = pid_of(process.path());
    if (pid == 0 || pid == current_pid() || !holds_lock(pid, files)) continue;
    try {
      found.push_back({pid, open_pidfd(pid)});
    } catch (const Error& error) {  // it has ended
      if (error.code() != ErrorCode::peer_died) throw;
    }
  }
  return found;
}

std::uint64_t held_bytes(const std::vector<KeeperProcess>& processes) {
  std::set<File> counted;
  std::uint64_t bytes = 0;
  for (const KeeperProcess& process : processes)
    for_each_descriptor(process.pid, [&](const std::filesystem::path& path, const struct stat& status) {
      std::error_code error;
      const std::string target = std::filesystem::read_symlink(path, error).string();
      if (!target.starts_with("/memfd:") || target.starts_with("/memfd:onecopy-store-index")) return;
      if (counted.emplace(status.st_dev, status.st_ino).second)
        bytes += static_cast<std::uint64_t>(status.st_blocks) * 512;
    });
  return bytes;
}

std::vector<KeeperProcess> kill_keeper(const StoreDirectories& directories) {
  const Deadline until = Deadline::after(kEndPatience);
  std::vector<KeeperProcess> first;
  for (bool is_first = true;; is_first = false) {
    std::vector<KeeperProcess> found = keeper_processes(directories);
    if (found.empty()) return first;
    if (until.has_passed())
      throw_error(ErrorCode::timeout, "process {} of the store's keeper does not end", found[0].pid);
    for (const KeeperProcess& process : found)
      ::syscall(SYS_pidfd_send_signal, process.end.get(), SIGKILL, nullptr, 0);
    for (const KeeperProcess& process : found) until.wait_for(process.end.get(), POLLIN);
    if (is_first) first = std::move(found);
  }
}

}  // namespace onecopy::cli
