// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "binding/module.h"

namespace onecopy::python {

/// Keeps a Python object for memory that other processes use. Any thread may release the returned pointer without the
/// GIL, even after the interpreter has ended. The object is released soon after, with the GIL: by the next call into
/// the extension, or at the main thread's next step. REQUIRES: the GIL.
std::shared_ptr<const void> keep_object(nb::object object);

/// Releases a reference in the same way, on any thread, with or without the GIL. If memory for it cannot be allocated,
/// the object is never released.
void decref_later(PyObject* object) noexcept;

/// Releases the objects that decref_later() has queued. Calls that wait or allocate memory call it, since the main
/// thread's next step may be far off. Costs nothing if no object is queued. REQUIRES: the GIL; destructors may run.
void drain_decrefs();

}  // namespace onecopy::python
