// SPDX-License-Identifier: Apache-2.0
#include "store/client/kv_pool_lock.h"

#include <fcntl.h>
#include <fmt/ranges.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <sstream>
#include <thread>

#include "core/throw_error.h"
#include "os/file.h"
#include "os/hmac.h"
#include "os/process.h"

namespace onecopy::store {
namespace {

constexpr std::chrono::milliseconds kNextAttempt{5};

/// Returns whether the path still names the open file, which its last holder may have removed.
bool is_at(const Fd& file, const std::string& path) {
  struct stat open {
  }, named{};
  return ::fstat(file.get(), &open) == 0 && ::stat(path.c_str(), &named) == 0 &&
         open.st_dev == named.st_dev && open.st_ino == named.st_ino;
}

}  // namespace

std::string kv_pool_path(const std::string& directory, const std::string& name) {
  const Digest digest = sha256(std::as_bytes(std::span(name)));
  return fmt::format("{}/kv_pool-{:02x}", directory, fmt::join(std::span(digest).first(16), ""));
}

KvPoolLock::KvPoolLock(const std::string& directory, const std::string& name, Deadline deadline)
    : path_(kv_pool_path(directory, name) + ".lock") {
  while (!try_lock()) {
    if (deadline.has_passed())
      throw_error(ErrorCode::timeout,
                  "{} is making or opening the KV pool \"{}\" and does not get on: let it go on, "
                  "or end it",
                  holder(), name);
    std::this_thread::sleep_for(kNextAttempt);
  }
}

/// Removes the file while the lock is held, so that no files stay.
KvPoolLock::~KvPoolLock() { ::unlink(path_.c_str()); }

bool KvPoolLock::try_lock() {
  Fd file = open_file(path_, O_RDWR | O_CREAT);
  UnsharedDescriptor unshared(file.get());
  if (::flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK || errno == EINTR) return false;
    throw_errno(fmt::format("cannot lock {}", path_), errno);
  }
  if (!is_at(file, path_)) return false;
  const std::string us = fmt::format("{:<11} {:<20}\n", current_pid(), pid_namespace());
  if (::pwrite(file.get(), us.data(), us.size(), 0) < 0) errno = 0;  // then a waiting process names nobody
  file_ = std::move(file);
  unshared_ = std::move(unshared);
  return true;
}

std::string KvPoolLock::holder() const {
  int pid = 0;
  std::uint64_t space = 0;
  std::istringstream(try_read_text(path_).value_or("")) >> pid >> space;
  if (pid == 0 || space != pid_namespace()) return "another process";
  return fmt::format("process {} ({})", pid, process_name(pid));
}

}  // namespace onecopy::store
