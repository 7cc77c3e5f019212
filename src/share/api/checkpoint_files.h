// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "memory/safetensors.h"
#include "os/fd.h"

namespace onecopy {

/// One safetensors file, opened, with what its header says.
struct OpenedSafetensors {
  std::string path;
  Fd fd;
  SafetensorsHeader header;
};

/// Opens a file to be read in any order. Throws system when it is missing, invalid_argument for a pipe, a socket, a
/// device or a directory: `instead` says what to name in place of a directory.
Fd open_regular(const std::string& path, const char* instead);

/// The files of a checkpoint, in the order in which they are read: the one at `path`, or those of the directory at
/// `path`. A directory has one `.safetensors` file, or an index that names the file of each tensor; of several indexes
/// it is `model.safetensors.index.json`. Nothing is read but headers. Throws bad_file, naming the tensor and the files,
/// when index and files contradict each other; system, as open(2) does, when a file is missing; invalid_argument when
/// the directory does not say which files to read.
std::vector<OpenedSafetensors> open_checkpoint(const std::string& path);

}  // namespace onecopy
