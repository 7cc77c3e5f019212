// SPDX-License-Identifier: Apache-2.0
#include "graph/turn.h"

#include "device/backend.h"

namespace onecopy::python {

void GraphTurn::bind(Device device) {
  GraphDriver* const graphs = backend(device.type).graphs();
  if (graphs) mark_ = graphs->make_mark(device.index);
}

void GraphTurn::enter(Stream stream) {
  if (mark_ && last_ && *last_ != stream.native) mark_->let_wait(stream);
}

void GraphTurn::leave(Stream stream) {
  if (!mark_) return;
  mark_->record(stream);
  last_ = stream.native;
}

void GraphTurn::wait() {
  if (mark_ && last_) mark_->wait();
}

}  // namespace onecopy::python
