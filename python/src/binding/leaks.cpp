// SPDX-License-Identifier: Apache-2.0
#include <cstdlib>

#include "binding/module.h"

namespace onecopy::python {

/// Reports objects that outlive the interpreter on stderr if ONECOPY_REPORT_LEAKS is set, as in the tests. Otherwise it
/// is off, since a daemon thread may hold objects when the interpreter ends.
void init_leaks(nb::module_&) { nb::set_leak_warnings(std::getenv("ONECOPY_REPORT_LEAKS") != nullptr); }

}  // namespace onecopy::python
