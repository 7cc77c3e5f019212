// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "onecopy/channel/queue.h"

#include <utility>

#include "binding/gil.h"
#include "binding/module.h"
#include "value/message.h"

namespace onecopy::python {

/// A queue for Python. Its destructor releases the GIL.
class Queue : public onecopy::Queue {
 public:
  explicit Queue(onecopy::Queue queue) : onecopy::Queue(std::move(queue)) { import_pickling(); }
  Queue(Queue&&) = default;
  ~Queue() {
    drop_without_gil([this] { const onecopy::Queue last(std::move(*this)); });
  }
};

/// Adds the methods that put and get.
void init_messages(nb::class_<Queue>& queue);
void init_putting(nb::module_& m);

}  // namespace onecopy::python
