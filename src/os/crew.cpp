// SPDX-License-Identifier: Apache-2.0
#include "os/crew.h"

#include <exception>

#include "os/blocked_signals.h"

namespace onecopy {

Crew::Crew(std::size_t count, const std::function<void()>& work) {
  const BlockedSignals blocked;
  try {
    for (std::size_t i = 0; i < count; ++i) threads_.emplace_back(work);
  } catch (const std::exception&) {
    // The system's limit of threads is reached: the existing threads do the work.
  }
}

Crew::~Crew() {
  for (std::thread& thread : threads_) thread.join();
}

}  // namespace onecopy
