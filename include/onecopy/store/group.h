// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "onecopy/core/api.h"
#include "onecopy/core/error.h"
#include "onecopy/store/store.h"

ONECOPY_API_BEGIN
namespace onecopy::store {

/// The number of hosts that must have a version before it becomes current.
struct Everywhere {
  std::size_t hosts = 0;  ///< 0: all members of the group
  std::chrono::nanoseconds timeout = std::chrono::seconds(60);
};

/// A host of a group, and what it has of an object.
struct GroupHost {
  std::string name, address;
  bool is_member = false;
  bool is_present = false;    ///< the host has reached etcd within the last ten seconds
  std::uint64_t version = 0;  ///< the version that is whole there; 0: none, or the object is deleted
  bool is_current = false;    ///< the host shows that version; otherwise it is about to
  std::uint64_t bytes = 0;
  std::string problem;  ///< why the host cannot have the version that is published
};

/// The hosts that have the same objects in their stores: those on which `onecopy store serve --group` runs, which etcd knows.
///
/// All hosts show the versions of an object in the same order. A version becomes current once the hosts that its publisher
/// waits for have it whole; others show it later, and may skip versions. A host never shows an older version after a newer one, unless rollback()
/// was called.
///
/// Thread safety: none; copies may be used concurrently. Members throw invalid_argument if this host belongs to no group;
/// peer_died if etcd cannot be reached, timeout if it does not answer in time, as without a leader; system, with etcd's own words, if it refuses; closed, with the reason, while this host changes nothing.
class Group {
 public:
  explicit Group(Store store) noexcept : store_(std::move(store)) {}

  /// Returns the name of the group of this host; nothing if it belongs to none.
  std::optional<std::string> name();
  /// Returns whether the versions of an object come from the group. Publish, roll back and remove the object by this class then.
  bool has(const std::string& object);

  /// Makes a draft the current version of its object on all hosts, and returns its number. REQUIRES: no process writes to the
  /// draft, which cannot be used afterwards.
  ///
  /// Throws superseded if the object has changed meanwhile; timeout, with the names of the hosts that do not have the version yet, or because etcd did not answer: only then, and the text says so, the version may become current. Throws the error of
  /// the first host that cannot have the version, such as out_of_memory. Throws unsupported for memory of a card.
  std::uint64_t publish(Draft draft, const Everywhere& everywhere = {});
  /// Copies the tensors into a version in memory of the host, and publishes the version. Throws what the other publish() throws.
  std::uint64_t publish(const std::string& object, std::span<const NamedTensor> tensors,
                        const PublishOptions& options = {}, const Everywhere& everywhere = {});
  /// Makes an earlier version, which this host has, current again on all hosts. Throws stale_handle, superseded, timeout.
  void rollback(const std::string& object, std::uint64_t number,
                std::chrono::nanoseconds timeout = std::chrono::seconds(60));
  /// Deletes an object on all hosts. Throws stale_handle, superseded, timeout.
  void remove(const std::string& object, std::chrono::nanoseconds timeout = std::chrono::seconds(60));

  std::vector<GroupHost> hosts(const std::string& object);
  /// Returns the time since etcd has last answered this host; nothing if it never has.
  std::optional<std::chrono::nanoseconds> age();
  /// Returns why this host changes nothing; empty if it does.
  std::string problem();

  /// Makes a host leave the group: publishers wait for it no longer. Throws invalid_argument for a host that is not a member.
  void leave(const std::string& host = {});
  /// Makes this host leave its group, if it is a member of one, and ends the keeper as Store::stop() does. A host that does not reach
  /// etcd stays a member, which a warning says.
  void stop();
  /// Writes what the hosts remember into etcd, which has lost it. Returns the hosts that were heard.
  std::vector<std::string> restore();

 private:
  struct Link;
  Link link(bool changes);
  void change(const std::string& object, std::uint64_t number, std::chrono::nanoseconds timeout);

  Store store_;
};

}  // namespace onecopy::store
ONECOPY_API_END
