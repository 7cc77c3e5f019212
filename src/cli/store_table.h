// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "onecopy/store/store.h"

namespace onecopy::cli {

/// The store of this user at one moment.
struct StoreState {
  std::optional<store::KeeperInfo> keeper;  ///< empty if there is none; then there are no objects
  std::string home;                         ///< the directory in which the keeper listens
  std::string ends_with;                    ///< what_ends() of the keeper
  std::string log;  ///< the file to which the keeper logs; empty if it has none of its own
  std::optional<std::uint64_t> max_bytes;  ///< UINT64_MAX for no limit; empty if the keeper does not tell
  std::vector<store::ObjectInfo> objects;
  std::map<std::string, std::vector<store::KvPoolStats>> kv_pools;  ///< the namespaces of each KV pool
  /// The memory of KV pools that have outlived their keeper, by the path of their files without endings.
  std::map<std::string, std::uint64_t> kept_files;
  bool has_kept(const std::string& name) const;  ///< whether that KV pool is one of them
  std::string problem;  ///< why the keeper was not asked; empty if it answered, or there is none
};

/// Asks the keeper, if there is one. Starts no keeper. Throws timeout, which names the keeper's processes; other_user, system if
/// none could be started, because the store's directory cannot be used.
StoreState store_state(std::chrono::seconds patience = std::chrono::seconds(10));
/// Asks the keeper for two seconds at most, and tells of what store_state() throws as a problem.
StoreState poll_store();

/// Returns a line for each KV pool that has outlived its keeper.
std::string kept_lines(const StoreState& state);
/// Returns the same for programs.
nlohmann::json json_of_kept(const StoreState& state);

/// Returns a line about the keeper, and how long it lives.
std::string keeper_line(const StoreState& state);

/// Versions and their bytes.
struct VersionSum {
  std::size_t versions = 0;
  std::uint64_t bytes = 0;

  void add(const store::VersionInfo& version) noexcept {
    ++versions;
    bytes += version.bytes;
  }
  std::string str() const;  ///< "2 versions, 2.0 MiB"
};

/// Returns what the store holds of an object, or the versions of a former keeper that it still awaits.
VersionSum sum_of(const store::ObjectInfo& object, bool awaited = false);

/// A sum of the versions for each fate that they have when the keeper ends.
struct Fates {
  VersionSum lost;
  VersionSum open;   ///< processes have them open
  VersionSum files;  ///< KV pools in files, which outlive the keeper
};
Fates fates(const StoreState& state);

/// Returns a line about what the store holds: "1 object, 2 versions, 2.0 MiB of max 4.0 MiB", and a line
/// about awaited versions.
std::string sum_lines(const StoreState& state);

/// Returns a table with a line for each version, in which * marks the current one. REQUIRES: at least one object.
std::string store_table(const std::vector<store::ObjectInfo>& objects, std::size_t width);

/// Returns an object with the keeper, or null, and the objects.
nlohmann::json json_of(const StoreState& state);

}  // namespace onecopy::cli
