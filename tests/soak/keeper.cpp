// SPDX-License-Identifier: Apache-2.0
#include "soak/keeper.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <set>
#include <sstream>
#include <thread>
#include <utility>

#include "onecopy/core/error.h"
#include "os/file.h"
#include "os/unix_socket.h"
#include "store/format/store_directory.h"
#include "support/proc_entries.h"

namespace onecopy::soak {
namespace {

constexpr const char* kChunk = "/memfd:onecopy-chunk";

/// Returns the content of a file of /proc; nothing if the process has ended, or ends while the file is read.
std::string proc_text(const std::filesystem::path& path) { return try_read_text(path).value_or(""); }

bool wait_until(const std::function<bool()>& done) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(2);
  for (; !done(); std::this_thread::sleep_for(std::chrono::milliseconds(1)))
    if (std::chrono::steady_clock::now() > end) return false;
  return true;
}

/// Returns the inodes of the chunks of versions that a process maps.
std::set<std::uint64_t> mapped_chunks(int pid) {
  std::set<std::uint64_t> inodes;
  std::istringstream maps(proc_text(fmt::format("/proc/{}/maps", pid)));
  for (std::string line, word; std::getline(maps, line);) {
    if (line.find(kChunk) == std::string::npos) continue;
    std::istringstream words(line);
    for (int i = 0; i < 5; ++i) words >> word;  // addresses, access, offset, device, inode
    inodes.insert(std::strtoull(word.c_str(), nullptr, 10));
  }
  return inodes;
}

/// Returns the inodes of the chunks of versions of which a process has a descriptor.
std::set<std::uint64_t> open_chunks(int pid) {
  std::set<std::uint64_t> inodes;
  for (const auto& fd : testing::proc_entries(fmt::format("/proc/{}/fd", pid))) {
    std::error_code gone;
    struct stat status {};
    if (std::filesystem::read_symlink(fd, gone).string().find(kChunk) == std::string::npos) continue;
    if (::stat(fd.c_str(), &status) == 0) inodes.insert(status.st_ino);
  }
  return inodes;
}

}  // namespace

Keeper::Keeper(std::string directory) : directory_(std::move(directory)) {
  ::setenv("ONECOPY_STORE_DIR", directory_.c_str(), 1);
}

Keeper::~Keeper() {
  kill_both();
  std::error_code ignored;
  std::filesystem::remove_all(directory_, ignored);
}

/// Returns the pids of the worker and the guard; fewer if one of them has ended, or has not begun.
std::vector<int> Keeper::halves() const {
  std::map<std::string, int> found;
  for (const auto& process : testing::proc_entries("/proc")) {
    const std::string name = proc_text(process / "comm");
    if (name != "onecopy-store\n" && name != "onecopy-guard\n") continue;
    if (proc_text(process / "environ").find("ONECOPY_STORE_DIR=" + directory_) != std::string::npos)
      found[name] = std::atoi(process.filename().c_str());
  }
  std::vector<int> pids;
  for (const auto& [name, pid] : found) pids.push_back(pid);
  return pids;
}

void Keeper::start() {
  const int pid = ::fork();
  if (pid < 0) throw_errno("fork", errno);
  if (pid == 0) {
    std::string program = "/proc/self/exe", argument = "--keeper=" + directory_;
    char* const argv[] = {program.data(), argument.data(), nullptr};
    ::execv(program.c_str(), argv);
    ::_exit(3);
  }
  const auto answers = [this] {
    try {
      UnixSocket::connect(store::StoreDirectory(directory_).socket(), std::chrono::seconds(1));
      return halves().size() == 2;
    } catch (const Error&) {  // it begins
      return false;
    }
  };
  if (!wait_until(answers)) throw Error(ErrorCode::timeout, "the keeper of the soak does not start");
}

std::optional<int> Keeper::kill_half(std::uint64_t choice) const {
  const std::vector<int> pids = halves();
  if (pids.size() != 2) return std::nullopt;
  ::kill(pids[choice % 2], SIGKILL);
  return pids[choice % 2];
}

std::vector<int> Keeper::kill_both() const {
  wait_until([this] { return halves().size() != 1; });
  const std::vector<int> pids = halves();
  for (const int signal : {SIGSTOP, SIGKILL})  // so that neither replaces the other
    for (const int pid : pids) ::kill(pid, signal);
  wait_until([this] { return halves().empty(); });
  return pids;
}

bool Keeper::end() const {
  for (const int half : halves()) ::kill(half, SIGTERM);
  return wait_until([this] { return halves().empty(); });
}

std::size_t Keeper::count_unread(std::span<const int> pids) const {
  std::set<std::uint64_t> mapped;
  for (const int pid : pids) mapped.merge(mapped_chunks(pid));
  std::size_t most = 0;
  for (const int half : halves()) {
    std::set<std::uint64_t> unread = open_chunks(half);
    std::erase_if(unread, [&](std::uint64_t inode) { return mapped.contains(inode); });
    most = std::max(most, unread.size());
  }
  return most;
}

}  // namespace onecopy::soak
