// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>

#include "os/fd.h"

namespace onecopy {

/// A mapped shared-memory file whose pages are reserved and given back explicitly.
struct FilePages {
  const Fd& fd;
  std::byte* base;  ///< where offset 0 of the file is mapped, writable; null if it is not mapped
  std::size_t size;
  std::string where;  ///< appended to errors: the directory that is full and the remedy; may be empty
  bool ours = true;   ///< no other process adds pages to it
};

/// Reserves pages, and enters them into the mapping if there is one, for [offset, offset + bytes); present pages stay as
/// they are. A later access cannot fail and does not fault. Checks the memory limits first, because a control group kills processes instead of refusing.
/// Notifies the thread's ReserveListener after each 16 MiB or more, while other threads continue.
///
/// Throws out_of_memory with the numbers, and the listener's exceptions; the pages that this call reserved are given
/// back then, unless other processes may have filled them.
void reserve_pages(const FilePages& file, std::size_t offset, std::size_t bytes);

/// Returns the bytes of the file that have pages; `size` if the system does not report them.
std::size_t present_pages(const Fd& fd, std::size_t size) noexcept;

/// Gives the pages back to the system; they read as zeros afterwards.
void give_back_pages(const Fd& fd, std::size_t offset, std::size_t bytes) noexcept;

}  // namespace onecopy
