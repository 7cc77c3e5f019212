// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "child.h"
#include "commands.h"
#include "interrupts.h"
#include "load_file.h"
#include "numbers.h"
#include "onecopy/core/error.h"
#include "onecopy/device/janitor.h"
#include "onecopy/os/process.h"
#include "onecopy/share/share.h"
#include "onecopy/share/stats.h"
#include "process_memory.h"
#include "sample_file.h"
#include "text.h"

namespace onecopy::cli {
namespace {

using Clock = std::chrono::steady_clock;
using Json = nlohmann::json;

constexpr std::chrono::seconds kPatience{60};
/// Tables, stacks and page rounding: what sharing may cost beside the tensors.
constexpr std::uint64_t kAllowance = std::uint64_t{16} << 20;

/// What this process looks like when it shares nothing.
struct Baseline {
  std::vector<std::string> descriptors;
  std::uint64_t memory = 0;
  Stats stats;
};

struct Borrower {
  std::string name;
  Child child;
  std::chrono::nanoseconds opened_in{};
  std::uint32_t crc = 0;
};

/// The story, step by step. Every claim it prints comes from check().
class Demo {
 public:
  explicit Demo(Interrupts& interrupts) : interrupts_(interrupts) {}

  /// The exit status.
  int run(const std::string& file);

 private:
  void write_sample();
  void measure_baseline();
  void load();
  void start_borrowers();
  void compare_bytes();
  void show_processes();
  void change_in_place();
  void kill_one();
  void go_on_reading();
  void leave_nothing();

  void check(bool holds, const std::string& claim);
  bool eventually(const std::function<bool()>& condition);
  std::optional<BorrowerInfo> seen_borrower(int pid) const;
  std::uint32_t own_checksum() const;
  void ask_all_for_checksums();
  std::string element_name() const;

  Interrupts& interrupts_;
  bool all_hold_ = true;
  std::string file_;
  std::optional<TemporaryDirectory> directory_;
  Baseline baseline_;
  LoadedFile loaded_;
  std::optional<Handle> handle_;
  std::string owner_id_;
  std::vector<Borrower> borrowers_;
  std::uint32_t own_crc_ = 0;
  std::size_t changed_row_ = 0;
  std::uint64_t peak_memory_ = 0;
  std::vector<int> pids_;
};

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
  leave_nothing();
  fmt::print("\n{}\n", all_hold_ ? green("All of it verified.")
                                 : red("Not all of it is true here: see the lines marked ✗."));
  return all_hold_ ? 0 : 1;
}

void Demo::check(bool holds, const std::string& claim) {
  all_hold_ = all_hold_ && holds;
  fmt::print(" {} {}\n", holds ? green("✓") : red("✗"), claim);
  std::fflush(stdout);
  interrupts_.check();
}

bool Demo::eventually(const std::function<bool()>& condition) {
  const auto deadline = Clock::now() + std::chrono::seconds(10);
  while (!condition()) {
    if (Clock::now() > deadline) return false;
    interrupts_.check();
    std::this_thread::sleep_for(std::chrono::microseconds(200));
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

/// The first share starts the broker, which stays until the process ends.
void Demo::measure_baseline() {
  owner_id_ = fmt::format("{:02x}", fmt::join(share(empty(Layout(DType::u8, {64}))).fields().owner, ""));
  collect();
  baseline_ = {open_descriptors(), memory_of(current_pid()).pss, stats()};
}

std::string dtype_names(const std::vector<NamedTensor>& tensors) {
  std::vector<std::string> names;
  for (const auto& [tensor_name, tensor] : tensors) {
    const std::string dtype(name(tensor.dtype()));
    if (std::find(names.begin(), names.end(), dtype) == names.end()) names.push_back(dtype);
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

void Demo::load() {
  const bool is_sample = directory_.has_value();
  fmt::print("{} one copy of {}, used by four processes\n\n", bold("onecopy demo:"),
             is_sample ? "a sample file" : shorten(file_, 60));
  std::fflush(stdout);
  ProgressBar bar("loading");
  loaded_ = load_file(file_, [&](std::uint64_t done, std::uint64_t total) {
    bar.show(done, total);
    interrupts_.check();
  });
  bar.clear();
  const auto has_elements = [](const NamedTensor& row) { return row.second.nbytes() > 0; };
  const auto found = std::find_if(loaded_.tensors.begin(), loaded_.tensors.end(), has_elements);
  if (found == loaded_.tensors.end())
    throw Error(ErrorCode::bad_file, fmt::format("{} holds no elements: there is nothing to show", file_));
  changed_row_ = static_cast<std::size_t>(found - loaded_.tensors.begin());
  handle_ = share_bundle(loaded_.tensors);
  collect();  // what the pool reserved ahead would count as memory of the tensors
  const double seconds = std::chrono::duration<double>(loaded_.duration).count();
  fmt::print("Shared  {}, {}: {}\n", plural(loaded_.tensors.size(), "tensor"), format_bytes(loaded_.bytes),
             dtype_names(loaded_.tensors));
  fmt::print("Read    once, straight into shared memory, in {} ({}/s)\n", format_duration(loaded_.duration),
             format_bytes(static_cast<std::uint64_t>(static_cast<double>(loaded_.bytes) / seconds)));
  fmt::print("Handle  one for all of it, {} characters\n\n", handle_->to_text().size());
}

void Demo::start_borrowers() {
  for (const char* borrower : {"A", "B", "C"}) {
    borrowers_.push_back({borrower, Child({"demo-borrower"})});
    pids_.push_back(borrowers_.back().child.pid());
  }
  for (Borrower& borrower : borrowers_) {
    const Json answer = borrower.child.ask({{"do", "open"}, {"handle", handle_->to_text()}}, kPatience);
    borrower.opened_in = std::chrono::nanoseconds(answer.at("ns").get<std::int64_t>());
    if (answer.at("tensors") != loaded_.tensors.size() || answer.at("bytes") != loaded_.bytes)
      throw Error(ErrorCode::protocol,
                  fmt::format("borrower {} opened {} tensors of {} bytes instead of {} of {}",
                              borrower.name, answer.at("tensors").dump(), answer.at("bytes").dump(),
                              loaded_.tensors.size(), loaded_.bytes));
  }
}

std::uint32_t Demo::own_checksum() const {
  std::uint32_t crc = 0;
  for (const auto& [tensor_name, tensor] : loaded_.tensors) crc = checksum_of(tensor, crc);
  return crc;
}

void Demo::ask_all_for_checksums() {
  for (Borrower& borrower : borrowers_) borrower.child.tell({{"do", "checksum"}});
  for (Borrower& borrower : borrowers_)
    borrower.crc = borrower.child.hear(kPatience).at("crc").get<std::uint32_t>();
}

/// The tensors follow each other at the end of the file, so its own bytes are checked by plain reading.
std::uint32_t checksum_of_end(const std::string& path, std::uint64_t bytes) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  file.seekg(-static_cast<std::streamoff>(bytes), std::ios::end);
  Bytes buffer(std::size_t{1} << 20);
  std::uint32_t crc = 0;
  while (bytes > 0 && file) {
    file.read(reinterpret_cast<char*>(buffer.data()),
              static_cast<std::streamsize>(std::min<std::uint64_t>(bytes, buffer.size())));
    const auto got = static_cast<std::size_t>(file.gcount());
    crc = crc32c(std::span(buffer).first(got), crc);
    bytes -= got;
  }
  return crc;
}

void Demo::compare_bytes() {
  const std::uint32_t of_file = checksum_of_end(file_, loaded_.bytes);
  bool equal = own_crc_ == of_file;
  for (const Borrower& borrower : borrowers_) equal = equal && borrower.crc == of_file;
  check(equal, fmt::format("all four processes read the bytes of the file (CRC-32C {:08x})", of_file));
}

/// Memory counts where it was touched, so everybody reads everything first.
void Demo::show_processes() {
  ask_all_for_checksums();
  own_crc_ = own_checksum();
  Table table({{"process"},
               {"pid", Align::right},
               {"opened in", Align::right},
               {"memory (PSS)", Align::right},
               {"with its own copy", Align::right}},
              "   ");
  std::uint64_t together = 0;
  std::uint64_t shared = 0;
  std::uint64_t copies = 0;
  const auto add = [&](const std::string& process, int pid, const std::string& opened_in) {
    const ProcessMemory memory = memory_of(pid);
    table.add({process, fmt::format("{}", pid), opened_in, format_bytes(memory.pss),
               format_bytes(memory.other() + loaded_.bytes)});
    together += memory.pss;
    shared += memory.shared;
    copies += memory.other() + loaded_.bytes;
  };
  add("owner", current_pid(), "");
  for (const Borrower& borrower : borrowers_)
    add("borrower " + borrower.name, borrower.child.pid(), format_duration(borrower.opened_in));
  table.add({"together", "", "", format_bytes(together), format_bytes(copies)});
  fmt::print("{}\n", table.str());
  peak_memory_ = together;
  const bool one_copy = shared >= loaded_.bytes * 95 / 100 && shared <= loaded_.bytes + kAllowance;
  check(one_copy, fmt::format("there is one copy: the four share {} of memory for {} of tensors",
                              format_bytes(shared), format_bytes(loaded_.bytes)));
}

std::string Demo::element_name() const {
  const auto& [tensor_name, tensor] = loaded_.tensors[changed_row_];
  return fmt::format("{}{}", shorten(tensor_name, 32),
                     fmt::format("[{}]", fmt::join(std::vector<int>(tensor.shape().size(), 0), ",")));
}

void Demo::change_in_place() {
  const Tensor& tensor = loaded_.tensors[changed_row_].second;
  const auto read_own = [&] { return element_as_double(tensor.dtype(), tensor.as<std::byte>()); };
  const double before = read_own();
  const int number = tensor.dtype() == DType::boolean ? before == 0 : before == 7 ? 3 : 7;
  const Json question{{"do", "element"}, {"row", changed_row_}};
  Json order = question;
  order["store"] = number;
  const double after = borrowers_[0].child.ask(order, kPatience).at("value").get<double>();
  bool seen = after != before && read_own() == after;
  for (Borrower& borrower : borrowers_)
    seen = seen && borrower.child.ask(question, kPatience).at("value").get<double>() == after;
  check(seen, fmt::format("A changed {} in place from {:.4g} to {:g}: owner, B and C see it",
                          element_name(), before, after));
}

std::optional<BorrowerInfo> Demo::seen_borrower(int pid) const {
  for (const BorrowerInfo& borrower : this_owner().borrowers)
    if (borrower.pid == pid) return borrower;
  return std::nullopt;
}

void Demo::kill_one() {
  const int pid = borrowers_[1].child.pid();
  const auto before = seen_borrower(pid);
  const std::uint64_t leases = before ? before->claims : 0;
  const auto start = Clock::now();
  borrowers_[1].child.kill();
  const bool gone = eventually([&] { return !seen_borrower(pid); });
  const std::chrono::nanoseconds took = Clock::now() - start;
  borrowers_.erase(borrowers_.begin() + 1);
  check(leases > 0 && gone, fmt::format("B was killed (SIGKILL): its {} gone {} later",
                                        leases == 1 ? "one lease was" : plural(leases, "lease") + " were",
                                        format_duration(took)));
}

void Demo::go_on_reading() {
  ask_all_for_checksums();
  const std::uint32_t own = own_checksum();
  bool equal = true;
  for (const Borrower& borrower : borrowers_) equal = equal && borrower.crc == own;
  check(equal, "A and C go on: they read every byte again, the same as the owner");
}

bool is_gone(int pid) { return process_start_time(pid) == 0; }

std::size_t count_own_files(const std::string& owner_id) {
  std::size_t count = 0;
  std::error_code absent;
  for (const auto& entry : std::filesystem::directory_iterator(shared_directory(), absent))
    count += entry.path().string().find(owner_id) != std::string::npos;
  return count;
}

void Demo::leave_nothing() {
  bool ended = true;
  for (Borrower& borrower : borrowers_) ended = borrower.child.finish(kPatience) && ended;
  borrowers_.clear();
  handle_.reset();
  loaded_.tensors.clear();
  const std::uint64_t most = baseline_.memory + kAllowance;
  std::uint64_t memory = 0;
  Stats now;
  const bool given_back = eventually([&] {
    collect();
    now = stats();
    memory = memory_of(current_pid()).pss;
    return now.borrowers == 0 && now.limbo == 0 && now.live_blocks <= baseline_.stats.live_blocks &&
           now.bytes_shared <= baseline_.stats.bytes_shared && memory <= most;
  });
  check(given_back, fmt::format("the memory is back: {} of {} left, no block, no lease",
                                format_bytes(memory), format_bytes(peak_memory_)));
  const bool closed = eventually([&] { return open_descriptors() == baseline_.descriptors; });
  const std::size_t files = count_own_files(owner_id_);
  for (int pid : pids_) ended = ended && is_gone(pid);
  if (directory_) directory_->remove();
  const bool no_sample = !directory_ || !std::filesystem::exists(directory_->path());
  check(ended && closed && files == 0 && no_sample,
        fmt::format(
            "nothing is left behind: {}, {} in {}, {} as before",
            ended ? "no process" : "a process that did not end well", plural(files, "file"),
            shared_directory(),
            closed ? "descriptors" : fmt::format("not {} descriptors", baseline_.descriptors.size())));
}

}  // namespace

void add_demo(CLI::App& app, Command& command) {
  auto* sub =
      app.add_subcommand("demo", "Show one copy of a weights file used by four processes, and check it");
  auto file = std::make_shared<std::string>();  // owners: the parser, which fills it in, and the command
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
