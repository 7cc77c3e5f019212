// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>

#include "onecopy/core/bytes.h"
#include "os/stream_socket.h"
#include "store_group.h"

namespace onecopy::cli {

/// The process that gives versions to other hosts, so that the keeper has no network. It ends with the process that made it, and
/// is started again if it is killed: the socket stays, so that hosts wait for it meanwhile. Thread safety: none.
class FerryProcess {
 public:
  /// Listens, and starts the process, which sends `rate` bytes per second or, for 0, as many as it can. Throws invalid_argument without a key, and system if the address is taken.
  /// With the options of a group, this host is a member of it.
  FerryProcess(const std::string& listen, std::uint64_t rate, const GroupOptions& group);
  ~FerryProcess();
  FerryProcess& operator=(FerryProcess&&) = delete;

  pid_t pid() const noexcept { return pid_; }
  /// Starts the process again, which has ended.
  void start();
  /// Forgets process, socket and key, in a forked child that has nothing to do with other hosts.
  void leave() noexcept;
  /// Waits until a signal tells this process to end.
  void wait();

 private:
  Bytes key_;
  StreamSocket socket_;
  const std::uint64_t rate_;
  std::optional<store::group::Config> group_;
  bool joins_ = true;  ///< of the first process
  pid_t pid_ = 0;
};

}  // namespace onecopy::cli
