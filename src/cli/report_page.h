// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "onecopy/share/stats.h"
#include "owner_table.h"

namespace onecopy::cli {

/// The result of one look at all processes.
struct Look {
  double seconds = 0;  ///< since the first look
  std::vector<ListedOwner> owners;
  std::vector<SilentOwner> silent;
};

/// The part of a look that is kept: the memory of each owner by its pid.
struct Moment {
  double seconds = 0;
  std::map<int, std::uint64_t> memory;
};

/// Fit for the text and the attributes of HTML.
std::string html(std::string_view text);

/// "1 process", "2 processes".
std::string processes(std::uint64_t count);

/// One page that needs nothing else: no network, no script. `title` says where and when it was made. The page lists
/// the last look, and draws the past. REQUIRES: at least one moment.
std::string report_page(const Look& last, const std::vector<Moment>& past, const std::string& title);

}  // namespace onecopy::cli
