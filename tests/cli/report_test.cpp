// SPDX-License-Identifier: Apache-2.0
#include <sys/resource.h>

#include <csignal>
#include <filesystem>
#include <string>

#include <gtest/gtest.h>

#include "command_process.h"
#include "support/watchdog.h"

namespace onecopy::testing {
namespace {

/// Owners that only these tests see: their sockets are in a directory of their own.
class ReportOfOwners : public ::testing::Test {
 protected:
  Outcome report(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), "report");
    return run_command(arguments, "", environment);
  }
  std::string file(const std::string& name) const { return files_.path() + "/" + name; }
  /// A process that keeps a tensor of 64 bytes; its command line names the file.
  std::string weights(const std::string& name) const {
    write_file(file(name), safetensors_bytes(R"({"x":{"dtype":"U8","shape":[64],"data_offsets":[0,64]}})",
                                             std::string(64, 'x')));
    return file(name);
  }

 private:
  Watchdog watchdog_{std::chrono::seconds(110)};
  cli::TemporaryDirectory files_;
  cli::TemporaryDirectory sockets_;

 protected:
  const CommandProcess::Environment environment{{"ONECOPY_RUNTIME_DIR", sockets_.path()},
                                                {"ONECOPY_STORE_DIR", sockets_.path() + "/store"}};
};

/// Lets processes that are started meanwhile write no larger files, as on a full disk.
class SmallFiles {
 public:
  explicit SmallFiles(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit small{bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &small);
  }
  ~SmallFiles() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  void (*handler_)(int);
  rlimit before_{};
};

TEST_F(ReportOfOwners, LeavesNoPartOfAPageThatCannotBeWritten) {
  const std::string page = file("page.html");
  const SmallFiles small(1024);
  const Outcome outcome = report({"--for", "0", page});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_TRUE(contains(outcome.err, page)) << outcome.err;
  EXPECT_FALSE(std::filesystem::exists(page));
}

TEST_F(ReportOfOwners, NamesOwnersAndTheirBorrowers) {
  const CommandProcess owner({"share", weights("w.safetensors")}, "", environment);
  const CommandProcess borrower({"open", owner.first_line(), "--hold"}, "", environment);
  ASSERT_TRUE(contains(borrower.first_line(), "name"));
  ASSERT_EQ(report({"--for", "0.2", "--every", "0.1", file("page.html")}).status, 0);
  const std::string page = read_file(file("page.html"));
  EXPECT_TRUE(contains(page, "w.safetensors</div></td>"));
  EXPECT_TRUE(contains(page, "<td class=\"n\">" + std::to_string(borrower.pid()) + "</td>"));
  EXPECT_EQ(count(page, "class=\"claim\""), 1U) << page;
  EXPECT_EQ(count(page, "class=\"box\""), 2U) << page;
}

/// The default is to watch for five seconds, after which the page would be lost.
TEST_F(ReportOfOwners, SaysThatItCannotWriteBeforeItWatches) {
  const Outcome lost = report({"--for", "3600", file("no such folder/page.html")});
  EXPECT_EQ(lost.status, 1);
  EXPECT_TRUE(contains(lost.err, "cannot write")) << lost.err;
  EXPECT_FALSE(contains(lost.err, "watching")) << lost.err;
}

TEST_F(ReportOfOwners, NeedsNoNetworkAndHasNoScript) {
  const CommandProcess owner({"share", weights("w.safetensors")}, "", environment);
  ASSERT_TRUE(contains(owner.first_line(), "onecopy:"));
  const std::string page = report({"--for", "0", "-"}).out;
  EXPECT_TRUE(contains(page, "<!DOCTYPE html>"));
  for (const char* part : {"http:", "https:", "<script", "<link", "@import", "url(", "src="})
    EXPECT_EQ(count(page, part), 0U) << part;
}

TEST_F(ReportOfOwners, ShowsNamesAsTextWhateverIsInThem) {
  const CommandProcess owner({"share", weights("<b>&\"'.safetensors")}, "", environment);
  ASSERT_TRUE(contains(owner.first_line(), "onecopy:"));
  const std::string page = report({"--for", "0", "-"}).out;
  EXPECT_TRUE(contains(page, "&lt;b&gt;&amp;&quot;&#39;.safetensors"));
  EXPECT_EQ(count(page, "<b>&"), 0U);
}

TEST_F(ReportOfOwners, ClosesEveryElementThatItOpens) {
  const CommandProcess owner({"share", weights("w.safetensors")}, "", environment);
  const CommandProcess borrower({"open", owner.first_line(), "--hold"}, "", environment);
  ASSERT_TRUE(contains(borrower.first_line(), "name"));
  const std::string page = report({"--for", "0", "-"}).out;
  for (const std::string element : {"html", "head", "body", "table", "thead", "tbody", "tr", "td", "svg",
                                    "div", "h2", "p", "text", "path"})
    EXPECT_EQ(count(page, "<" + element + ">") + count(page, "<" + element + " "),
              count(page, "</" + element + ">"))
        << element;
}

TEST_F(ReportOfOwners, SaysSoWhenThereIsNothing) {
  const Outcome outcome = report({"--for", "0", "-"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_TRUE(contains(outcome.out, "No process has memory of another open."));
  EXPECT_TRUE(contains(outcome.out, "Nothing is in transit."));
}

TEST_F(ReportOfOwners, EndsEarlyAndWritesThePageWhenItIsInterrupted) {
  CommandProcess process({"report", "--for", "3600", "--every", "0.05", file("page.html")}, "",
                         environment);
  const CommandProcess owner({"share", weights("w.safetensors")}, "", environment);
  ASSERT_TRUE(contains(owner.first_line(), "onecopy:"));
  ASSERT_TRUE(process.says("Ctrl-C"));  // from here on it is ready for one
  process.signal(SIGINT);
  EXPECT_EQ(process.wait(), 0) << process.err();
  EXPECT_TRUE(contains(read_file(file("page.html")), "</html>"));
}

TEST_F(ReportOfOwners, FailsWhereItCannotWrite) {
  const Outcome outcome = report({"--for", "0", file("nowhere/page.html")});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_TRUE(contains(outcome.err, "cannot write"));
  EXPECT_TRUE(contains(outcome.err, "No such file"));
}

}  // namespace
}  // namespace onecopy::testing
