// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "binding/module.h"
#include "onecopy/channel/queue.h"

/// The messages of queues and pipes for Python objects, as docs/design/formats/python-message-v1.md says: a tensor
/// alone and plain values cross without pickle, anything else is pickled once, its tensors beside it.
/// Thread safety: all functions are called with the GIL held, and let go of it while they copy a lot.
namespace onecopy::python {

/// Tensors on devices leave in the order of stream_of(message.tensors). Throws what pickling raises, and
/// invalid_argument for a onecopy.Message whose tag is taken.
Message encode_message(nb::handle object);

/// `taken_in` is the stream of the get. Throws bad_handle for a message that no onecopy wrote, and unpickling's
/// exceptions.
nb::object decode_message(Message&& message, Stream taken_in = {});

/// Imports the module that pickles. For makers of queues and pipes: their users may be daemon threads, and a first import
/// in one crashes an interpreter that ends (CPython frees its lock of imports).
void import_pickling();

}  // namespace onecopy::python
