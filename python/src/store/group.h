// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "binding/module.h"
#include "onecopy/store/store.h"

namespace onecopy::python {

/// Adds what Store does in a group of hosts.
void add_group(nb::class_<store::Store>& store);

/// Returns the number of hosts that publish() waits for, 0 for all, and the time.
store::Everywhere everywhere_arg(nb::handle hosts, nb::handle timeout);

}  // namespace onecopy::python
