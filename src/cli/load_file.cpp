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

bool begins_with(const std::string& path, std::string_view magic) {
  std::string start(magic.size(), '\0');
  std::ifstream(path, std::ios::binary).read(start.data(), static_cast<std::streamsize>(start.size()));
  return start == magic;
}

/// What one may well try, and no tensors can be read from where they are.
void check_kind(const std::string& path) {
  if (std::filesystem::is_directory(path))
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{} is a directory; name a .safetensors or .npy file", path));
  if (begins_with(path, "PK\x03\x04"))
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{} is a zip archive, such as numpy.savez() and torch.save() write; save it as "
                            ".safetensors, or one array with numpy.save()",
                            path));
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
  check_kind(path);
  loaded.is_bundle = !begins_with(path, "\x93NUMPY");
  if (loaded.is_bundle) loaded.tensors = load_safetensors(path, progress);
  else loaded.tensors.emplace_back("array", load_npy(path, progress));
  for (const auto& [name, tensor] : loaded.tensors) loaded.bytes += tensor.nbytes();
  loaded.duration = std::chrono::steady_clock::now() - start;
  return loaded;
}

}  // namespace onecopy::cli
