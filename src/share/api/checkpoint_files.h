// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "memory/safetensors.h"
#include "os/fd.h"

namespace onecopy {

/// One opened safetensors file, with its header.
struct OpenedSafetensors {
  std::string path;
  Fd fd;
  SafetensorsHeader header;
};

/// Opens a file to be read in any order. Throws system if it is missing, invalid_argument for a pipe, a socket, a
/// device or a directory. For a directory the message adds `instead`: the path to name in its place.
Fd open_regular(const std::string& path, const char* instead);

/// The files of a checkpoint, in the order in which they are read: the one at `path`, or those of the directory at
/// `path`. A directory has one `.safetensors` file, or an index that names the file of each tensor. Of several
/// indexes, `model.safetensors.index.json` is taken. Only headers are read.
///
/// Throws bad_file, naming the tensor and the files, if index and files contradict each other. Throws system, as
/// open(2) does, if a file is missing, and invalid_argument if the directory does not determine the files to read.
std::vector<OpenedSafetensors> open_checkpoint(const std::string& path);

}  // namespace onecopy
