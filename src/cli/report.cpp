// SPDX-License-Identifier: Apache-2.0
#include <sys/utsname.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "commands.h"
#include "interrupts.h"
#include "onecopy/core/error.h"
#include "onecopy/share/stats.h"
#include "report_page.h"
#include "store_table.h"
#include "text.h"

namespace onecopy::cli {
namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

struct ReportOptions {
  std::string file = "onecopy-report.html";
  double seconds = 5;
  double every = 0.5;
  std::string version;  ///< the version of this program
};

constexpr std::size_t kMaxMoments = 1000;

struct Observations {
  Look last;
  std::vector<Moment> past;
};

Look look_at_all(Clock::time_point start) {
  OwnerList list = ask_owners();
  const double seconds = Seconds(Clock::now() - start).count();
  return {seconds, sorted(std::move(list.owners)), std::move(list.silent), store_state().objects};
}

Moment moment_of(const Look& look) {
  Moment moment{look.seconds, {}};
  for (const ListedOwner& owner : look.owners)
    moment.memory[owner.info.pid] = owner.info.stats.bytes_shared;
  return moment;
}

/// Thins out the past: a drawing has no room for more, and a process that watches for a day has no memory for more.
void thin(std::vector<Moment>& past) {
  if (past.size() < kMaxMoments) return;
  std::size_t kept = 0;
  for (std::size_t i = 0; i < past.size(); i += 2) past[kept++] = std::move(past[i]);
  past.resize(kept);
}

/// Looks at the processes at least once, and repeatedly until the time is over or the user ends the watch.
Observations watch(const ReportOptions& options) {
  Interrupts interrupts;
  if (options.seconds > 0)
    fmt::print(stderr, "watching for {} s; Ctrl-C ends this early, and writes the page\n", options.seconds);
  Clock::time_point start = Clock::now();
  Observations watched{look_at_all(start), {}};
  start += std::chrono::duration_cast<Clock::duration>(Seconds(std::exchange(watched.last.seconds, 0)));
  watched.past.push_back(moment_of(watched.last));
  while (watched.last.seconds < options.seconds) {
    const Seconds left(std::min(options.every, options.seconds - watched.last.seconds));
    if (interrupts.wait_for(std::chrono::ceil<std::chrono::nanoseconds>(left))) break;
    watched.last = look_at_all(start);
    thin(watched.past);
    watched.past.push_back(moment_of(watched.last));
  }
  return watched;
}

[[noreturn]] void throw_not_written(const std::string& file) {
  throw Error(ErrorCode::system, fmt::format("cannot write {}: {}", file, std::strerror(errno)), errno,
              ErrorDomain::posix);
}

/// Checks before the watch that the page can be written. Leaves the content of a present file, and creates an empty one
/// otherwise.
void check_writable(const std::string& file) {
  if (file == "-") return;
  if (!std::ofstream(file, std::ios::binary | std::ios::app)) throw_not_written(file);
}

void write(const std::string& file, const std::string& page) {
  if (file == "-") {
    fmt::print("{}", page);
    return;
  }
  std::ofstream out(file, std::ios::binary | std::ios::trunc);
  out << page;
  out.close();
  if (out) return;
  const int error = errno;
  if (std::filesystem::is_regular_file(file)) std::filesystem::remove(file);  // a part of a page
  errno = error;
  throw_not_written(file);
}

std::string here_and_now(const std::string& version) {
  utsname host{};
  ::uname(&host);
  return fmt::format("{} on {:%Y-%m-%d %H:%M:%S} UTC, {}", static_cast<const char*>(host.nodename),
                     fmt::gmtime(std::time(nullptr)), version);
}

int report(const ReportOptions& options) {
  check_writable(options.file);
  const Observations watched = watch(options);
  write(options.file, report_page(watched.last, watched.past, here_and_now(options.version)));
  fmt::print(stderr, "{}: {}, watched for {:.1f} s\n", options.file == "-" ? "stdout" : options.file,
             plural(watched.last.owners.size(), "process"), watched.last.seconds);
  return 0;
}

}  // namespace

void add_report(CLI::App& app, Command& command) {
  auto* sub = app.add_subcommand(
      "report", "Write one HTML page: who holds what, and how it changed while it watched");
  auto options = std::make_shared<ReportOptions>();  // shared by the parser, which sets it, and the command
  options->version = app.version();
  sub->add_option("FILE", options->file, "Where to write it; - is stdout")->capture_default_str();
  sub->add_option("--for", options->seconds, "How long to watch; Ctrl-C ends it early, and writes the page")
      ->check(CLI::Range(0.0, 86400.0, "SECONDS"))
      ->type_name("SECONDS")
      ->capture_default_str();
  sub->add_option("--every", options->every, "Interval between two samples")
      ->check(CLI::Range(0.05, 3600.0, "SECONDS"))
      ->type_name("SECONDS")
      ->capture_default_str();
  sub->footer(
      "The page needs no network and has no script. It has owners, segments, borrowers, blocks in transit "
      "by queue,\n"
      "objects of the store, memory over time and a map of who holds what; command lines of your processes "
      "are on it.\n"
      "\n"
      "Examples:\n"
      "  onecopy report\n"
      "  onecopy report --for 60 --every 1 training.html\n"
      "  onecopy report --for 0 - > now.html");
  sub->callback([&command, options] { command = [options] { return report(*options); }; });
}

}  // namespace onecopy::cli
