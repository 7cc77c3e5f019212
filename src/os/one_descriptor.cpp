// SPDX-License-Identifier: Apache-2.0
#include "os/one_descriptor.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>

#include "onecopy/core/error.h"
#include "os/fork_hook.h"
#include "os/mutex.h"

namespace onecopy {
namespace {

struct OpenFile {
  std::uint64_t device, inode;
  int access;
  auto operator<=>(const OpenFile&) const = default;
};

/// The descriptors by file, locked across a fork. The object is never destroyed, because descriptors of other static
/// objects may outlive it.
struct Descriptors {
  Mutex mutex;
  std::map<OpenFile, std::weak_ptr<const Fd>> all GUARDED_BY(mutex);
  std::size_t max_size GUARDED_BY(mutex) = 64;  ///< at which files without a descriptor are forgotten
};

Descriptors& descriptors() {
  static Descriptors* const made = new Descriptors;
  return *made;
}

// The fork happens between these calls, which the analysis cannot follow.
void lock_descriptors() NO_THREAD_SAFETY_ANALYSIS { descriptors().mutex.lock(); }
void unlock_descriptors() NO_THREAD_SAFETY_ANALYSIS { descriptors().mutex.unlock(); }

const ForkHook kDescriptorsAtFork{ForkRank::leaves,
                                  {&lock_descriptors, &unlock_descriptors, &unlock_descriptors}};

OpenFile open_file_of(const Fd& fd) {
  struct stat status {};
  const int flags = ::fcntl(fd.get(), F_GETFL);
  if (flags < 0 || ::fstat(fd.get(), &status) != 0) throw_errno("cannot look at a descriptor", errno);
  return {status.st_dev, status.st_ino, flags & O_ACCMODE};
}

/// Returns whether the descriptor is still of that file: a program that closes all descriptors may have given its number to
/// another one.
bool is_of(const Fd& fd, const OpenFile& file) noexcept {
  try {
    return open_file_of(fd) == file;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

Fd one_descriptor_of(Fd fd) {
  const OpenFile file = open_file_of(fd);
  Descriptors& known = descriptors();
  const LockGuard lock(known.mutex);
  if (known.all.size() >= known.max_size) {
    std::erase_if(known.all, [](const auto& one) { return one.second.expired(); });
    known.max_size = std::max(known.max_size, 2 * known.all.size());
  }
  std::weak_ptr<const Fd>& place = known.all[file];
  std::shared_ptr<const Fd> owned = place.lock();
  if (!owned || !is_of(*owned, file)) place = owned = std::make_shared<const Fd>(std::move(fd));
  return Fd(std::move(owned));
}

}  // namespace onecopy
