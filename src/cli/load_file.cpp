// SPDX-License-Identifier: Apache-2.0
#include "load_file.h"

#include <filesystem>
#include <fstream>
#include <utility>

#include <fmt/format.h>

#include "onecopy/share/to_device.h"
#include "text.h"

namespace onecopy::cli {
namespace {

/// Returns the beginning of the file; empty for a directory, and for a pipe, whose reader would wait.
std::string start_of(const std::string& path) {
  std::error_code absent;
  if (!std::filesystem::is_regular_file(path, absent)) return {};
  std::string start(6, '\0');
  std::ifstream file(path, std::ios::binary);
  file.read(start.data(), static_cast<std::streamsize>(start.size()));
  start.resize(static_cast<std::size_t>(file.gcount()));
  return start;
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

LoadedFile load_file(const std::string& path, std::string label, Interrupts& interrupts, Device device) {
  ProgressBar bar(std::move(label));
  const auto progress = [&](std::uint64_t done, std::uint64_t total) {
    bar.show(done, total);
    interrupts.check();
  };
  const auto start = std::chrono::steady_clock::now();
  LoadedFile loaded;
  loaded.is_bundle = device != kCpu || !start_of(path).starts_with("\x93NUMPY");
  if (device != kCpu) loaded.tensors = load_safetensors(path, device, {}, progress);
  else if (loaded.is_bundle) loaded.tensors = load_safetensors(path, progress);
  else loaded.tensors.emplace_back("array", load_npy(path, progress));
  for (const auto& [name, tensor] : loaded.tensors) loaded.bytes += tensor.nbytes();
  loaded.duration = std::chrono::steady_clock::now() - start;
  return loaded;
}

}  // namespace onecopy::cli
