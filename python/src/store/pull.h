// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "binding/module.h"

namespace onecopy::python {

/// Adds the class behind Store.pull().
void add_pull(nb::module_& m);

}  // namespace onecopy::python
