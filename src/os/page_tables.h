// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>

#include "os/crew.h"

namespace onecopy {

/// A few threads that enter present pages of a shared mapping into this process's page tables, in ascending order,
/// while the caller has a driver pin the pages. The driver alone would fault page by page, in one thread. The threads
/// only save time, and do nothing before Linux 5.14.
///
/// Thread safety: created and destroyed by one thread; the destructor waits for the threads.
class PageTableFiller {
 public:
  PageTableFiller(std::byte* at, std::size_t bytes);

 private:
  void work() noexcept;

  std::byte* const at_;
  const std::size_t bytes_;
  std::atomic<std::size_t> next_{0};
  const Crew crew_;
};

}  // namespace onecopy
