// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>

#include "binding/module.h"
#include "onecopy/store/store.h"

namespace onecopy::python {

/// Returns bytes by their names. Raises TypeError for other values.
std::map<std::string, std::string> content_of(const nb::dict& bytes);
/// Adds the methods of _StoreVersion for bytes and descriptors.
void add_bytes(nb::class_<store::Version>& version);
/// Adds the methods of _StoreDraft.
void add_draft(nb::class_<store::Draft>& draft);
/// Adds the methods of _StoreTransaction, and the methods of _Store that make drafts and transactions.
void add_transactions(nb::module_& m, nb::class_<store::Store>& all);

}  // namespace onecopy::python
