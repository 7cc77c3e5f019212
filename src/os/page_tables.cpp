// SPDX-License-Identifier: Apache-2.0
#include "os/page_tables.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>

#include "os/crew.h"
#include "os/process.h"

namespace onecopy {

/// Faults for reading map the pages around, too, and are a third of the time of those for writing. A writable mapping
/// of shared memory is writable afterwards all the same: the system does not follow writes to it.
void fill_page_tables(std::byte* at, std::size_t bytes) noexcept {
  constexpr int kPopulateRead = 22;  // MADV_POPULATE_READ, Linux 5.14
  constexpr std::size_t kPiece = std::size_t{16} << 20;
  constexpr std::size_t kMostThreads = 16;
  std::atomic<std::size_t> next{0};
  const auto work = [&] {
    for (std::size_t begin = next.fetch_add(kPiece); begin < bytes; begin = next.fetch_add(kPiece))
      if (::madvise(at + begin, std::min(kPiece, bytes - begin), kPopulateRead) != 0) return;
  };
  const auto cpus = static_cast<std::size_t>(std::max(1, usable_cpus()));
  const std::size_t threads = std::clamp<std::size_t>(bytes / kPiece, 1, std::min(kMostThreads, cpus));
  const Crew crew(threads - 1, work);
  work();
}

}  // namespace onecopy
