// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "onecopy/core/error.h"
#include "store/group/directory.h"

namespace onecopy::store::group {

/// A directory in memory, whose answers are lost when a test says so.
class FakeDirectory final : public Directory {
 public:
  enum class Fate { answered, lost_before, lost_after, late };

  std::function<Fate()> fate = [] { return Fate::answered; };  ///< of each change
  std::function<void()> changed = [] {};  ///< is called after each change that is carried out

  int reads = 0;

  std::vector<KeyValue> read(const std::vector<Keys>& wanted) override {
    ++reads;
    std::vector<KeyValue> found;
    for (const auto& [from, to] : wanted)
      for (auto at = keys_.lower_bound(from);
           at != keys_.end() && (to.empty() ? at->first == from : at->first < to); ++at)
        found.push_back({at->first, at->second.value, at->second.changed});
    return found;
  }
  bool change(const Change& change) override {
    switch (fate()) {
      case Fate::answered: return carry_out(change);
      case Fate::lost_before: break;
      case Fate::lost_after: carry_out(change); break;
      case Fate::late: late_.push_back(change); break;
    }
    throw Error(ErrorCode::timeout, "etcd does not answer");
  }
  std::int64_t grant(std::chrono::seconds) override {
    leases_.insert(++last_lease_);
    return last_lease_;
  }
  bool renew(std::int64_t lease) override { return leases_.contains(lease); }
  void revoke(std::int64_t lease) override {
    leases_.erase(lease);
    std::erase_if(keys_, [&](const auto& one) { return one.second.lease == lease; });
  }

  /// Carries out the oldest change that was late.
  bool carry_out_late() {
    if (late_.empty()) return false;
    const Change change = late_.front();
    late_.erase(late_.begin());
    try {
      return carry_out(change);
    } catch (const Error&) {
      return false;  // its lease has ended
    }
  }
  bool has_late() const noexcept { return !late_.empty(); }
  void put(const std::string& key, const std::string& value, std::int64_t lease = 0) {
    keys_[key] = {value, ++revision_, lease};
  }
  void end_lease_of(const std::string& key) {
    const auto at = keys_.find(key);
    if (at != keys_.end() && at->second.lease != 0) revoke(at->second.lease);
  }

 private:
  struct Value {
    std::string value;
    std::int64_t changed = 0, lease = 0;
  };

  bool carry_out(const Change& change) {
    for (const auto& [key, revision] : change.when) {
      const auto at = keys_.find(key);
      if ((at == keys_.end() ? 0 : at->second.changed) != revision) return false;
    }
    for (const auto& [key, value, lease] : change.put)
      if (lease != 0 && !leases_.contains(lease))
        throw Error(ErrorCode::system, "requested lease not found");
    ++revision_;
    for (const std::string& key : change.remove) keys_.erase(key);
    for (const auto& [key, value, lease] : change.put) keys_[key] = {value, revision_, lease};
    changed();
    return true;
  }

  std::map<std::string, Value> keys_;
  std::set<std::int64_t> leases_;
  std::int64_t last_lease_ = 0, revision_ = 0;
  std::vector<Change> late_;
};

}  // namespace onecopy::store::group
