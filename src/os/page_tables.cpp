// SPDX-License-Identifier: Apache-2.0
#include "os/page_tables.h"

#include <sys/mman.h>

#include <algorithm>

#include "os/process.h"

namespace onecopy {

namespace {

/// The bytes of one step, few so that the front, where the driver begins, is ready soon.
constexpr std::size_t kPiece = std::size_t{2} << 20;

std::size_t threads_for(std::size_t bytes) {
  constexpr std::size_t kBytesPerThread = std::size_t{16} << 20;
  constexpr std::size_t kMaxThreads = 16;
  const auto cpus = static_cast<std::size_t>(std::max(1, usable_cpus()));
  return std::min({bytes / kBytesPerThread, kMaxThreads, cpus});
}

}  // namespace

PageTableFiller::PageTableFiller(std::byte* at, std::size_t bytes)
    : at_(at), bytes_(bytes), crew_(threads_for(bytes), [this] { work(); }) {}

/// Faults pages in for reading, which also maps the pages around and takes a third of the time of faulting for writing.
/// A writable mapping of shared memory is writable afterwards all the same, because the system does not track writes to
/// it.
void PageTableFiller::work() noexcept {
  constexpr int kPopulateRead = 22;  // MADV_POPULATE_READ, Linux 5.14
  for (std::size_t begin = next_.fetch_add(kPiece); begin < bytes_; begin = next_.fetch_add(kPiece))
    if (::madvise(at_ + begin, std::min(kPiece, bytes_ - begin), kPopulateRead) != 0) return;
}

}  // namespace onecopy
