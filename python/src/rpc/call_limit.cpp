// SPDX-License-Identifier: Apache-2.0
#include "rpc/call_limit.h"

#include <fmt/format.h>

#include <chrono>

#include "core/throw_error.h"
#include "rpc/python_endpoint.h"

namespace onecopy::python {

void CallLimit::acquire(nb::handle agent, const rpc::Member& to, Deadline deadline) {
  Use& use = uses_[to.number()];
  if (use.under_way < max_) {
    ++use.under_way;
    return;
  }
  if (refuses_)
    raise(agent.attr("error_named")(
        "busy",
        fmt::format("{} calls to {} are under way, as many as init(max_calls={}) allows: wait for some of "
                    "them, or give a larger max_calls, or when_full='wait'",
                    use.under_way, to.name(), max_)));
  ++use.waits;
  while (use.under_way >= max_) {
    if (to.has_ended) throw Error(ErrorCode::peer_died, "the member has ended");
    if (deadline.has_passed())
      throw_error(ErrorCode::timeout,
                  "{} calls to {} are under way, as many as init(max_calls={}) "
                  "allows, and none of them has ended before this call's deadline",
                  use.under_way, to.name(), max_);
    ++waiting_;
    without_gil([&] {  // a release just before the wait is noticed after one slice
      const LockGuard lock(mutex_);
      released_.wait_until(mutex_,
                           std::chrono::steady_clock::now() + deadline.left(std::chrono::milliseconds(20)));
    });
    --waiting_;
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
  }
  ++use.under_way;
}

void CallLimit::release(std::uint32_t to) noexcept {
  --uses_[to].under_way;
  if (waiting_ == 0) return;
  const LockGuard lock(mutex_);
  released_.notify_all();
}

nb::dict CallLimit::report() const {
  nb::dict found;
  for (const auto& [number, use] : uses_)
    found[nb::int_(number)] = nb::make_tuple(use.under_way, use.waits);
  return found;
}

}  // namespace onecopy::python
