// SPDX-License-Identifier: Apache-2.0
#include "store/format/store_directory.h"

#include <fcntl.h>
#include <fmt/ranges.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "onecopy/core/error.h"
#include "os/file.h"
#include "os/random.h"
#include "os/replacing_file.h"

namespace onecopy::store {
namespace {

constexpr std::chrono::milliseconds kAnswer{2000};

/// Puts a link in the place of whatever is at `path`, at once.
void put_link(const std::string& target, const std::string& path) {
  const std::string fresh = path + ".new";
  ::unlink(fresh.c_str());
  if (::symlink(target.c_str(), fresh.c_str()) != 0)
    throw_errno(fmt::format("cannot make the link {}", path), errno);
  rename_over(fresh, path);
}

}  // namespace

void StoreDirectory::ensure() const {
  if (has_own_parent_) ensure_private_directory(directory_of(path_));
  ensure_private_directory(path_);
}

void StoreDirectory::check() const {
  std::string path = path_;
  for (int missing = 0; ::access(path.c_str(), F_OK) != 0; ++missing, path = directory_of(path))
    if (errno != ENOENT || missing > int{has_own_parent_})
      throw_errno(fmt::format("cannot create the directory {}", path_), errno);
  if (path == path_) return ensure_private_directory(path);  // it exists, so this makes nothing
  if (::access(path.c_str(), W_OK) != 0)
    throw_errno(fmt::format("cannot create a directory in {}", path), errno);
}

Fd StoreDirectory::try_lock() const {
  Fd fd = open_file(path_, O_RDONLY | O_DIRECTORY);
  if (::flock(fd.get(), LOCK_EX | LOCK_NB) == 0) return is_locked_by(fd) ? std::move(fd) : Fd();
  if (errno != EWOULDBLOCK) throw_errno(fmt::format("cannot lock {}", path_), errno);
  return Fd();
}

bool StoreDirectory::is_locked_by(const Fd& lock) const noexcept {
  struct stat named {
  }, locked{};
  return ::lstat(path_.c_str(), &named) == 0 && ::fstat(lock.get(), &locked) == 0 &&
         named.st_dev == locked.st_dev && named.st_ino == locked.st_ino;
}

Digest StoreDirectory::secret() const {
  Digest secret{};
  read_exactly(open_file(secret_path(), O_RDONLY), std::as_writable_bytes(std::span(secret)), 0);
  return secret;
}

Digest StoreDirectory::make_secret() const {
  Digest secret{};
  try {  // a link leads to the secret of an earlier keeper elsewhere
    read_exactly(open_file(secret_path(), O_RDONLY | O_NOFOLLOW), std::as_writable_bytes(std::span(secret)),
                 0);
  } catch (const Error&) {  // there is no secret, or only a part of one
    secret = random_value<Digest>();
    write_secret(secret);
  }
  return secret;
}

void StoreDirectory::write_secret(const Digest& secret) const {
  replace_file(secret_path(), std::as_bytes(std::span(secret)));
}

void StoreDirectory::link_to(const StoreDirectory& home) const {
  put_link(home.secret_path(), secret_path());
  put_link(home.socket().text, socket().text);
}

void StoreDirectory::remove_socket() const noexcept { ::unlink(socket().text.c_str()); }

StoreDirectories StoreDirectories::of_this_user() {
  const std::string own = directory_in("ONECOPY_STORE_DIR"), shared = directory_in("ONECOPY_RUNTIME_DIR");
  if (!own.empty()) return StoreDirectories(StoreDirectory(own));
  StoreDirectories directories;
  directories.environment_ = {"ONECOPY_STORE_DIR=", "ONECOPY_RUNTIME_DIR=" + shared};
  directories.is_first_required_ = !shared.empty();
  if (directories.is_first_required_) directories.all_.emplace_back(fmt::format("{}/store", shared), true);
  directories.all_.emplace_back(fmt::format("/run/user/{}/onecopy/store", ::geteuid()), true);
  directories.all_.emplace_back(fmt::format("/tmp/onecopy-store-{}", ::geteuid()));
  return directories;
}

StoreDirectories::StoreDirectories(StoreDirectory only)
    : all_{std::move(only)}, environment_{"ONECOPY_STORE_DIR=" + all_.front().path()} {}

void StoreDirectories::check() const { (is_first_required_ ? all_.front() : all_.back()).check(); }

void StoreDirectories::begin_with(const std::string& home) {
  struct stat wanted {
  }, known{};
  const auto is_home = [&](const StoreDirectory& directory) {
    return ::stat(directory.path().c_str(), &known) == 0 && known.st_dev == wanted.st_dev &&
           known.st_ino == wanted.st_ino;
  };
  if (::stat(home.c_str(), &wanted) != 0) throw_errno(fmt::format("cannot find {}", home), errno);
  if (std::none_of(all_.begin(), all_.end(), is_home)) all_.insert(all_.begin(), StoreDirectory(home));
}

/// Names the last directory by its parent's inode, because its own inode changes when it is removed, and
/// because the same path may be another directory in another mount namespace.
std::string StoreDirectories::bell() const {
  const std::string& last = all_.back().path();
  struct stat parent {};
  if (::stat(directory_of(last).c_str(), &parent) != 0) return {};
  const auto slash = last.rfind('/');
  const std::string key = fmt::format("{}:{}:{}", parent.st_dev, parent.st_ino,
                                      last.substr(slash == std::string::npos ? 0 : slash));
  const Digest digest = sha256(std::as_bytes(std::span(key)));
  return fmt::format("onecopy.keeper.{:02x}", fmt::join(std::span(digest).first(16), ""));
}

bool StoreDirectories::ring(Deadline deadline) const {
  const std::string name = bell();
  if (name.empty()) return false;
  try {
    const auto wait = deadline.whole_ms_left(kAnswer);
    UnixSocket socket = UnixSocket::connect({name, true}, wait);
    if (!socket.peer().is_our_user) return false;
    return !socket.receive(wait).bytes.empty();
  } catch (const Error&) {
    return false;
  }
}

}  // namespace onecopy::store
