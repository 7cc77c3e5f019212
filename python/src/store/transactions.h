// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "binding/module.h"
#include "onecopy/store/store.h"

namespace onecopy::python {

/// Adds the methods of _StoreDraft.
void add_draft(nb::class_<store::Draft>& draft);
/// Adds the methods of _StoreTransaction, and the methods of _Store that make drafts and transactions.
void add_transactions(nb::module_& m, nb::class_<store::Store>& all);

}  // namespace onecopy::python
