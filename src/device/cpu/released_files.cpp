// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <new>
#include <string>
#include <utility>
#include <vector>

#include "device/janitor.h"
#include "named_file_memory.h"
#include "os/mutex.h"

namespace onecopy {

namespace {

/// The files that other processes had mapped when this process released them. The last holder unlinks a file, but a
/// forked child holds its parent's files and may be killed or leave by _exit, and then the file would stay.
///
/// Thread safety: all members may be called concurrently and never wait, because a child forked during a call must not
/// hang. A file that is not noted for that reason is left to the next process that starts.
class ReleasedFiles {
 public:
  void add(std::string path) noexcept {
    if (!mutex_.try_lock()) return;
    const LockGuard lock(mutex_, std::adopt_lock);
    try {
      files_.push_back({std::move(path), kTries});
    } catch (const std::bad_alloc&) {  // the file is left to the next process that starts
    }
  }

  bool retry() noexcept {
    if (!mutex_.try_lock()) return false;
    const LockGuard lock(mutex_, std::adopt_lock);
    std::erase_if(files_, [](const File& file) { return is_done(file.path); });
    bool soon = false;
    for (File& file : files_)
      if (file.tries > 0) soon = --file.tries > 0 || soon;
    return soon;
  }

 private:
  struct File {
    std::string path;
    int tries;  ///< tries left before the file can wait: another process uses it, perhaps for days
  };
  static constexpr int kTries = 250;  // five seconds of tries, every 20 ms

  static bool is_done(const std::string& path) noexcept {
    return unlink_if_unused(path) >= 0 || ::access(path.c_str(), F_OK) != 0;
  }

  Mutex mutex_;
  std::vector<File> files_ GUARDED_BY(mutex_);
};

ReleasedFiles& released_files() {
  static auto& files = *new ReleasedFiles;  // segments of static objects are released after static objects
  return files;
}

}  // namespace

void unlink_once_unused(std::string path) noexcept {
  if (unlink_if_unused(path) >= 0 || ::access(path.c_str(), F_OK) != 0) return;
  released_files().add(std::move(path));
  if (on_file_left) on_file_left();
}

bool remove_released_files() noexcept { return released_files().retry(); }

}  // namespace onecopy
