// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "binding/module.h"
#include "onecopy/store/store.h"

namespace onecopy::python {

/// Adds _StoreKvPool, and the method of _Store that opens one.
void add_kv_pool(nb::module_& m, nb::class_<store::Store>& all);

}  // namespace onecopy::python
