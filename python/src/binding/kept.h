// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "binding/module.h"

namespace onecopy::python {

/// Keeps a Python object for memory that other processes use. Any thread may release the returned pointer without the
/// GIL, even after the interpreter has ended. The object is released soon after, with the GIL: by the next call into
/// the extension, or at the main thread's next step. REQUIRES: the GIL.
std::shared_ptr<const void> kept(nb::object object);

/// Releases a reference in the same way, on any thread, with or without the GIL. If memory for it cannot be allocated,
/// the object is never released.
void drop_soon(PyObject* object) noexcept;

/// Releases the objects that wait for it now. Calls that wait or allocate memory call it, since the main thread's next
/// step may be far off. It costs nothing if no object waits. REQUIRES: the GIL; destructors may run.
void drop_unneeded();

}  // namespace onecopy::python
