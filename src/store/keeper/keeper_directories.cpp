// SPDX-License-Identifier: Apache-2.0
#include "store/keeper/keeper_directories.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <exception>

#include <fmt/format.h>

#include "onecopy/core/error.h"
#include "os/file.h"
#include "os/log.h"
#include "store/format/message.h"

namespace onecopy::store {
namespace {

constexpr int kBacklog = 1024;

bool is_socket(int fd) noexcept {
  struct stat status {};
  return ::fstat(fd, &status) == 0 && S_ISSOCK(status.st_mode);
}

}  // namespace

KeeperDirectories::KeeperDirectories(StoreDirectories directories, const std::string& home,
                                     std::vector<Fd> descriptors)
    : KeeperDirectories(std::move(directories)) {
  directories_.begin_with(home);
  locks_.resize(directories_.all().size());
  adopt(std::move(descriptors));
}

bool KeeperDirectories::try_take() {
  if (lock_directories(true) && lock_files() && take_bell()) return true;
  for (Fd& lock : locks_) lock.reset();
  kept_.clear();
  return false;
}

/// Locks the last directory first, because that is the one which all keepers of the user want. Returns false if another process
/// has the lock of a directory. At the start, throws if the directory that the user asked for cannot be made, or none can.
bool KeeperDirectories::lock_directories(bool is_start) {
  const auto& all = directories_.all();
  bool is_ours = true;
  std::exception_ptr problem;
  for (std::size_t i = all.size(); i-- > 0;) {
    try {
      all[i].ensure();
      if (locks_[i] && all[i].is_locked_by(locks_[i])) continue;
      locks_[i] = all[i].try_lock();
      is_ours = is_ours && locks_[i];
    } catch (const Error& error) {
      locks_[i].reset();
      if (!problem) problem = std::current_exception();
      if (is_start && i == 0 && directories_.is_first_required()) throw;
      log_debug([&] { return std::string("the store is not found in a directory: ") + error.what(); });
    }
  }
  const auto first = std::find_if(locks_.begin(), locks_.end(), [](const Fd& fd) { return bool(fd); });
  if (first == locks_.end() && is_start && is_ours) std::rethrow_exception(problem);
  if (first != locks_.end() && !locks_[home_]) home_ = static_cast<std::size_t>(first - locks_.begin());
  return is_ours;
}

/// Locks the file that keepers of earlier versions lock instead of the directory. Returns false if one of them lives.
bool KeeperDirectories::lock_files() {
  for (std::size_t i = 0; i < locks_.size(); ++i) {
    if (!locks_[i]) continue;
    kept_.push_back(open_file(directories_.all()[i].path() + "/lock", O_RDWR | O_CREAT));
    if (::flock(kept_.back().get(), LOCK_EX | LOCK_NB) != 0) return false;
  }
  return true;
}

/// Finds the directory in which another process has made the socket itself, not a link to it.
void KeeperDirectories::find_home() noexcept {
  const auto& all = directories_.all();
  for (std::size_t i = 0; i < all.size(); ++i) {
    struct stat status {};
    const std::string path = all[i].socket().text;
    if (!locks_[i] || ::lstat(path.c_str(), &status) != 0 || !S_ISSOCK(status.st_mode)) continue;
    home_ = i;
    socket_ = file_at(path);
    return;
  }
}

/// Returns false if another keeper of this user has the abstract name. Does without the name if another user has it.
bool KeeperDirectories::take_bell() {
  const std::string name = directories_.bell();
  if (name.empty()) return true;
  try {
    bell_ = UnixSocket::listen({name, true});
    return true;
  } catch (const Error& error) {
    const auto user = listening_user(name);
    if (!user || *user == ::geteuid()) return false;
    log_warning("user {} has the name of the store's keeper: {}", *user, error.what());
    return true;
  }
}

std::pair<UnixSocket, Digest> KeeperDirectories::listen() {
  UnixSocket listener = bind();
  const Digest secret = home().make_secret();
  link_others(secret);
  return {std::move(listener), secret};
}

/// Returns a listener whose file stays when this process ends.
UnixSocket KeeperDirectories::bind() {
  struct stat status {};
  const bool exists = ::lstat(home().socket().text.c_str(), &status) == 0;
  if (exists && S_ISLNK(status.st_mode))
    home().remove_socket();  // of an earlier keeper, or to an earlier home
  UnixSocket listener = UnixSocket::listen(home().socket(), kBacklog, true);
  socket_ = file_at(home().socket().text);
  return UnixSocket(listener.release());
}

KeeperDirectories::State KeeperDirectories::poll(std::optional<UnixSocket>& listener,
                                                 const Digest& secret) {
  const std::size_t before = home_;
  lock_directories(false);
  if (!locks_[home_]) return State::lost;
  if (home_ == before && leads_here(home(), secret)) {
    link_others(secret);
    return State::whole;
  }
  if (home_ != before || file_at(home().socket().text) != socket_) listener = bind();
  home().write_secret(secret);
  link_others(secret);
  log_warning("the store's keeper has made its directory {} again", home().path());
  return State::made_again;
}

std::string KeeperDirectories::index() const {
  std::string newest = home().path() + "/index";
  timespec last{};
  for (std::size_t i = 0; i < locks_.size(); ++i) {
    struct stat status {};
    const std::string path = directories_.all()[i].path() + "/index";
    if (!locks_[i] || ::stat(path.c_str(), &status) != 0) continue;
    if (std::pair(status.st_mtim.tv_sec, status.st_mtim.tv_nsec) <= std::pair(last.tv_sec, last.tv_nsec))
      continue;
    last = status.st_mtim;
    newest = path;
  }
  return newest;
}

void KeeperDirectories::answer_bell() {
  try {
    while (auto caller = bell_.try_accept())
      if (caller->peer().is_our_user) caller->try_send(pack(Done{}));
  } catch (const Error& error) {
    log_debug([&] { return fmt::format("the store's keeper cannot answer: {}", error.what()); });
  }
}

void KeeperDirectories::leave() const noexcept {
  for (std::size_t i = 0; i < locks_.size(); ++i)
    if (locks_[i]) directories_.all()[i].remove_socket();
}

std::vector<int> KeeperDirectories::descriptors() const {
  std::vector<int> fds;
  if (bell_) fds.push_back(bell_.fd());
  for (const auto* const locks : {&locks_, &kept_})
    for (const Fd& lock : *locks)
      if (lock) fds.push_back(lock.get());
  return fds;
}

void KeeperDirectories::adopt(std::vector<Fd> descriptors) {
  kept_.clear();
  const auto& all = directories_.all();
  for (Fd& fd : descriptors) {
    if (is_socket(fd.get())) {
      bell_ = UnixSocket(std::move(fd));
      continue;
    }
    const auto directory =
        std::find_if(all.begin(), all.end(), [&](const StoreDirectory& p) { return p.is_locked_by(fd); });
    if (directory == all.end()) kept_.push_back(std::move(fd));
    else locks_[static_cast<std::size_t>(directory - all.begin())] = std::move(fd);
  }
  find_home();
}

std::optional<KeeperDirectories::File> KeeperDirectories::file_at(const std::string& path) noexcept {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return std::nullopt;
  return File{status.st_dev, status.st_ino};
}

bool KeeperDirectories::leads_here(const StoreDirectory& directory, const Digest& secret) const noexcept {
  try {
    return socket_ && file_at(directory.socket().text) == socket_ && directory.secret() == secret;
  } catch (const Error&) {
    return false;
  }
}

void KeeperDirectories::link_others(const Digest& secret) const {
  for (std::size_t i = 0; i < locks_.size(); ++i) {
    if (i == home_ || !locks_[i] || leads_here(directories_.all()[i], secret)) continue;
    try {
      directories_.all()[i].link_to(home());
    } catch (const Error& error) {
      log_debug([&] { return std::string("the store's keeper leaves no link: ") + error.what(); });
    }
  }
}

}  // namespace onecopy::store
