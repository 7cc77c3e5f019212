// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <list>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "child.h"
#include "interrupts.h"
#include "load_file.h"
#include "onecopy/share/handle.h"
#include "onecopy/share/stats.h"
#include "process_memory.h"
#include "sample_file.h"

namespace onecopy::cli {

/// The max time that a borrower may need for an answer.
inline constexpr std::chrono::seconds kDemoPatience{60};
/// The max cost of sharing beside the tensors, in bytes: tables, stacks and page rounding.
inline constexpr std::uint64_t kDemoAllowance = std::uint64_t{16} << 20;

/// The memory of this process before it shares anything.
struct DemoBaseline {
  std::vector<std::string> descriptors;
  ProcessMemory memory;
  Stats stats;
};

/// A borrower of the demo: its process, and the time and checksum of its opening.
struct DemoBorrower {
  explicit DemoBorrower(std::string its_name) : name(std::move(its_name)) {}

  std::string name;
  Child child{{"demo-borrower"}};
  std::chrono::nanoseconds opened_in{};
  std::uint32_t crc = 0;
};

/// The story of `onecopy demo`, step by step. check() prints every claim. Thread safety: none. REQUIRES: run() is
/// called once.
class Demo {
 public:
  explicit Demo(Interrupts& interrupts) : interrupts_(interrupts) {}

  /// Runs the demo and returns the exit status.
  int run(const std::string& file);

 private:
  void write_sample();
  void measure_baseline();
  void load();
  std::size_t first_with_elements() const;
  void show_what_was_shared() const;
  void start_borrowers();
  void compare_bytes();
  void show_processes();
  void check_one_copy(std::uint64_t shared);
  void change_in_place();
  void kill_one();
  void go_on_reading();
  void give_back();
  void leave_nothing();

  void check(bool holds, const std::string& claim);
  bool eventually(const std::function<bool()>& condition);
  std::optional<BorrowerInfo> seen_borrower(int pid) const;
  std::uint32_t own_checksum() const;
  void ask_all_for_checksums();

  Interrupts& interrupts_;
  bool all_hold_ = true;
  std::string file_;
  std::optional<TemporaryDirectory> directory_;
  DemoBaseline baseline_;
  LoadedFile loaded_;
  std::optional<Handle> handle_;
  std::string owner_id_;
  std::list<DemoBorrower> borrowers_;
  std::uint32_t own_crc_ = 0;
  std::size_t changed_row_ = 0;
  std::uint64_t peak_memory_ = 0;
  std::vector<int> pids_;
  bool ended_well_ = true;
};

}  // namespace onecopy::cli
