// SPDX-License-Identifier: Apache-2.0
#include "share/api/file_kind.h"

#include <fmt/format.h>

#include <fstream>

namespace onecopy {
namespace {

constexpr const char* kFromNumpy =
    "convert it with safetensors.numpy.save_file(dict(numpy.load(FILE)), \"FILE.safetensors\"), or share "
    "one array that numpy.save() wrote";
constexpr const char* kFromTorch =
    "convert it with safetensors.torch.save_file(torch.load(FILE, weights_only=True), "
    "\"FILE.safetensors\")";

std::string start_of(const std::string& path) {
  std::string start(9, '\0');
  std::ifstream file(path, std::ios::binary);
  file.read(start.data(), static_cast<std::streamsize>(start.size()));
  start.resize(static_cast<std::size_t>(file.gcount()));
  return start;
}

/// The first bytes of a pickle could also be the length of a safetensors header; such a header begins with a brace.
bool is_pickle(const std::string& start) {
  return start.size() > 8 && start[0] == '\x80' && start[1] >= 2 && start[1] <= 5 && start[8] != '{';
}

/// Names the format of a file that is no safetensors file, and the way from there. Empty if the beginning of the file
/// does not tell.
std::string other_format(const std::string& path) {
  const std::string start = start_of(path);
  if (start.starts_with("GGUF"))
    return "is a GGUF file: safetensors has no types for its quantised tensors; use the model's "
           ".safetensors files";
  if (start.starts_with("PK\x03\x04"))
    return fmt::format("is a zip archive, such as numpy.savez() and torch.save() write: {}",
                       path.ends_with(".npz") ? kFromNumpy : kFromTorch);
  if (start.starts_with("\x93NUMPY")) return "is an npy file: load_npy() reads it";
  if (is_pickle(start))
    return fmt::format("is a pickle, as old versions of torch.save() write: {}", kFromTorch);
  return {};
}

bool is_named_as_torchs(const std::string& path) {
  return path.ends_with(".pt") || path.ends_with(".pth") || path.ends_with(".bin");
}

}  // namespace

Error about_format(const Error& error, const std::string& path) {
  if (const std::string format = other_format(path); !format.empty())
    return Error(ErrorCode::bad_file, fmt::format("{} {}", path, format));
  const bool has_path = std::string_view(error.what()).find(path) != std::string_view::npos;
  const std::string message = has_path ? error.what() : fmt::format("{}: {}", path, error.what());
  if (!is_named_as_torchs(path)) return Error(ErrorCode::bad_file, message);
  return Error(ErrorCode::bad_file, fmt::format("{}; if torch.save() wrote it, {}", message, kFromTorch));
}

}  // namespace onecopy
