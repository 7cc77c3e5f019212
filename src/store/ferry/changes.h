// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <string>

#include "os/deadline.h"
#include "os/fd.h"
#include "store/client/client.h"
#include "store/format/link.h"

namespace onecopy::store::ferry {

/// The changes of an object in the keeper of this host, of which other hosts are told.
///
/// Guarantees. wait() returns soon after another version has become current or has begun to arrive, also if that was before the call,
/// and perhaps at other times. Mechanism. The keeper answers a question on a link of its own when the current version changes, and
/// the kernel tells of a write to the file of Origins. Cost. Nothing while nothing changes; a look each kLookAgain where the kernel
/// gives no inotify. Thread safety: none.
class Changes {
 public:
  static constexpr std::chrono::milliseconds kLookAgain{50};

  /// Throws what Link::connect() throws.
  Changes(const Client& client, std::string name);

  const std::string& name() const noexcept { return name_; }
  /// Throws peer_died when the keeper has ended, and the object is of no use afterwards.
  void wait(Deadline until);

 private:
  void ask();
  bool is_noted() const noexcept;

  const std::string name_;
  Link link_;
  std::string file_;  ///< of Origins
  Fd written_;        ///< an inotify of the keeper's directory; empty if there is none
  Token known_{};
};

}  // namespace onecopy::store::ferry
