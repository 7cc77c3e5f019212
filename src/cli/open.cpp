// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "commands.h"
#include "core/throw_error.h"
#include "interrupts.h"
#include "memory/safetensors.h"
#include "onecopy/share/bundle.h"
#include "onecopy/share/share.h"
#include "output_format.h"
#include "text.h"

namespace onecopy::cli {
namespace {

struct OpenOptions {
  std::string handle;
  std::string out;
  bool force = false;
  bool hold = false;
  std::shared_ptr<OutputFormat> format;
};

std::string read_handle_text(const std::string& argument) {
  if (argument != "-") return argument;
  std::string line;
  if (!std::getline(std::cin, line))
    throw Error(ErrorCode::bad_handle,
                "no handle on stdin: the first line should be its text, onecopy:...");
  return line;
}

/// Opens everything that a handle names, for reading, in the order of names as people count: "layers.2"
/// before "layers.10".
std::vector<NamedTensor> open_all(const Handle& handle) {
  std::vector<NamedTensor> tensors;
  if (!handle.is_bundle()) {
    tensors.emplace_back("tensor", onecopy::open(handle, Access::read_only));
    return tensors;
  }
  const Bundle bundle = Bundle::open(handle, Access::read_only);
  tensors.reserve(bundle.size());
  for (std::size_t row = 0; row < bundle.size(); ++row)
    tensors.emplace_back(std::string(bundle.name(row)), bundle.tensor(row));
  std::ranges::sort(tensors, [](const NamedTensor& a, const NamedTensor& b) {
    return ::strverscmp(a.first.c_str(), b.first.c_str()) < 0;
  });
  return tensors;
}

std::uint64_t total_bytes(const std::vector<NamedTensor>& tensors) {
  std::uint64_t bytes = 0;
  for (const auto& [tensor_name, tensor] : tensors) bytes += tensor.nbytes();
  return bytes;
}

Tensor on_host(const Tensor& tensor) {
  return tensor.device() == kCpu ? tensor : copy(tensor.view(), kCpu);
}

void print_table(const std::vector<NamedTensor>& tensors) {
  Table table({{"name", Align::left, true}, {"dtype"}, {"shape"}, {"bytes", Align::right}});
  for (const auto& [tensor_name, tensor] : tensors)
    table.add({escaped(tensor_name), std::string(name(tensor.dtype())), format_shape(tensor.shape()),
               format_bytes(tensor.nbytes())});
  fmt::print("{}", table.str(line_width()));
}

void print_as_json(const std::vector<NamedTensor>& tensors) {
  nlohmann::json rows = nlohmann::json::array();
  for (const auto& [tensor_name, tensor] : tensors)
    rows.push_back(
        {{"name", tensor_name},
         {"dtype", name(tensor.dtype())},
         {"shape", std::vector<std::int64_t>(tensor.shape().begin(), tensor.shape().end())},
         {"strides", std::vector<std::int64_t>(tensor.strides().begin(), tensor.strides().end())},
         {"bytes", tensor.nbytes()}});
  print_json({{"tensors", std::move(rows)}, {"bytes", total_bytes(tensors)}});
}

void check_out(const OpenOptions& options) {
  const std::string& out = options.out;
  if (out.ends_with(".npy") || out.ends_with(".npz"))
    throw_error(ErrorCode::invalid_argument,
                "--out writes a safetensors file, but {} has a NumPy name; give it a name "
                "that ends in .safetensors",
                out);
  if (!out.empty() && !options.force && std::filesystem::is_regular_file(out))
    throw_error(ErrorCode::invalid_argument, "{} exists already; --force overwrites it", out);
}

void write_all(const std::vector<NamedTensor>& tensors, const std::string& out) {
  std::vector<Tensor> readable;
  std::vector<std::pair<std::string, TensorView>> views;
  readable.reserve(tensors.size());
  views.reserve(tensors.size());
  for (const auto& [tensor_name, tensor] : tensors)
    views.emplace_back(tensor_name, readable.emplace_back(on_host(tensor)).view());
  write_safetensors(out, views);
  fmt::print(stderr, "Written to {}.\n", out);
}

/// Prints a table, for people who want to see what the handle contains; --out writes all of it.
void print_tensors(const std::vector<NamedTensor>& tensors, const OpenOptions& options) {
  if (*options.format == OutputFormat::json) print_as_json(tensors);
  else if (options.out.empty()) print_table(tensors);
  flush_output();
}

int open_handle(const OpenOptions& options) {
  std::optional<Interrupts> interrupts;
  if (options.hold) interrupts.emplace();
  check_out(options);
  const Handle handle = Handle::from_text(read_handle_text(options.handle));
  const auto start = std::chrono::steady_clock::now();
  const std::vector<NamedTensor> tensors = open_all(handle);
  const auto duration = std::chrono::steady_clock::now() - start;
  print_tensors(tensors, options);
  fmt::print(stderr, "{}, {}, opened in {} without copying.\n", plural(tensors.size(), "tensor"),
             format_bytes(total_bytes(tensors)), format_duration(duration));
  if (!options.out.empty()) write_all(tensors, options.out);
  if (options.hold) {
    fmt::print(stderr, "Holding it until Ctrl-C.\n");
    interrupts->wait();
  }
  return 0;
}

}  // namespace

void add_open(CLI::App& app, Command& command) {
  auto* sub = app.add_subcommand("open", "Open what another process shares and list its tensors");
  auto options = std::make_shared<OpenOptions>();  // shared by the parser, which sets it, and the command
  sub->add_option("HANDLE", options->handle, "The text that share printed, or - to read it from stdin")
      ->required();
  sub->add_option("--out", options->out, "Write the tensors to this safetensors file, instead of a table")
      ->type_name("FILE");
  sub->add_flag("--force", options->force, "Let --out overwrite a file");
  sub->add_flag("--hold", options->hold, "Keep it open until Ctrl-C");
  options->format = add_format_option(*sub);
  sub->footer(
      "Opens a handle (of a bundle or of one tensor) for reading, without copying, and prints a table of\n"
      "its tensors: name, element type, shape, bytes.\n"
      "\n"
      "Examples:\n"
      "  onecopy open onecopy:MUNPUFkAAQCQ...\n"
      "  onecopy open - < handle\n"
      "  onecopy open - --out copy.safetensors < handle\n"
      "\n"
      "A handle as text holds nothing: it opens as long as the process that printed it, e.g. onecopy "
      "share,\n"
      "lives and keeps the tensors.");
  sub->callback([&command, options] { command = [options] { return open_handle(*options); }; });
}

}  // namespace onecopy::cli
