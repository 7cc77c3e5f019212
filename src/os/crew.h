// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <thread>
#include <vector>

namespace onecopy {

/// Some threads that help the calling one: each runs `work` once, with all signals blocked. Fewer, or
/// none, when the system has no more: the work must be such that the caller can do it alone.
///
/// Thread safety: made and destroyed by one thread; destroying it waits for the others. `work` is
/// called concurrently and must not throw.
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
