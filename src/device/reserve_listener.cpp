// SPDX-License-Identifier: Apache-2.0
#include "device/reserve_listener.h"

#include <utility>

namespace onecopy {
namespace {

thread_local ReserveListener* innermost = nullptr;

}  // namespace

ReserveListener::ReserveListener(Function function)
    : function_(std::move(function)), outer_(std::exchange(innermost, this)) {}

ReserveListener::~ReserveListener() { innermost = outer_; }

void ReserveListener::tell(std::size_t done, std::size_t total) {
  if (!innermost || !innermost->function_) return;
  const Function& function = innermost->function_;
  const ReserveListener silence{Function{}};
  function(done, total);
}

}  // namespace onecopy
