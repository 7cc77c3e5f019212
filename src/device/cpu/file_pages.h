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
  std::string where;  ///< appended to errors: what is full and the way out; may be empty
  bool ours = true;   ///< nobody else puts pages into it
};

/// Reserves and maps pages for [offset, offset + bytes), those that are there already staying as they
/// are. Afterwards touching them cannot fail and does not fault. Asks the memory limits first, since a
/// control group kills instead of refusing. Tells the thread's ReserveListener after each 64 MiB. Throws
/// out_of_memory with the numbers, and what the listener throws; what this call had reserved is given back then,
/// unless others may have filled it.
void reserve_pages(const FilePages& file, std::size_t offset, std::size_t bytes);

/// Gives the pages back to the system; they read as zeros afterwards.
void give_back_pages(const Fd& fd, std::size_t offset, std::size_t bytes) noexcept;

}  // namespace onecopy
