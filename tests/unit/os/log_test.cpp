// SPDX-License-Identifier: Apache-2.0
#include "onecopy/os/log.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>

#include "onecopy/os/file.h"
#include "support/child.h"
#include "temporary_directory.h"

namespace onecopy {
namespace {

/// What a process with ONECOPY_LOG=`level` writes to stderr; none means not set.
std::string logged_with(const char* level) {
  const TemporaryDirectory directory;
  testing::Child child([&] {
    level ? ::setenv("ONECOPY_LOG", level, 1) : ::unsetenv("ONECOPY_LOG");
    const Fd file = open_file(directory / "stderr", O_WRONLY | O_CREAT);
    ASSERT_EQ(::dup2(file.get(), STDERR_FILENO), STDERR_FILENO);
    log_debug("d");
    log_info("i");
    log_warning("w {}");
    log_error("e");
  });
  EXPECT_EQ(child.join(), 0);
  std::string text = try_read_text(directory / "stderr").value_or("nothing");
  const std::string pid = std::to_string(child.pid());
  for (auto at = text.find(pid); at != std::string::npos; at = text.find(pid))
    text.replace(at, pid.size(), "pid");
  return text;
}

const char kWarning[] = "[onecopy] [warning] [pid] w {}\n";
const char kError[] = "[onecopy] [error] [pid] e\n";
const char kInfo[] = "[onecopy] [info] [pid] i\n";
const char kDebug[] = "[onecopy] [debug] [pid] d\n";

TEST(Log, WritesWarningsAndErrorsUnlessToldOtherwise) {
  EXPECT_EQ(logged_with(nullptr), std::string(kWarning) + kError);
  EXPECT_EQ(logged_with(""), std::string(kWarning) + kError);
  EXPECT_EQ(logged_with("warning"), std::string(kWarning) + kError);
}

TEST(Log, SaysOnceThatALevelIsNone) {
  EXPECT_EQ(
      logged_with("verbose"),
      "[onecopy] [warning] [pid] ONECOPY_LOG is \"verbose\", which is no level: off, error, warning, info "
      "or debug; going on with warning\n" +
          std::string(kWarning) + kError);
}

TEST(Log, WritesAsMuchAsTheEnvironmentSays) {
  EXPECT_EQ(logged_with("off"), "");
  EXPECT_EQ(logged_with("error"), kError);
  EXPECT_EQ(logged_with("info"), std::string(kInfo) + kWarning + kError);
  EXPECT_EQ(logged_with("debug"), std::string(kDebug) + kInfo + kWarning + kError);
}

}  // namespace
}  // namespace onecopy
