// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>

namespace onecopy {

/// Hears, while it lives, how far reservations of host memory by the calling thread are: bytes done, bytes in all.
/// What it throws ends the reservation; a pool gives back by and by what was reserved, and at once after an Error. Listeners nest: the inner one hears. A function
/// that is empty makes reservations silent: a caller with a lock must not call a stranger's function.
///
/// Thread safety: belongs to the thread that made it.
class ReserveListener {
 public:
  using Function = std::function<void(std::size_t done, std::size_t total)>;

  explicit ReserveListener(Function function);
  ~ReserveListener();
  ReserveListener(const ReserveListener&) = delete;
  ReserveListener& operator=(const ReserveListener&) = delete;

  /// Tells the innermost listener of this thread, if there is one. Reservations inside of its function are silent.
  static void tell(std::size_t done, std::size_t total);

 private:
  Function function_;
  ReserveListener* outer_;
};

}  // namespace onecopy
