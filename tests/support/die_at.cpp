// SPDX-License-Identifier: Apache-2.0
#include "support/die_at.h"

#include <csignal>
#include <cstring>

#include "core/point.h"

namespace onecopy::testing {
namespace {

const char* point_to_die_at = nullptr;
std::atomic<int> left{0};

void hook(const char* name) noexcept {
  if (std::strcmp(name, point_to_die_at) == 0 && left.fetch_sub(1) == 1) std::raise(SIGKILL);
}

}  // namespace

void die_at(const char* point, int nth) {
  point_to_die_at = point;
  left = nth;
  point_hook.store(hook);
}

}  // namespace onecopy::testing
