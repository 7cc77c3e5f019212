// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>

#include "os/crew.h"

namespace onecopy {

/// A few threads that enter pages of a mapping into this process's page tables or take them out, in ascending order, while
/// the caller uses them or has a driver pin them: one thread alone would fault page by page. The threads only save time,
/// and enter nothing before Linux 5.14.
///
/// Thread safety: created and destroyed by one thread; the destructor waits for the threads.
class PageTableFiller {
 public:
  /// The advice of madvise(2) for present pages of shared memory. Faulting for reading also maps the pages around and
  /// takes a third of the time of faulting for writing. A writable mapping of shared memory is writable afterwards all
  /// the same, because the system does not track writes to it.
  static constexpr int kPresent = 22;  // MADV_POPULATE_READ
  /// The advice for pages that may have no memory yet.
  static constexpr int kAbsent = 23;  // MADV_POPULATE_WRITE
  /// The advice for pages of shared memory that will be unmapped, which is quick afterwards.
  static constexpr int kUnused = 4;  // MADV_DONTNEED

  PageTableFiller(std::byte* at, std::size_t bytes, int advice = kPresent);
  /// Lets the calling thread do what is left.
  void help() noexcept;

 private:
  std::byte* const at_;
  const std::size_t bytes_;
  const int advice_;
  std::atomic<std::size_t> next_{0};
  const Crew crew_;
};

}  // namespace onecopy
