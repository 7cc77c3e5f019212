// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>

#include "binding/module.h"
#include "onecopy/store/store.h"

/// The parts of the store's classes, each bound in a file of its own.
namespace onecopy::python {

/// Returns bytes by their names. Raises TypeError for other values.
std::map<std::string, std::string> content_of(const nb::dict& bytes);
/// Adds the methods of _StoreVersion for bytes and descriptors.
void add_bytes(nb::class_<store::Version>& version);
/// Adds the methods of _StoreDraft.
void add_draft(nb::class_<store::Draft>& draft);
/// Adds the methods of _StoreTransaction, and the methods of _Store that make drafts and transactions.
void add_transactions(nb::module_& m, nb::class_<store::Store>& all);

/// Adds what Store does in a group of hosts.
void add_group(nb::class_<store::Store>& store);

/// Returns the number of hosts that publish() waits for, 0 for all, and the time.
store::Everywhere everywhere_arg(nb::handle hosts, nb::handle timeout);

/// Adds _StoreKvPool, and the method of _Store that opens one.
void add_kv_pool(nb::module_& m, nb::class_<store::Store>& all);

/// Adds the class behind Store.pull().
void add_pull(nb::module_& m);

}  // namespace onecopy::python
