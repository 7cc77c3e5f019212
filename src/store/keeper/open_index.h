// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "store/keeper/holdings.h"

namespace onecopy::store {

/// Opens the index that earlier keepers left at the path of the holdings. Begins a new one if there is none. An index
/// of an earlier boot keeps its numbers and loses its versions. An index that cannot be read is put aside, and the
/// numbers of the new one begin above all that it may contain. Throws system, out_of_memory.
void open_index(Holdings& holdings);

/// Makes a log on the file system of the path, without a name. The worker puts its records in the place of the present
/// index once it is the only one.
Log make_nameless_log(const std::string& path);

}  // namespace onecopy::store
