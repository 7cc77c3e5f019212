// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "os/event_loop.h"
#include "os/fd.h"

namespace onecopy {

/// A wait for the end of another process. All objects for one process own one pidfd together, so that this process needs
/// one descriptor for each of its peers, however many of its parts deal with the peer. Call stop() to end a wait.
///
/// Thread safety: const members may be called concurrently, and objects for one process are independent of each other.
class ProcessWatch {
 public:
  /// Constructs an object for no process.
  ProcessWatch() noexcept = default;
  /// Takes over a pidfd, or closes it if another object has one of the same process. `pid` is the number of the process
  /// in this PID namespace; 0 if the number is unknown, which makes the descriptor the object's own. An empty `pidfd`
  /// stands for no process.
  ProcessWatch(int pid, Fd pidfd);
  ProcessWatch(ProcessWatch&& other) noexcept;
  ProcessWatch& operator=(ProcessWatch&& other) noexcept;
  ~ProcessWatch();

  explicit operator bool() const noexcept { return process_ != nullptr; }
  /// Returns whether the process has ended, see has_exited(). Asks the kernel. REQUIRES: there is a process.
  bool has_ended() const noexcept;

  /// Runs `on_end` once on the loop's thread when the process ends, and instead of an earlier task of this object.
  /// Throws what EventLoop::add() throws. REQUIRES: there is a process.
  void start(EventLoop& loop, EventLoop::Task on_end);
  /// Keeps the task from starting. A task that has started may still be running on the loop's thread.
  void stop() noexcept;

 private:
  struct Process;

  std::shared_ptr<Process>
      process_;             ///< shared by all objects for the process, and by a task that is running
  std::uint64_t task_ = 0;  ///< the number of the task; 0: there is none
};

}  // namespace onecopy
