// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace onecopy::store::group {

struct KeyValue {
  std::string key, value;
  std::int64_t changed = 0;  ///< the revision that changed it last; never 0
};

/// The keys from `from` to before `to`. An empty `to`: only the key `from`.
struct Keys {
  std::string from, to = {};
};

/// Changes that are carried out together, if all conditions hold.
struct Change {
  struct When {
    std::string key;
    std::int64_t changed = 0;  ///< as in KeyValue; 0: there is no such key
  };
  struct Put {
    std::string key, value;
    std::int64_t lease = 0;  ///< the key goes when the lease ends; 0: the key stays
  };
  std::vector<When> when;
  std::vector<Put> put;
  std::vector<std::string> remove;
};

/// A directory that the hosts of a group share, such as etcd. Members throw peer_died if the directory cannot be reached; timeout if it was
/// asked and has not answered, as while its members elect a leader, so that a change may have been carried out or not; system with the
/// directory's own words if it refused, and then nothing has changed; bad_secret for a wrong user or password.
///
/// Thread safety: none.
class Directory {
 public:
  Directory& operator=(Directory&&) = delete;
  virtual ~Directory() = default;

  /// Returns the keys of all elements at one moment, in the order of the elements and of the keys.
  virtual std::vector<KeyValue> read(const std::vector<Keys>& wanted) = 0;
  /// Returns whether the conditions held. REQUIRES: a change names a key once.
  virtual bool change(const Change& change) = 0;
  /// Returns a lease, which ends that time after its last renewal.
  virtual std::int64_t grant(std::chrono::seconds time) = 0;
  /// Returns whether the lease had not ended.
  virtual bool renew(std::int64_t lease) = 0;
  /// Ends the lease, and removes its keys.
  virtual void revoke(std::int64_t lease) = 0;
};

}  // namespace onecopy::store::group
