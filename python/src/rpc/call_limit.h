// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

#include "binding/gil.h"
#include "binding/module.h"
#include "os/mutex.h"
#include "rpc/member.h"

namespace onecopy::python {

/// A bound on the pending native calls to one member, beyond which a caller waits or gets an error.
/// Thread safety: the GIL; acquire() releases it while it waits.
/// Invariant: each acquire() that returned is followed by one release().
class CallLimit {
 public:
  /// Sets the bound. With `refuses`, a call beyond `max` throws Busy instead of waiting.
  void set(std::size_t max, bool refuses) noexcept {
    max_ = max;
    refuses_ = refuses;
  }
  /// Waits for room. Throws timeout at the deadline, peer_died if the member has ended, and Busy, which `agent` makes.
  void acquire(nb::handle agent, const rpc::Member& to, Deadline deadline);
  void release(std::uint32_t to) noexcept;
  /// Returns {member's number: (pending calls, callers that had to wait)}.
  nb::dict report() const;

 private:
  struct Use {
    std::size_t under_way = 0;
    std::uint64_t waits = 0;
  };

  std::size_t max_ = 4096;
  bool refuses_ = false;
  std::map<std::uint32_t, Use> uses_;
  int waiting_ = 0;
  Mutex mutex_;
  Condition released_;
};

}  // namespace onecopy::python
