// SPDX-License-Identifier: Apache-2.0
#include "os/unshared_descriptor.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "os/fork_hook.h"
#include "os/mutex.h"

namespace onecopy {
namespace {

/// The descriptors that are kept from children, locked across a fork. The object is never destroyed, because
/// descriptors of other static objects may outlive it.
struct Numbers {
  Mutex mutex;
  std::vector<int> all GUARDED_BY(mutex);
};

Numbers& numbers() {
  static Numbers* const made = new Numbers;
  return *made;
}

// The fork happens between these two calls, which the analysis cannot follow.
void lock_numbers() NO_THREAD_SAFETY_ANALYSIS { numbers().mutex.lock(); }
void unlock_numbers() NO_THREAD_SAFETY_ANALYSIS { numbers().mutex.unlock(); }

/// Replaces the parent's descriptors in the child. A number stays taken until its owner closes it. If not even one more
/// descriptor can be opened, the child keeps all of them.
void leave_to_parent() NO_THREAD_SAFETY_ANALYSIS {
  std::vector<int>& all = numbers().all;
  const int nothing = all.empty() ? -1 : ::open("/dev/null", O_RDWR | O_CLOEXEC);
  if (nothing >= 0) {
    for (const int fd : all) ::dup3(nothing, fd, O_CLOEXEC);
    ::close(nothing);
  }
  all.clear();
  unlock_numbers();
}

const ForkHook kNumbersAtFork{ForkRank::leaves, {&lock_numbers, &unlock_numbers, &leave_to_parent}};

}  // namespace

UnsharedDescriptor::UnsharedDescriptor(int fd) : fd_(fd) {
  Numbers& known = numbers();
  const LockGuard lock(known.mutex);
  known.all.push_back(fd);
}

UnsharedDescriptor::~UnsharedDescriptor() {
  if (fd_ < 0) return;
  Numbers& known = numbers();
  const LockGuard lock(known.mutex);
  if (const auto at = std::find(known.all.begin(), known.all.end(), fd_); at != known.all.end())
    known.all.erase(at);
}

}  // namespace onecopy
