// SPDX-License-Identifier: Apache-2.0
#include "support/user_namespace.h"

#include <fcntl.h>
#include <grp.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>

namespace onecopy::testing {
namespace {

std::string refused(const char* what) { return std::string(what) + ": " + std::strerror(errno); }

bool write_line(const std::string& file, const std::string& text) {
  return static_cast<bool>(std::ofstream(file) << text << std::flush);
}

/// Maps the user ids of a process by a child that is still root, since a user may not map itself to another number.
class IdMapper {
 public:
  explicit IdMapper(uid_t user) {
    const pid_t mapped = ::getpid();
    if (::pipe2(told_.data(), O_CLOEXEC) != 0 || (pid_ = ::fork()) != 0) return;
    ::close(told_[1]);
    char word = 0;
    const bool is_told = ::read(told_[0], &word, 1) == 1;
    ::_exit(is_told && map(mapped, user) ? 0 : 1);
  }
  ~IdMapper() {
    ::close(told_[0]);
    ::close(told_[1]);
    if (pid_ > 0) ::waitpid(pid_, nullptr, 0);
  }
  IdMapper(const IdMapper&) = delete;
  IdMapper& operator=(const IdMapper&) = delete;

  bool map() {
    int status = 1;
    if (::write(told_[1], "x", 1) != 1 || ::waitpid(pid_, &status, 0) != pid_) return false;
    pid_ = 0;
    return status == 0;
  }

 private:
  static bool map(pid_t process, uid_t user) {
    const std::string directory = "/proc/" + std::to_string(process) + "/";
    const std::string line = std::to_string(kNobody) + " " + std::to_string(user) + " 1";
    return write_line(directory + "setgroups", "deny") && write_line(directory + "uid_map", line) &&
           write_line(directory + "gid_map", line);
  }

  std::array<int, 2> told_{-1, -1};
  pid_t pid_ = 0;
};

/// Changes the user of this process, and makes it dumpable again, without which root would own its files in /proc.
bool become(uid_t user) {
  return ::setresgid(user, user, user) == 0 && ::setresuid(user, user, user) == 0 &&
         ::prctl(PR_SET_DUMPABLE, 1) == 0;
}

}  // namespace

std::string try_become_nobody(uid_t user) {
  IdMapper mapper(user);
  if (::setgroups(0, nullptr) != 0 || !become(user)) return refused("another user");
  if (::unshare(CLONE_NEWUSER) != 0) return refused("a user namespace");
  if (!mapper.map()) return "the user namespace could not be mapped";
  if (!become(kNobody)) return refused("nobody");
  return {};
}

}  // namespace onecopy::testing
