// SPDX-License-Identifier: Apache-2.0
#include "os/log.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <regex>
#include <string>
#include <thread>

#include "failing_allocations.h"
#include "onecopy/core/error.h"
#include "os/file.h"
#include "support/child.h"
#include "support/limits.h"
#include "support/temporary_directory.h"

namespace onecopy {
namespace {

void log_one_of_each() {
  log_debug("d");
  log_info("i");
  log_warning("w {}");
  log_error("e");
}

/// The output on stderr, with "time" and "pid" in the place of both, of a process with ONECOPY_LOG=`level`; none means not set.
template <class Function>
std::string stderr_of(const char* level, Function function) {
  const TemporaryDirectory directory;
  testing::Child child([&] {
    level ? ::setenv("ONECOPY_LOG", level, 1) : ::unsetenv("ONECOPY_LOG");
    const Fd file = open_file(directory / "stderr", O_WRONLY | O_CREAT);
    ASSERT_EQ(::dup2(file.get(), STDERR_FILENO), STDERR_FILENO);
    function();
  });
  EXPECT_EQ(child.join(), 0);
  std::string text = try_read_text(directory / "stderr").value_or("nothing");
  const std::string pid = std::to_string(child.pid());
  for (auto at = text.find(pid); at != std::string::npos; at = text.find(pid))
    text.replace(at, pid.size(), "pid");
  static const std::regex time(R"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z)");
  return std::regex_replace(text, time, "time");
}

std::string logged_with(const char* level) { return stderr_of(level, log_one_of_each); }

const char kWarning[] = "[onecopy] [time] [warning] [pid] w {}\n";
const char kError[] = "[onecopy] [time] [error] [pid] e\n";
const char kInfo[] = "[onecopy] [time] [info] [pid] i\n";
const char kDebug[] = "[onecopy] [time] [debug] [pid] d\n";

TEST(Log, WritesWarningsAndErrorsUnlessToldOtherwise) {
  EXPECT_EQ(logged_with(nullptr), std::string(kWarning) + kError);
  EXPECT_EQ(logged_with(""), std::string(kWarning) + kError);
  EXPECT_EQ(logged_with("warning"), std::string(kWarning) + kError);
}

TEST(Log, SaysOnceThatALevelIsNone) {
  EXPECT_EQ(logged_with("verbose"),
            "[onecopy] [time] [warning] [pid] ONECOPY_LOG is \"verbose\", which is not a level (off, "
            "error, warning, "
            "info, debug); using warning\n" +
                std::string(kWarning) + kError);
}

TEST(Log, WritesAsMuchAsTheEnvironmentSays) {
  EXPECT_EQ(logged_with("off"), "");
  EXPECT_EQ(logged_with("error"), kError);
  EXPECT_EQ(logged_with("info"), std::string(kInfo) + kWarning + kError);
  EXPECT_EQ(logged_with("debug"), std::string(kDebug) + kInfo + kWarning + kError);
}

TEST(Log, MakesADebugLineOnlyIfItIsWritten) {
  const auto log_lazily = [] {
    log_debug([] { return "d"; });
    log_debug([]() -> std::string { throw Error(ErrorCode::out_of_memory, "for the line"); });
  };
  EXPECT_EQ(stderr_of("debug", log_lazily), kDebug);
  const auto abort_if_made = [] { log_debug([]() -> std::string { std::abort(); }); };
  EXPECT_EQ(stderr_of("info", abort_if_made), "");
  EXPECT_EQ(stderr_of(nullptr, abort_if_made), "");
}

/// A sink: a line of its own form where the test reads it.
void note(LogLevel level, std::string_view text) {
  const std::string line = std::to_string(static_cast<int>(level)) + " " + std::string(text) + ";";
  if (::write(STDERR_FILENO, line.data(), line.size()) < 0) std::abort();
}

TEST(Log, ASinkGetsLevelAndTextInsteadOfStderr) {
  const std::string noted = stderr_of("info", [] {
    set_log_sink(note);
    log_one_of_each();
    set_log_sink(nullptr);
    log_error("e");
  });
  EXPECT_EQ(noted, std::string("1 i;2 w {};3 e;") + kError);
}

TEST(Log, ASinkThatThrowsEndsNothing) {
  EXPECT_EQ(
      stderr_of(nullptr,
                [] {
                  set_log_sink([](LogLevel, std::string_view) { throw Error(ErrorCode::system, "no"); });
                  log_one_of_each();
                  set_log_sink(nullptr);
                  log_error("e");
                }),
      kError);
}

TEST(Log, ALineWithoutMemoryEndsNothing) {
  if (testing::kSanitized) GTEST_SKIP() << "sanitizers have an operator new of their own";
  const std::string text = stderr_of("warning", [] {
    const std::string name(2000, 'x');
    testing::allocations_left = 0;
    log_warning("a line that is longer than strings keep within themselves");
    log_warning("it has {} letters", 17);
    log_warning("the name {}", name);
    testing::allocations_left = -1;
    log_warning("w {}", "{}");
  });
  EXPECT_EQ(text,
            "[onecopy] [time] [warning] [pid] a line that is longer than strings keep within themselves\n"
            "[onecopy] [time] [warning] [pid] it has 17 letters\n" +
                std::string(kWarning));
}

TEST(Log, LeavesErrnoAlone) {
  stderr_of(nullptr, [] {
    ::close(STDERR_FILENO);
    errno = EXDEV;
    log_error("e");
    ASSERT_EQ(errno, EXDEV);
  });
}

// A pipe of packets: a read returns what one write wrote.
TEST(Log, EachLineIsOneWriteHoweverLong) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_DIRECT | O_CLOEXEC), 0);
  const Fd reader(ends[0]), writer(ends[1]);
  const std::string text(3000, 'x');
  testing::Child child([&] {
    ::setenv("ONECOPY_LOG", "error", 1);
    ASSERT_EQ(::dup2(writer.get(), STDERR_FILENO), STDERR_FILENO);
    log_error(text);
    log_error("e");
  });
  EXPECT_EQ(child.join(), 0);
  std::string line(4096, '\0');
  for (const std::string& expected : {text + "\n", std::string("e\n")}) {
    const ssize_t size = ::read(reader.get(), line.data(), line.size());
    ASSERT_GT(size, 0);
    EXPECT_TRUE(std::string_view(line).substr(0, static_cast<std::size_t>(size)).ends_with(" " + expected));
  }
}

TEST(Log, AChildForkedWhileAThreadLogsCanLog) {
  if (testing::kSanitized)
    GTEST_SKIP() << "sanitizers' allocators know nothing of forks beside other threads";
  stderr_of("error", [] {
    const Fd nowhere = open_file("/dev/null", O_WRONLY);
    ASSERT_EQ(::dup2(nowhere.get(), STDERR_FILENO), STDERR_FILENO);
    std::atomic<bool> done{false};
    std::thread logging([&] {
      while (!done.load()) log_error(std::string(2000, 'x'));
    });
    constexpr int kForks = 10;
    for (int i = 0; i < kForks; ++i) {
      testing::Child child([] { log_error(std::string(2000, 'y')); });
      EXPECT_EQ(child.join(), 0);
    }
    done.store(true);
    logging.join();
    ASSERT_FALSE(::testing::Test::HasFailure());
  });
}

}  // namespace
}  // namespace onecopy
