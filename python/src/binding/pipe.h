// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "binding/module.h"
#include "onecopy/channel/pipe.h"

namespace onecopy::python {

/// An end of a pipe for Python. If one thread closes the end, another thread that waits in it notices within kSlice.
/// Thread safety: used with the GIL held.
class PipeEnd {
 public:
  explicit PipeEnd(Pipe pipe);

  /// Throws closed.
  std::shared_ptr<Pipe> use() const;
  void close() noexcept { pipe_.reset(); }
  bool is_closed() const noexcept { return !pipe_; }

 private:
  std::shared_ptr<Pipe> pipe_;  ///< shared with the calls that wait
};

}  // namespace onecopy::python
