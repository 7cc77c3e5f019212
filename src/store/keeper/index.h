// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>

#include "store/keeper/log.h"

namespace onecopy::store {

/// The index with which a keeper starts.
struct FoundIndex {
  Log log;
  bool knows_all = true;  ///< false: there was no index, or it was lost
  std::string trouble{};  ///< the text to log; empty if the index was read
};

/// Opens the index that earlier keepers left at a path. Begins a new one if there is none. An index of an earlier boot
/// keeps its numbers and loses its versions. An index that cannot be read is put aside, and the numbers of the new one
/// begin above all that it may contain, also if this process is killed in between. Throws system, out_of_memory; the
/// next call then finds what this call found.
FoundIndex open_index(const std::string& path);

/// Writes a log with these records, and renames it to the path: a process that opens the path finds the old log or the
/// new one. Throws system, out_of_memory; the path then has the old log.
Log replace_index(const std::string& path, std::span<const Record> records);

/// Makes a log on the file system of the path, without a name.
Log make_nameless_log(const std::string& path);

}  // namespace onecopy::store
