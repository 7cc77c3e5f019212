// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "binding/module.h"

namespace onecopy::python {

/// Keeps a Python object for memory that other processes use. The returned pointer may be dropped on any thread,
/// without the GIL, also from the end of the interpreter on. The object goes soon after, with the GIL: with the next
/// call of ours, or at the main thread's next step. REQUIRES: the GIL.
std::shared_ptr<const void> kept(nb::object object);

/// Gives up a reference in the same way: on any thread, with or without the GIL. Allocates: if there is no memory, the
/// object stays for good.
void drop_soon(PyObject* object) noexcept;

/// Drops unneeded objects now. For calls of ours that wait, and calls that make or take memory: the main thread's
/// next step may be long off. Costs nothing if there are none. REQUIRES: the GIL; objects may end here.
void drop_unneeded();

}  // namespace onecopy::python
