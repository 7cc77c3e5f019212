// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "onecopy/share/stats.h"
#include "onecopy/store/store.h"
#include "owner_table.h"

namespace onecopy::cli {

/// The result of one look at all processes.
struct Look {
  double seconds = 0;  ///< the time since the first look
  std::vector<ListedOwner> owners;
  std::vector<SilentOwner> silent;
  std::vector<store::ObjectInfo> objects;  ///< the objects of the store
};

/// The part of a look that is remembered: the memory of each owner by its pid.
struct Moment {
  double seconds = 0;
  std::map<int, std::uint64_t> memory;
};

/// Escapes the text for the content and the attributes of HTML.
std::string html(std::string_view text);

/// Returns a self-contained page without scripts. `title` says where and when it was made. The page lists the last look
/// and draws the past. REQUIRES: at least one moment.
std::string report_page(const Look& last, const std::vector<Moment>& past, const std::string& title);

}  // namespace onecopy::cli
