// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <thread>
#include <vector>

namespace onecopy {

/// Some threads that help the calling one: each runs `work` once, with all signals blocked. If the system has no more
/// threads, there are fewer, or none.
///
/// Thread safety: made and destroyed by one thread; destroying it waits for the others. REQUIRES: `work` may be
/// called concurrently, does not throw, and can be done by the caller alone.
class Crew {
 public:
  Crew(std::size_t count, const std::function<void()>& work);
  ~Crew();
  Crew(const Crew&) = delete;
  Crew& operator=(const Crew&) = delete;

 private:
  std::vector<std::thread> threads_;
};

}  // namespace onecopy
