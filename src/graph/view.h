// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <set>

#include "device/backend.h"
#include "device/reservation.h"
#include "graph/page.h"
#include "onecopy/graph/arena.h"

namespace onecopy::graph {

using Chunks = std::map<std::size_t, std::unique_ptr<PhysicalChunk>>;

/// The addresses and pages of a window.
struct Arena::View {
  std::shared_ptr<Reservation> addresses;  // shared by all windows where memory has one address
  std::size_t max_bytes = 0;               // the max size in bytes
  std::size_t bytes = 0;
  std::size_t end = 0;               // the end of its last page
  std::set<std::size_t> in_parts{};  // the pages that the window maps in parts, by offset
  Chunks own{};                      // the parts that belong to the window alone, by offset

  bool shows(const Page& page) const { return page.offset() < end; }
  bool shows_whole(const Page& page) const { return shows(page) && !in_parts.contains(page.offset()); }

  std::size_t own_bytes() const {
    std::size_t sum = 0;
    for (const auto& [offset, chunk] : own) sum += chunk->size();
    return sum;
  }
};

}  // namespace onecopy::graph
