// SPDX-License-Identifier: Apache-2.0
#include "onecopy/share/share.h"

#include <unistd.h>

#include <string>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "commands.h"
#include "interrupts.h"
#include "load_file.h"
#include "onecopy/share/bundle.h"
#include "onecopy/share/stats.h"
#include "os/process.h"
#include "text.h"

namespace onecopy::cli {
namespace {

struct ShareOptions {
  std::string file;
  Strategy strategy = Strategy::file_descriptor;
};

/// Explains on stderr, because stdout carries only the handle.
void explain(const std::string& file, const LoadedFile& loaded) {
  fmt::print(stderr, "{}: {}, {} in shared memory (read in {}).\n", file,
             plural(loaded.tensors.size(), "tensor"), format_bytes(loaded.bytes), format_speed(loaded));
  fmt::print(stderr,
             "Process {} keeps it until Ctrl-C. Any process of this user opens it with\n"
             "  onecopy open HANDLE\nwhere HANDLE is this line:\n",
             current_pid());
}

void say_who_still_borrows() {
  collect();
  const OwnerInfo owner = this_owner();
  std::size_t holding = 0;
  for (const BorrowerInfo& borrower : owner.borrowers) {
    if (borrower.claims == 0) continue;
    ++holding;
    fmt::print(stderr, "still borrowed by {} (process {}): {}\n", borrower.name, borrower.pid,
               plural(borrower.claims, "block"));
  }
  if (holding == 0) fmt::print(stderr, "No process borrows it: its memory goes back now.\n");
  else fmt::print(stderr, "They keep their memory; it is freed when the last of them releases it.\n");
}

int share_file(const ShareOptions& options) {
  Interrupts interrupts;
  set_strategy(options.strategy);
  const LoadedFile loaded = load_file(options.file, "reading", interrupts);
  const Handle handle =
      loaded.is_bundle ? share_bundle(loaded.tensors) : onecopy::share(loaded.tensors.front().second);
  explain(options.file, loaded);
  fmt::print("{}\n", handle.to_text());
  flush_output();
  interrupts.wait();
  fmt::print(stderr, "\n");
  say_who_still_borrows();
  return 0;
}

}  // namespace

void add_share(CLI::App& app, Command& command) {
  auto* sub =
      app.add_subcommand("share", "Hold a safetensors or npy file in shared memory and print its handle");
  auto options = std::make_shared<ShareOptions>();  // shared by the parser, which sets it, and the command
  sub->add_option("FILE", options->file,
                  "A .safetensors or .npy file, or a directory of .safetensors files with their index")
      ->required();
  sub->add_option_function<std::string>(
         "--strategy",
         [options](const std::string& word) {
           options->strategy = word == "file_system" ? Strategy::file_system : Strategy::file_descriptor;
         },
         "How the memory is made: anonymous (file_descriptor), or files with names in /dev/shm")
      ->check(CLI::IsMember({"file_descriptor", "file_system"}))
      ->default_str("file_descriptor");
  sub->footer(
      "Reads FILE once into shared memory, prints its handle on stdout (and nothing else there), and\n"
      "holds it until Ctrl-C. Then it says who still uses the memory; those keep it.\n"
      "\n"
      "Examples:\n"
      "  onecopy share model.safetensors              # prints onecopy:... and waits\n"
      "  onecopy share Llama-3-8B/                    # model.safetensors.index.json and all its files\n"
      "  onecopy share model.safetensors > handle &   # then: onecopy open - < handle");
  sub->callback([&command, options] { command = [options] { return share_file(*options); }; });
}

}  // namespace onecopy::cli
