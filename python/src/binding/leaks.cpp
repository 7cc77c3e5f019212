// SPDX-License-Identifier: Apache-2.0
#include <cstdlib>

#include "binding/module.h"

namespace onecopy::python {

/// If ONECOPY_REPORT_LEAKS is set, as our tests do, objects that outlive the interpreter are reported on stderr.
/// Otherwise not: objects that a daemon thread holds when the interpreter ends are no fault.
void init_leaks(nb::module_&) { nb::set_leak_warnings(std::getenv("ONECOPY_REPORT_LEAKS") != nullptr); }

}  // namespace onecopy::python
