// SPDX-License-Identifier: Apache-2.0
#include "graph/arena_lock.h"

#include "device/backend.h"

namespace onecopy::python {

void ArenaLock::bind(Device device) {
  GraphDriver* const graphs = backend(device.type).graphs();
  if (graphs) mark_ = graphs->make_mark(device.index);
}

void ArenaLock::enter(Stream stream) {
  if (mark_ && last_ && *last_ != stream.native) mark_->let_wait(stream);
}

void ArenaLock::leave(Stream stream) {
  if (!mark_) return;
  mark_->record(stream);
  last_ = stream.native;
}

void ArenaLock::wait() {
  if (mark_ && last_) mark_->wait();
}

}  // namespace onecopy::python
