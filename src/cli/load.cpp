// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <string>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "commands.h"
#include "interrupts.h"
#include "load_file.h"
#include "text.h"

namespace onecopy::cli {
namespace {

struct LoadOptions {
  std::string file;
  std::string device = "cpu";
};

int run(const LoadOptions& options) {
  Interrupts interrupts;
  const LoadedFile loaded = load_file(options.file, "loading", interrupts, Device::parse(options.device));
  fmt::print("{}: {}, {} on {} in {}\n", options.file, plural(loaded.tensors.size(), "tensor"),
             format_bytes(loaded.bytes), options.device, format_speed(loaded));
  return 0;
}

}  // namespace

void add_load(CLI::App& app, Command& command) {
  auto* sub = app.add_subcommand("load", "Load a safetensors file to a device, and report the speed");
  auto options = std::make_shared<LoadOptions>();  // shared by the parser, which sets it, and the command
  sub->add_option(
         "FILE", options->file,
         "A .safetensors file, or a directory of them with their index; for the cpu also an .npy file")
      ->required();
  sub->add_option("--device", options->device, "Device to load to: cpu, cuda:0 or npu:0")
      ->capture_default_str();
  sub->footer(
      "Threads read the file into a small ring of pinned memory, from the page cache or past it, while "
      "the\n"
      "device copies. The memory is freed at the end: `onecopy share` keeps a file.\n"
      "\n"
      "Examples:\n"
      "  onecopy load --device cuda:0 model.safetensors\n"
      "  onecopy load --device cuda:0 Llama-3-8B/");
  sub->callback([&command, options] { command = [options] { return run(*options); }; });
}

}  // namespace onecopy::cli
