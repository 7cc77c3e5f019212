// SPDX-License-Identifier: Apache-2.0
#include "store/ferry/local_versions.h"

#include <algorithm>

#include "onecopy/core/error.h"
#include "store/format/message.h"

namespace onecopy::store::ferry {

LocalVersions LocalVersions::of(Client& client, const std::string& name) {
  LocalVersions found;
  for (List from{name, 0};;) {
    const auto listing = client.ask<Listing>(from);
    if (listing.objects.empty() || listing.objects.front().name != name) return found;
    const ListedObject& object = listing.objects.front();
    found.current = object.current;
    for (const ListedVersion& version : object.versions) {
      found.newest = std::max(found.newest, version.number);
      if (version.is_here) found.numbers.push_back(version.number);
    }
    from.number = object.versions.back().number;
  }
}

std::optional<Token> token_of(Client& client, const std::string& name, std::uint64_t number) {
  try {
    return client.open(name, number, nullptr, Deadline::after(kKeeperPatience))->version().token;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::stale_handle) throw;
    return {};
  }
}

}  // namespace onecopy::store::ferry
