// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>

#include "os/fd.h"

namespace onecopy {

/// A mapped shared-memory file whose pages are reserved and given back by hand.
struct FilePages {
  const Fd& fd;
  std::byte* base;  ///< where offset 0 of the file is mapped, writable
  std::size_t size;
  std::string where;  ///< appended to errors: the full place and the way out; may be empty
  bool ours = true;   ///< no other process puts pages into it
};

/// Reserves and maps pages for [offset, offset + bytes); present pages stay as they are. Afterwards touching them
/// cannot fail and does not fault. Asks the memory limits first, since a control group kills instead of refusing.
/// Tells the thread's ReserveListener after each 64 MiB.
///
/// Throws out_of_memory with the numbers, and the listener's exceptions. Then the pages reserved by this call are
/// given back, unless others may have filled them.
void reserve_pages(const FilePages& file, std::size_t offset, std::size_t bytes);

/// Bytes of the file's pages that are there; `size` if the system does not say.
std::size_t present_pages(const Fd& fd, std::size_t size) noexcept;

/// Gives the pages back to the system; they read as zeros afterwards.
void give_back_pages(const Fd& fd, std::size_t offset, std::size_t bytes) noexcept;

}  // namespace onecopy
