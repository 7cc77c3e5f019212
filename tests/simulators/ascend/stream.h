// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <thread>
#include <vector>

#include "simulators/common/stream_work.h"
#include "state.h"

namespace sim {

using Operation = StreamWork::Work;  // returns an aclError

/// A use of a page of memory by an operation.
struct Use {
  std::uint64_t memory;
  std::uint64_t page;
  std::uintptr_t window;
  bool writes;
};

struct Recorded {
  Operation operation;
  std::vector<Use> uses;
};

/// The operations that a stream records instead of doing them.
struct Capture {
  int mode = 0;
  std::thread::id thread;
  bool invalid = false;
  std::vector<Recorded> operations;
};

/// A stream. The default stream is like any other.
struct Stream : StreamWork {
  static Stream* make(Context& context);
  /// Returns the stream of a handle, or null if it is not of the current context. A null handle is the default stream.
  static Stream* find(aclrtStream handle);
  static aclError synchronize_all(const Context& context);

  /// Adds an operation, or records it.
  aclError submit(Operation operation, std::vector<Use> uses = {});
  /// Invalidates the capture after a call that it does not allow, and returns the error. REQUIRES: it is captured.
  aclError spoil();
  /// Removes the stream. Its thread still does the pending work.
  void destroy();

  Context* const context;
  std::unique_ptr<Capture> capture;

 private:
  explicit Stream(Context& in) : StreamWork(settings().delay_us, 0), context(&in) {}
  ~Stream() override = default;
};

/// While a capture is under way, fails calls that its mode does not allow.
aclError forbid_in_capture();

}  // namespace sim
