// SPDX-License-Identifier: Apache-2.0
#include "store/ferry/origins.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <span>
#include <vector>

#include "onecopy/core/error.h"
#include "store/client/group_mark.h"

namespace onecopy::store::ferry {
namespace {

constexpr std::size_t kMaxRead = 1024;  ///< pairs; older ones are of no use

}  // namespace

Origins::Origins(const std::string& home, const std::string& name) {
  path_ = file_about(home, "pulled", name);
}

bool Origins::try_lock() {
  if (file_) return true;
  Fd file(::open(path_.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, S_IRUSR | S_IWUSR));
  if (!file) throw_errno(fmt::format("cannot open {}", path_), errno);
  if (::flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) return false;
    throw_errno(fmt::format("cannot lock {}", path_), errno);
  }
  file_ = std::move(file);
  return true;
}

/// Removes the part of a pair that a full disk took, which would shift all pairs behind it.
void Origins::add(const Pair& pair) {
  const off_t whole = size() / static_cast<off_t>(sizeof pair) * static_cast<off_t>(sizeof pair);
  const bool is_whole = size() == whole || ::ftruncate(file_.get(), whole) == 0;
  const ssize_t written = is_whole ? ::write(file_.get(), &pair, sizeof pair) : -1;
  if (written == sizeof pair) return;
  throw_errno(fmt::format("cannot write {}", path_), written < 0 ? errno : ENOSPC);
}

std::vector<Origins::Pair> Origins::pairs() const {
  const Fd file(::open(path_.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) return {};
  const off_t size = std::max<off_t>(::lseek(file.get(), 0, SEEK_END), 0);
  const std::size_t all = static_cast<std::size_t>(size) / sizeof(Pair), count = std::min(all, kMaxRead);
  std::vector<Pair> pairs(count);
  const auto want = static_cast<ssize_t>(count * sizeof(Pair));
  if (::pread(file.get(), pairs.data(), static_cast<std::size_t>(want),
              static_cast<off_t>((all - count) * sizeof(Pair))) != want)
    return {};
  return pairs;
}

Token Origins::origin_of(const Token& local) const {
  const auto all = pairs();
  const auto at = std::ranges::find(all, local, &Pair::local);
  return at == all.end() ? local : at->origin;
}

std::int64_t Origins::size() const noexcept {
  struct stat status {};
  return ::stat(path_.c_str(), &status) == 0 ? status.st_size : 0;
}

std::optional<Origins::Pair> Origins::last() const {
  const auto all = pairs();
  return all.empty() ? std::nullopt : std::optional(all.back());
}

}  // namespace onecopy::store::ferry
