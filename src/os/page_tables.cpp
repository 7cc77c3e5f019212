// SPDX-License-Identifier: Apache-2.0
#include "os/page_tables.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>

#include "os/crew.h"
#include "os/process.h"

namespace onecopy {

void fill_page_tables(std::byte* at, std::size_t bytes, Access access) noexcept {
  constexpr int kPopulateRead = 22;  // MADV_POPULATE_READ, Linux 5.14
  constexpr int kPopulateWrite = 23;
  constexpr std::size_t kPiece = std::size_t{16} << 20;
  constexpr std::size_t kMostThreads = 8;
  const int advice = access == Access::read_only ? kPopulateRead : kPopulateWrite;
  std::atomic<std::size_t> next{0};
  const auto work = [&] {
    for (std::size_t begin = next.fetch_add(kPiece); begin < bytes; begin = next.fetch_add(kPiece))
      if (::madvise(at + begin, std::min(kPiece, bytes - begin), advice) != 0) return;
  };
  const auto cpus = static_cast<std::size_t>(std::max(1, usable_cpus()));
  const std::size_t threads = std::clamp<std::size_t>(bytes / kPiece, 1, std::min(kMostThreads, cpus));
  const Crew crew(threads - 1, work);
  work();
}

}  // namespace onecopy
