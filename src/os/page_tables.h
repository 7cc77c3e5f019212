// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>

#include "os/crew.h"

namespace onecopy {

/// Enters present pages of a shared mapping into this process's page tables, by a few threads and in ascending order,
/// while the caller has a driver pin them. The driver would fault page by page, in one thread. Only for speed: has no
/// effect before Linux 5.14.
///
/// Thread safety: made and destroyed by one thread; destroying it waits for the others.
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
