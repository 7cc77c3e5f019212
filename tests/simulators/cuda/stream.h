// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "simulators/common/stream_work.h"
#include "state.h"

namespace sim {

using Operation = std::function<void()>;
struct Node;

/// Returns a node of an operation whose parameters cannot be read.
std::shared_ptr<Node> host_node(Operation operation);

/// The operations that a stream records instead of doing them.
struct Capture {
  int mode = 0;
  std::thread::id thread;
  bool invalid = false;
  std::vector<std::shared_ptr<Node>> nodes;
};

struct Stream;

/// Records that the next operation of the stream uses these addresses. REQUIRES: the stream is not captured.
void note_use(Stream& stream, CUdeviceptr at, std::size_t bytes, bool writes);

struct Stream : StreamWork {
  static Stream* make(Context& context, unsigned flags);
  /// Returns the stream of a handle, or null for an unknown handle.
  static Stream* find(CUstream handle);
  static void synchronize_all(const Context& context);
  /// Returns the clock of all operations that the context's streams have now.
  static Clock clock_of_all(const Context& context);
  /// Returns the ends of all pending operations of the context's streams. If a stream is being captured, invalidates all
  /// captures in the context and returns nothing.
  static std::optional<std::vector<Reach>> reach_all(const Context& context);

  /// Adds an operation, or records it. Returns an error if a capture forbids it or the stream's context has failed.
  CUresult submit(Operation operation);
  /// Removes the stream. Its thread still does the pending work.
  void destroy();

  Context* const context;
  const unsigned flags;
  const unsigned long long id = ++last_id;
  std::unique_ptr<Capture> capture;

 private:
  inline static std::atomic<unsigned long long> last_id{0};
  Stream(Context& in, unsigned with)
      : StreamWork(settings().delay_us, settings().room), context(&in), flags(with) {}
  ~Stream() override = default;
  Operation after_others(Operation operation, Clock& before);
};

}  // namespace sim
