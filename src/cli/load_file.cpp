// SPDX-License-Identifier: Apache-2.0
#include "load_file.h"

#include <array>
#include <fstream>
#include <string_view>

#include <fmt/format.h>

#include "text.h"

namespace onecopy::cli {
namespace {

bool is_npy(const std::string& path) {
  constexpr std::string_view kMagic = "\x93NUMPY";
  std::array<char, kMagic.size()> start{};
  std::ifstream(path, std::ios::binary).read(start.data(), start.size());
  return std::string_view(start.data(), start.size()) == kMagic;
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
  loaded.is_bundle = !is_npy(path);
  if (loaded.is_bundle) loaded.tensors = load_safetensors(path, progress);
  else loaded.tensors.emplace_back("array", load_npy(path, progress));
  for (const auto& [name, tensor] : loaded.tensors) loaded.bytes += tensor.nbytes();
  loaded.duration = std::chrono::steady_clock::now() - start;
  return loaded;
}

}  // namespace onecopy::cli
