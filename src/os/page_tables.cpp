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

PageTableFiller::PageTableFiller(std::byte* at, std::size_t bytes, int advice)
    : at_(at), bytes_(bytes), advice_(advice), crew_(threads_for(bytes), [this] { help(); }) {}

void PageTableFiller::help() noexcept {
  for (std::size_t begin = next_.fetch_add(kPiece); begin < bytes_; begin = next_.fetch_add(kPiece))
    if (::madvise(at_ + begin, std::min(kPiece, bytes_ - begin), advice_) != 0) return;
}

}  // namespace onecopy
