// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "binding/module.h"
#include "onecopy/channel/queue.h"

/// The messages of queues and pipes for Python objects; docs/design/formats/python-message-v1.md describes the format.
/// A tensor and plain values are sent without pickle. Any other object is pickled, with its tensors beside the pickle.
/// Thread safety: all functions are called with the GIL held, and release the GIL during large copies.
namespace onecopy::python {

/// Returns the message of an object. Tensors on devices are sent in the order of stream_of(message.tensors). Throws the
/// exceptions of pickling, and invalid_argument for a onecopy.Message with a reserved tag.
Message encode_message(nb::handle object);

/// Returns the object of a message. `taken_in` is the stream of the get. Throws bad_handle for a malformed message, and
/// the exceptions of unpickling.
nb::object decode_message(Message&& message, Stream taken_in = {});

/// Imports the module that pickles. Called when a queue or pipe is made: its users may be daemon threads, and a first
/// import in a daemon thread crashes an interpreter that is ending, since CPython frees its import lock.
void import_pickling();

}  // namespace onecopy::python
