// SPDX-License-Identifier: Apache-2.0
#include "pinned_pages.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

namespace sim {

namespace {

constexpr std::size_t kPipeBytes = std::size_t{1} << 20;

bool open_pipe(int (&ends)[2]) {
  return ::pipe2(ends, O_CLOEXEC) == 0 && ::fcntl(ends[1], F_SETPIPE_SZ, static_cast<int>(kPipeBytes)) >= 0;
}

}  // namespace

/// As a driver pins them: pages that were never written would be the system's page of zeros, which a write replaces.
/// Memory that is mapped for reading only refuses this, and has its pages.
bool PinnedPages::take_all(void* at) {
  ::madvise(at, bytes_, MADV_POPULATE_WRITE);
  if (!open_pipe(held_) || !open_pipe(passed_)) return false;
  const iovec pages{at, bytes_};
  return ::vmsplice(held_[1], &pages, 1, SPLICE_F_NONBLOCK) == static_cast<ssize_t>(bytes_);
}

std::shared_ptr<PinnedPages> PinnedPages::take(void* at, std::size_t bytes) {
  if (bytes > kPipeBytes) return nullptr;
  std::shared_ptr<PinnedPages> pages(new PinnedPages(bytes));
  return pages->take_all(at) ? pages : nullptr;
}

PinnedPages::~PinnedPages() {
  for (const int fd : {held_[0], held_[1], passed_[0], passed_[1]})
    if (fd >= 0) ::close(fd);
}

/// Copies the pipe's references, and reads the copies away.
void PinnedPages::read(std::size_t from, std::byte* to, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  if (::tee(held_[0], passed_[1], bytes_, SPLICE_F_NONBLOCK) != static_cast<ssize_t>(bytes_)) return;
  std::vector<std::byte> all(bytes_);
  for (std::size_t done = 0; done < bytes_;) {
    const ssize_t count = ::read(passed_[0], all.data() + done, bytes_ - done);
    if (count <= 0) return;
    done += static_cast<std::size_t>(count);
  }
  std::copy_n(all.data() + from, bytes, to);
}

}  // namespace sim
