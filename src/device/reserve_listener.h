// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>

namespace onecopy {

/// A scope whose function is told the progress of the calling thread's reservations of host memory: bytes done, and
/// bytes in total. An exception of the function ends the reservation; a pool then gives the reserved memory back step
/// by step, or at once after an Error. Listeners nest: only the innermost one is called. An empty function silences the
/// outer ones, because a caller that holds a lock must not call foreign code.
///
/// Thread safety: belongs to the thread that created it.
class ReserveListener {
 public:
  using Function = std::function<void(std::size_t done, std::size_t total)>;

  explicit ReserveListener(Function function);
  ~ReserveListener();
  ReserveListener& operator=(ReserveListener&&) = delete;

  /// Calls the innermost listener of this thread, if there is one. Reservations inside the function are silent.
  static void tell(std::size_t done, std::size_t total);

 private:
  Function function_;
  ReserveListener* outer_;
};

}  // namespace onecopy
