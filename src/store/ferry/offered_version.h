// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "onecopy/store/store.h"
#include "os/mapping.h"
#include "store/client/client.h"
#include "store/ferry/arrival.h"
#include "store/ferry/messages.h"

namespace onecopy::store::ferry {

/// A version of this host's store as another host sees it: whole, or still arriving here. The version stays readable as long
/// as the object lives, whatever is published, rolled back or removed meanwhile.
///
/// Thread safety: const members may be called concurrently.
class OfferedVersion {
 public:
  /// Returns the version of that number, and for 0 the newest one: the current version, or one with a larger number that is
  /// arriving. Throws stale_handle if there is none, and unsupported for one that does not go to other hosts.
  static OfferedVersion find(Store& store, Client& client, const std::string& name, std::uint64_t number);

  const Token& origin() const noexcept { return told_.version; }
  /// Returns what a host is told of the version.
  const Told& told() const noexcept { return told_; }
  std::uint64_t chunks() const noexcept { return chunks_of(bytes_); }
  /// Returns whether the chunk is whole here.
  bool has(std::uint64_t chunk) const noexcept;
  ByteSpan chunk(std::uint64_t chunk) const noexcept;
  /// Returns all bytes if the memory is sealed; nothing while the version arrives.
  ByteSpan sealed() const noexcept { return {data_, version_ ? bytes_ : 0}; }

 private:
  OfferedVersion() = default;
  static OfferedVersion whole(Store& store, Client& client, const std::string& name, std::uint64_t number);
  static std::optional<OfferedVersion> arriving(Client& client, const std::string& name,
                                                std::uint64_t beyond);

  Told told_;
  std::uint64_t bytes_ = 0;
  std::optional<Version> version_;  ///< of one that is whole
  Mapping memory_, arrived_;        ///< of one that arrives
  const std::byte* data_ = nullptr;
};

}  // namespace onecopy::store::ferry
