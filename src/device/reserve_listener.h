// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>

namespace onecopy {

/// While it lives, it is told the progress of the calling thread's reservations of host memory: bytes done, bytes in
/// all. An exception of its function ends the reservation. Then a pool gives the reserved memory back step by step,
/// and at once after an Error. Listeners nest: the inner one is told. An empty function makes reservations silent: a
/// caller with a lock must not call a stranger's function.
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
