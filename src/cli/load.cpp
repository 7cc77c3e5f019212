// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <memory>
#include <string>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "commands.h"
#include "interrupts.h"
#include "load_file.h"
#include "onecopy/share/to_device.h"
#include "text.h"

namespace onecopy::cli {
namespace {

using Clock = std::chrono::steady_clock;

struct LoadOptions {
  std::string file;
  std::string device = "cpu";
};

LoadedFile load_files(const LoadOptions& options, Interrupts& interrupts) {
  ProgressBar bar("loading");
  const auto show = [&](std::uint64_t done, std::uint64_t total) {
    bar.show(done, total);
    interrupts.check();
  };
  const Device device = Device::parse(options.device);
  if (device == kCpu) return load_file(options.file, show);
  const auto start = Clock::now();
  LoadedFile loaded;
  loaded.tensors = load_safetensors(options.file, device, {}, show);
  for (const auto& [name, tensor] : loaded.tensors) loaded.bytes += tensor.nbytes();
  loaded.duration = Clock::now() - start;
  return loaded;
}

int run(const LoadOptions& options) {
  Interrupts interrupts;
  const LoadedFile loaded = load_files(options, interrupts);
  fmt::print("{}: {}, {} on {} in {}\n", options.file, plural(loaded.tensors.size(), "tensor"),
             format_bytes(loaded.bytes), options.device, format_speed(loaded));
  return 0;
}

}  // namespace

void add_load(CLI::App& app, Command& command) {
  auto* sub =
      app.add_subcommand("load", "Load a safetensors file to a card, or into memory, and say how fast");
  auto options = std::make_shared<LoadOptions>();  // shared by the parser, which sets it, and the command
  sub->add_option(
         "FILE", options->file,
         "A .safetensors file, or a directory of them with their index; for the cpu also an .npy file")
      ->required();
  sub->add_option("--device", options->device, "Where to: cpu, cuda:0, npu:0")->capture_default_str();
  sub->footer(
      "Threads read the file into a small ring of pinned memory, from the page cache or past it, while "
      "the\n"
      "card copies. The memory goes back at the end: `onecopy share` keeps a file.\n"
      "\n"
      "Examples:\n"
      "  onecopy load --device cuda:0 model.safetensors\n"
      "  onecopy load --device cuda:0 Llama-3-8B/");
  sub->callback([&command, options] { command = [options] { return run(*options); }; });
}

}  // namespace onecopy::cli
