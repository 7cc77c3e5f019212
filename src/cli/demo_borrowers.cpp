// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <fstream>
#include <iterator>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "demo_story.h"
#include "onecopy/core/bytes.h"
#include "onecopy/core/error.h"
#include "os/process.h"
#include "text.h"

namespace onecopy::cli {
namespace {

using Clock = std::chrono::steady_clock;
using Json = nlohmann::json;

/// Returns the checksum of the file's last bytes, which are the tensors, by reading the file plainly.
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

}  // namespace

void Demo::start_borrowers() {
  for (const char* borrower : {"A", "B", "C"})
    pids_.push_back(borrowers_.emplace_back(borrower).child.pid());
  for (DemoBorrower& borrower : borrowers_) {
    const Json answer = borrower.child.ask({{"do", "open"}, {"handle", handle_->to_text()}}, kDemoPatience);
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
  for (const auto& [tensor_name, tensor] : loaded_.tensors)
    crc = crc32c(ByteSpan(tensor.as<std::byte>(), tensor.nbytes()), crc);
  return crc;
}

void Demo::ask_all_for_checksums() {
  for (DemoBorrower& borrower : borrowers_) borrower.child.tell({{"do", "checksum"}});
  for (DemoBorrower& borrower : borrowers_)
    borrower.crc = borrower.child.hear(kDemoPatience).at("crc").get<std::uint32_t>();
}

void Demo::compare_bytes() {
  const std::uint32_t of_file = checksum_of_end(file_, loaded_.bytes);
  bool equal = own_crc_ == of_file;
  for (const DemoBorrower& borrower : borrowers_) equal = equal && borrower.crc == of_file;
  check(equal, fmt::format("all four processes read the bytes of the file (CRC-32C {:08x})", of_file));
}

/// Shows the memory of the processes. Every process reads all tensors first, because only touched memory counts.
void Demo::show_processes() {
  ask_all_for_checksums();
  own_crc_ = own_checksum();
  constexpr auto kRight = Align::right;
  Table table({{"process"},
               {"pid", kRight},
               {"opened in", kRight},
               {"memory (PSS)", kRight},
               {"with its own copy", kRight}},
              "   ");
  ProcessMemory together;
  std::uint64_t copies = 0;
  const auto add = [&](const std::string& process, int pid, const std::string& opened_in) {
    const ProcessMemory memory = memory_of(pid);
    const std::uint64_t with_copy = memory.other() + loaded_.bytes;
    table.add(
        {process, fmt::format("{}", pid), opened_in, format_bytes(memory.pss), format_bytes(with_copy)});
    together.pss += memory.pss;
    together.shared += memory.shared;
    copies += with_copy;
  };
  add("owner", current_pid(), "");
  for (const DemoBorrower& borrower : borrowers_)
    add("borrower " + borrower.name, borrower.child.pid(), format_duration(borrower.opened_in));
  table.add({"together", "", "", format_bytes(together.pss), format_bytes(copies)});
  fmt::print("{}\n", table.str());
  peak_memory_ = together.pss;
  check_one_copy(together.shared);
}

/// Checks the sum. Less than the tensors means that a process has not touched them, more that a process holds a copy.
void Demo::check_one_copy(std::uint64_t shared) {
  const bool holds = shared >= loaded_.bytes / 100 * 95 && shared <= loaded_.bytes + kDemoAllowance;
  check(holds, fmt::format("there is one copy: the four share {} of memory for {} of tensors",
                           format_bytes(shared), format_bytes(loaded_.bytes)));
}

void Demo::change_in_place() {
  const auto& [tensor_name, tensor] = loaded_.tensors[changed_row_];
  const auto* own = tensor.as<std::uint8_t>();
  const std::uint8_t before = *own;
  const std::uint8_t after = before ^ 1;  // also valid for bool
  const Json question{{"do", "byte"}, {"row", changed_row_}};
  Json order = question;
  order["store"] = after;
  bool seen = borrowers_.front().child.ask(order, kDemoPatience).at("value") == after && *own == after;
  for (DemoBorrower& borrower : borrowers_)
    seen = seen && borrower.child.ask(question, kDemoPatience).at("value") == after;
  check(seen, fmt::format("A changed the first byte of {} in place from {} to {}: owner, B and C see it",
                          shorten(tensor_name, 32), before, after));
}

std::optional<BorrowerInfo> Demo::seen_borrower(int pid) const {
  for (const BorrowerInfo& borrower : this_owner().borrowers)
    if (borrower.pid == pid) return borrower;
  return std::nullopt;
}

void Demo::kill_one() {
  const auto killed = std::next(borrowers_.begin());
  const int pid = killed->child.pid();
  const auto before = seen_borrower(pid);
  const std::uint64_t leases = before ? before->claims : 0;
  const auto start = Clock::now();
  killed->child.kill();
  const bool gone = eventually([&] { return !seen_borrower(pid); });
  const std::chrono::nanoseconds took = Clock::now() - start;
  borrowers_.erase(killed);
  check(leases > 0 && gone, fmt::format("B was killed (SIGKILL): its {} gone {} later",
                                        leases == 1 ? "one lease was" : plural(leases, "lease") + " were",
                                        format_duration(took)));
}

void Demo::go_on_reading() {
  ask_all_for_checksums();
  const std::uint32_t own = own_checksum();
  bool equal = true;
  for (const DemoBorrower& borrower : borrowers_) equal = equal && borrower.crc == own;
  check(equal, "A and C go on: they read every byte again, the same as the owner");
}

}  // namespace onecopy::cli
