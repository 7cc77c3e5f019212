// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <utility>

#include "binding/module.h"
#include "rpc/node.h"

namespace onecopy::python {

/// A call of this process, for Python.
/// Thread safety: the GIL; wait() releases it.
class RpcCall {
 public:
  RpcCall(std::shared_ptr<rpc::Node> node, rpc::CallRef call)
      : node_(std::move(node)), call_(std::move(call)) {}

  const rpc::CallRef& call() const noexcept { return call_; }
  std::uint64_t number() const noexcept { return call_->number; }
  std::uint32_t member() const noexcept { return call_->member(); }
  /// Takes the received messages, and returns whether the call has ended.
  bool is_done();
  /// Lets a worker call future._settle() when the call ends, unless a thread is waiting then. Returns false if the call
  /// has ended.
  bool want(nb::handle future);
  /// Waits until the call has ended. Runs Python's signal handlers during the wait; an exception of a handler ends the
  /// wait.
  void wait();
  /// Ends the call without an answer. Returns false if the call has ended already.
  bool end();
  /// Marks the call complete. Called by a worker once the Future holds the outcome.
  void complete();

 private:
  std::shared_ptr<rpc::Node> node_;
  rpc::CallRef call_;
};

/// Waits until the call has ended, as RpcCall::wait() does.
void wait_for(rpc::Node& node, const rpc::CallRef& call);

void init_rpc_call(nb::module_& m);

}  // namespace onecopy::python
