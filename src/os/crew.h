// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <thread>
#include <vector>

namespace onecopy {

/// A group of threads that help the calling one: each runs `work` once, with all signals blocked. The group may have
/// fewer threads, or none, if the system's limit is reached.
///
/// Thread safety: created and destroyed by one thread; the destructor waits for the threads. REQUIRES: `work` may be
/// called concurrently, does not throw, and can be done by the caller alone.
class Crew {
 public:
  Crew(std::size_t count, const std::function<void()>& work);
  ~Crew();
  Crew& operator=(Crew&&) = delete;

 private:
  std::vector<std::thread> threads_;
};

}  // namespace onecopy
