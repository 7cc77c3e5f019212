// SPDX-License-Identifier: Apache-2.0
#include "load_file.h"

#include <filesystem>
#include <fstream>
#include <string_view>

#include <fmt/format.h>

#include "onecopy/core/error.h"
#include "text.h"

namespace onecopy::cli {
namespace {

std::string start_of(const std::string& path) {
  std::string start(9, '\0');
  std::ifstream file(path, std::ios::binary);
  file.read(start.data(), static_cast<std::streamsize>(start.size()));
  start.resize(static_cast<std::size_t>(file.gcount()));
  return start;
}

/// What no tensors can be read from, whatever is in it.
void check_file(const std::string& path) {
  std::error_code absent;
  const auto status = std::filesystem::status(path, absent);
  if (is_directory(status))
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{} is a directory; name a .safetensors or .npy file", path));
  if (exists(status) && !is_regular_file(status))
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("{} is a pipe, a socket or a device; write what comes from it to a file first", path));
}

constexpr const char* kFromNumpy =
    "convert it with safetensors.numpy.save_file(dict(numpy.load(FILE)), \"FILE.safetensors\"), or share "
    "one array that numpy.save() wrote";
constexpr const char* kFromTorch =
    "convert it with safetensors.torch.save_file(torch.load(FILE, weights_only=True), "
    "\"FILE.safetensors\")";

/// The first bytes could be the length of a safetensors file's header, too: then that begins with a brace.
bool is_pickle(const std::string& start) {
  return start.size() > 8 && start[0] == '\x80' && start[1] >= 2 && start[1] <= 5 && start[8] != '{';
}

/// What a file is that is no safetensors file, and the way from there; empty when its beginning does not say.
std::string other_format(const std::string& path) {
  const std::string start = start_of(path);
  if (start.starts_with("GGUF"))
    return "is a GGUF file: safetensors has no types for its quantised tensors; use the model's "
           ".safetensors files";
  if (start.starts_with("PK\x03\x04"))
    return fmt::format("is a zip archive, such as numpy.savez() and torch.save() write: {}",
                       path.ends_with(".npz") ? kFromNumpy : kFromTorch);
  if (is_pickle(start))
    return fmt::format("is a pickle, as old versions of torch.save() write: {}", kFromTorch);
  return {};
}

bool is_named_as_torchs(const std::string& path) {
  return path.ends_with(".pt") || path.ends_with(".pth") || path.ends_with(".bin");
}

std::vector<NamedTensor> load_bundle(const std::string& path, const LoadProgress& progress) {
  try {
    return load_safetensors(path, progress);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::bad_file) throw;
    if (const std::string format = other_format(path); !format.empty())
      throw Error(ErrorCode::bad_file, fmt::format("{} {}", path, format));
    if (!is_named_as_torchs(path)) throw;
    throw Error(ErrorCode::bad_file,
                fmt::format("{}; if torch.save() wrote it, {}", error.what(), kFromTorch));
  }
}

}  // namespace

std::string format_speed(const LoadedFile& loaded) {
  constexpr std::uint64_t kLeast = std::uint64_t{1} << 20;
  if (loaded.bytes < kLeast) return format_duration(loaded.duration);
  const double seconds = std::chrono::duration<double>(loaded.duration).count();
  const double rate = static_cast<double>(loaded.bytes) / seconds;
  return fmt::format("{}, {}/s", format_duration(loaded.duration),
                     format_bytes(static_cast<std::uint64_t>(rate)));
}

LoadedFile load_file(const std::string& path, const LoadProgress& progress) {
  const auto start = std::chrono::steady_clock::now();
  LoadedFile loaded;
  check_file(path);
  loaded.is_bundle = !start_of(path).starts_with("\x93NUMPY");
  if (loaded.is_bundle) loaded.tensors = load_bundle(path, progress);
  else loaded.tensors.emplace_back("array", load_npy(path, progress));
  for (const auto& [name, tensor] : loaded.tensors) loaded.bytes += tensor.nbytes();
  loaded.duration = std::chrono::steady_clock::now() - start;
  return loaded;
}

}  // namespace onecopy::cli
