// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "onecopy/channel/queue.h"
#include "os/mutex.h"

namespace onecopy::rpc {

/// A function of a message's body. The caller gets its exceptions.
using BodyFunction = std::function<Message(Message&&)>;

/// The functions in C++ that members may call, by name.
/// Thread safety: all members may be called concurrently.
class Functions {
 public:
  void define(std::string name, BodyFunction function);
  /// Null when there is none. A call that runs, and the table, have it: it may be defined anew meanwhile.
  std::shared_ptr<const BodyFunction> find(std::string_view name) const;

 private:
  mutable Mutex mutex_;
  std::map<std::string, std::shared_ptr<const BodyFunction>, std::less<>> functions_ GUARDED_BY(mutex_);
};

}  // namespace onecopy::rpc
