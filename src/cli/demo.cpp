// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <filesystem>
#include <memory>
#include <thread>
#include <utility>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "commands.h"
#include "demo_story.h"
#include "device/janitor.h"
#include "onecopy/core/error.h"
#include "onecopy/share/share.h"
#include "os/process.h"
#include "text.h"

namespace onecopy::cli {
namespace {

using Clock = std::chrono::steady_clock;

std::string dtype_names(const std::vector<NamedTensor>& tensors) {
  std::vector<std::string> names;
  for (const auto& [tensor_name, tensor] : tensors) {
    const std::string dtype(name(tensor.dtype()));
    if (std::find(names.begin(), names.end(), dtype) == names.end()) names.push_back(dtype);
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

bool is_gone(int pid) { return process_start_time(pid) == 0; }

std::size_t count_own_files(const std::string& owner_id) {
  std::size_t count = 0;
  std::error_code absent;
  for (const auto& entry : std::filesystem::directory_iterator(shared_directory(), absent))
    count += entry.path().string().find(owner_id) != std::string::npos;
  return count;
}

std::string still_lent(const Stats& stats) {
  return fmt::format("{}, {}, {} in limbo, {} reserved", plural(stats.borrowers, "borrower"),
                     plural(stats.live_blocks, "block"), stats.limbo, format_bytes(stats.bytes_shared));
}

}  // namespace

int Demo::run(const std::string& file) {
  file_ = file;
  if (file_.empty()) write_sample();
  measure_baseline();
  load();
  start_borrowers();
  show_processes();
  compare_bytes();
  change_in_place();
  kill_one();
  go_on_reading();
  give_back();
  leave_nothing();
  fmt::print("\n{}\n", all_hold_ ? green("All of it verified.")
                                 : red("Not all of it is true here: see the lines marked ✗."));
  return all_hold_ ? 0 : 1;
}

void Demo::check(bool holds, const std::string& claim) {
  all_hold_ = all_hold_ && holds;
  std::string mark = holds ? green("✓") : red("✗");
  for (const std::string& line : wrap(claim, prose_width() - 3))
    fmt::print(" {} {}\n", std::exchange(mark, " "), line);
  flush_output();
  interrupts_.check();
}

/// Waits for the condition, and checks it less often as time passes: each check costs memory, which is measured here.
bool Demo::eventually(const std::function<bool()>& condition) {
  const auto start = Clock::now();
  while (!condition()) {
    const auto waited = Clock::now() - start;
    if (waited > std::chrono::seconds(10)) return false;
    interrupts_.check();
    std::this_thread::sleep_for(std::chrono::microseconds(200) + waited / 20);
  }
  return true;
}

void Demo::write_sample() {
  directory_.emplace();
  file_ = directory_->path() + "/sample.safetensors";
  ProgressBar bar("writing a sample file");
  write_sample_file(file_, [&](std::uint64_t done, std::uint64_t total) {
    bar.show(done, total);
    interrupts_.check();
  });
}

/// Measures the memory. The first share starts the broker, which stays until the process ends.
void Demo::measure_baseline() {
  owner_id_ = fmt::format("{:02x}", fmt::join(share(empty(Layout(DType::u8, {64}))).fields().owner, ""));
  collect();
  baseline_ = {open_descriptors(), memory_of(current_pid()), stats()};
}

void Demo::load() {
  fmt::print("{} one copy of {}, used by four processes\n\n", bold("onecopy demo:"),
             directory_ ? "a sample file" : shorten(file_, 60));
  flush_output();
  loaded_ = load_file(file_, "loading", interrupts_);
  changed_row_ = first_with_elements();
  handle_ = share_bundle(loaded_.tensors);
  collect();  // memory that the pool reserved ahead would count as the tensors'
  show_what_was_shared();
}

std::size_t Demo::first_with_elements() const {
  if (!loaded_.is_bundle)
    throw Error(ErrorCode::bad_file, fmt::format("{} is not a safetensors file", file_));
  for (std::size_t row = 0; row < loaded_.tensors.size(); ++row)
    if (loaded_.tensors[row].second.nbytes() > 0) return row;
  throw Error(ErrorCode::bad_file, fmt::format("{} holds no elements: there is nothing to show", file_));
}

void Demo::show_what_was_shared() const {
  const std::vector<std::string> types = wrap(dtype_names(loaded_.tensors), prose_width() - 8);
  fmt::print("Shared  {}, {}\n", plural(loaded_.tensors.size(), "tensor"), format_bytes(loaded_.bytes));
  fmt::print("Types   {}\n", fmt::join(types, "\n        "));
  fmt::print("Read    once, straight into shared memory: {}\n", format_speed(loaded_));
  fmt::print("Handle  one for all of it, {} characters\n\n", handle_->to_text().size());
}

/// Ends the borrowers and releases everything; then this process's memory must contain nothing of it.
void Demo::give_back() {
  for (DemoBorrower& borrower : borrowers_)
    ended_well_ = borrower.child.finish(kDemoPatience) && ended_well_;
  borrowers_.clear();
  handle_.reset();
  loaded_.tensors.clear();
  Stats now;
  const bool let_go = eventually([&] {
    collect();
    now = stats();
    return now.borrowers == 0 && now.limbo == 0 && now.live_blocks <= baseline_.stats.live_blocks &&
           now.bytes_shared <= baseline_.stats.bytes_shared;
  });
  ProcessMemory memory;
  const bool shrunk = eventually([&] {
    memory = memory_of(current_pid());
    return memory.own() <= baseline_.memory.own() + kDemoAllowance;
  });
  check(let_go && shrunk,
        fmt::format("the memory is back: {} of {} left, {}", format_bytes(memory.pss),
                    format_bytes(peak_memory_), let_go ? "no block, no lease" : still_lent(now)));
}

void Demo::leave_nothing() {
  const bool no_process = ended_well_ && std::all_of(pids_.begin(), pids_.end(), is_gone);
  const bool closed = eventually([&] { return open_descriptors() == baseline_.descriptors; });
  const std::size_t files = count_own_files(owner_id_);
  if (directory_) directory_->remove();
  const bool no_sample = !directory_ || !std::filesystem::exists(directory_->path());
  check(no_process && closed && files == 0 && no_sample,
        fmt::format("nothing is left behind: {}, {} in {}, {}",
                    no_process ? "no process" : "a process that did not exit cleanly",
                    plural(files, "file"), shared_directory(),
                    closed ? "descriptors as before" : "descriptors that are still open"));
}

void add_demo(CLI::App& app, Command& command) {
  auto* sub =
      app.add_subcommand("demo", "Show one copy of a weights file used by four processes, and check it");
  auto file = std::make_shared<std::string>();  // shared by the parser, which sets it, and the command
  sub->add_option("FILE", *file,
                  "A safetensors file; without it a sample of 256 MiB is written and removed again");
  sub->footer(
      "Loads FILE once into shared memory, starts three processes that open all of it through one handle,\n"
      "and shows what that costs beside copies. One borrower changes a number in place, another is "
      "killed.\n"
      "Every line with a mark was checked; the exit status is 0 only if all of them hold.\n"
      "\n"
      "Examples:\n  onecopy demo\n  onecopy demo model.safetensors");
  sub->callback([&command, file] {
    command = [file] {
      Interrupts interrupts;
      return Demo(interrupts).run(*file);
    };
  });
}

}  // namespace onecopy::cli
