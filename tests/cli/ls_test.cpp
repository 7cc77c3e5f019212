// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <csignal>
#include <memory>
#include <sstream>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "command_process.h"
#include "onecopy/graph/arena.h"
#include "onecopy/rpc/agent.h"
#include "os/fd.h"
#include "share/session.h"
#include "support/child.h"
#include "support/eventually.h"
#include "support/watchdog.h"

namespace onecopy::testing {
namespace {

/// Owners that only these tests see: their sockets are in a directory of their own.
class LsOfOwners : public ::testing::Test {
 protected:
  Outcome ls(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), "ls");
    return run_command(arguments, "", environment);
  }
  /// The argument of `onecopy share`: a file with a tensor of that many bytes.
  std::string file(const std::string& name, std::size_t bytes) const {
    const std::string size = std::to_string(bytes);
    write_file(files_.path() + "/" + name, safetensors_bytes(R"({"x":{"dtype":"U8","shape":[)" + size +
                                                                 R"(],"data_offsets":[0,)" + size + "]}}",
                                                             std::string(bytes, 'x')));
    return files_.path() + "/" + name;
  }

 private:
  Watchdog watchdog_{std::chrono::seconds(110)};
  TemporaryDirectory files_;
  TemporaryDirectory sockets_;

 protected:
  const CommandProcess::Environment environment{{"ONECOPY_RUNTIME_DIR", sockets_.path()},
                                                {"ONECOPY_STORE_DIR", sockets_.path() + "/store"}};
};

/// The place of each owner's line in the table.
std::size_t place_of(const std::string& table, int pid) { return table.find(std::to_string(pid) + " "); }

TEST_F(LsOfOwners, AreFollowedByTheObjectsOfTheStore) {
  ASSERT_EQ(run_command({"store", "put", "llama", file("w.safetensors", 4096)}, "", environment).status, 0);
  const std::string table = ls({}).out;
  EXPECT_TRUE(contains(table, "\nOBJECT")) << table;
  EXPECT_TRUE(contains(table, "llama")) << table;
  EXPECT_TRUE(contains(table, "1*")) << table;
  const auto json = nlohmann::json::parse(ls({"--format", "json"}).out);
  EXPECT_EQ(json.at("store").at("objects").at(0).at("name"), "llama");
  EXPECT_EQ(json.at("store").at("objects").at(0).at("versions").at(0).at("bytes"), 4096);
  EXPECT_EQ(run_command({"store", "stop"}, "", environment).status, 0);
  EXPECT_FALSE(contains(ls({}).out, "llama"));
}

TEST_F(LsOfOwners, ThatHaveMostMemoryComeFirstAndTotalsLast) {
  const CommandProcess small({"share", file("small", 64)}, "", environment);
  const CommandProcess large({"share", file("large", 4 << 20)}, "", environment);
  ASSERT_TRUE(contains(small.first_line() + large.first_line(), "onecopy:"));
  const std::string table = ls({}).out;
  EXPECT_LT(place_of(table, large.pid()), place_of(table, small.pid())) << table;
  EXPECT_LT(place_of(table, small.pid()), table.find("total ")) << table;
  EXPECT_TRUE(contains(table, "2 owners"));
}

TEST_F(LsOfOwners, HasALineForEachWithItsCommandLine) {
  const std::string path = file("small", 64);
  const CommandProcess share({"share", path}, "", environment);
  const CommandProcess open({"open", share.first_line(), "--hold"}, "", environment);
  ASSERT_TRUE(open.says("Holding"));
  const std::string table = ls({}).out;
  EXPECT_EQ(count(table, std::to_string(share.pid())), 1u) << table;
  EXPECT_TRUE(contains(table, "onecopy share " + path));
}

TEST_F(LsOfOwners, GivesDetailsOfTheProcessesAskedForOnly) {
  const CommandProcess share({"share", file("small", 64)}, "", environment);
  const CommandProcess other({"share", file("other", 64)}, "", environment);
  const CommandProcess open({"open", share.first_line(), "--hold"}, "", environment);
  ASSERT_TRUE(contains(other.first_line(), "onecopy:"));
  ASSERT_TRUE(open.says("Holding"));
  const std::string pid = std::to_string(share.pid());
  const std::string borrower = std::to_string(open.pid()) + " (onecopy) borrows";
  const Outcome one = ls({"-v", pid});
  EXPECT_EQ(one.status, 0) << one.err;
  EXPECT_TRUE(contains(one.out, pid + ": " + borrower));
  EXPECT_EQ(count(one.out, std::to_string(other.pid()) + ":"), 0u) << one.out;
  const std::string all = ls({"-v"}).out;
  EXPECT_TRUE(contains(all, borrower));
  EXPECT_TRUE(contains(all, std::to_string(other.pid()) + ": "));
  EXPECT_EQ(count(ls({}).out, "borrows"), 0u);
}

TEST_F(LsOfOwners, GivesNumbersOfAllToPrometheusWithOneHeaderForEach) {
  const CommandProcess small({"share", file("small", 64)}, "", environment);
  const CommandProcess large({"share", file("large", 4 << 20)}, "", environment);
  ASSERT_TRUE(contains(small.first_line() + large.first_line(), "onecopy:"));
  const auto owners = nlohmann::json::parse(ls({"--format", "json"}).out)["owners"];
  const std::string text = ls({"--format", "prometheus"}).out;
  ASSERT_EQ(owners.size(), 2u);
  for (const auto& owner : owners)
    for (const char* const number : {"live_bytes", "segments", "shared_total"})
      EXPECT_TRUE(contains(text, fmt::format("onecopy_{}{{pid=\"{}\",process=\"onecopy\"}} {}\n", number,
                                             owner["pid"].get<int>(), owner["stats"][number].get<int>())))
          << text;
  EXPECT_EQ(count(text, "# TYPE onecopy_live_bytes gauge\n"), 1u) << text;
  EXPECT_EQ(count(text, "# TYPE onecopy_shared_total counter\n"), 1u) << text;
  EXPECT_EQ(count(text, "# TYPE onecopy_host_waits_total counter\n"), 1u) << text;
  EXPECT_TRUE(contains(text, "onecopy_silent_processes 0\n")) << text;
  EXPECT_TRUE(contains(text, "onecopy_build_info{version=\"")) << text;
  EXPECT_TRUE(text.ends_with("\nonecopy_store_up 0\n")) << text;
}

TEST_F(LsOfOwners, GivesTheObjectsOfTheStoreToPrometheus) {
  for (int version = 1; version <= 2; ++version)
    ASSERT_EQ(run_command({"store", "put", "the \"large\" one", file("w", 4096)}, "", environment).status,
              0);
  const std::string text = ls({"--format", "prometheus"}).out;
  EXPECT_TRUE(contains(text, "\nonecopy_store_up 1\n")) << text;
  for (const char* const number : {"current_version", "versions"})
    EXPECT_TRUE(
        contains(text, fmt::format("onecopy_store_{}{{object=\"the \\\"large\\\" one\"}} 2\n", number)))
        << text;
  EXPECT_TRUE(contains(text, "one\"} 8192\n")) << text;
  EXPECT_EQ(run_command({"store", "stop"}, "", environment).status, 0);
}

/// The worker and the guard of the store.
std::vector<int> keeper_of(const CommandProcess::Environment& environment) {
  const Outcome status = run_command({"store", "status", "--format", "json"}, "", environment);
  const auto keeper = nlohmann::json::parse(status.out).at("keeper");
  return {keeper.at("worker"), keeper.at("guard")};
}

TEST_F(LsOfOwners, AreListedWhenTheKeeperOfTheStoreDoesNotAnswer) {
  const CommandProcess share({"share", file("small", 64)}, "", environment);
  ASSERT_TRUE(contains(share.first_line(), "onecopy:"));
  ASSERT_EQ(run_command({"store", "put", "llama", file("w", 4096)}, "", environment).status, 0);
  const std::vector<int> keeper = keeper_of(environment);
  for (const int pid : keeper) ::kill(pid, SIGSTOP);
  const Outcome text = ls({}), metrics = ls({"--format", "prometheus"}), json = ls({"--format", "json"});
  for (const int pid : keeper) ::kill(pid, SIGCONT);
  EXPECT_EQ(text.status, 0) << text.err;
  EXPECT_TRUE(contains(text.out, "Not listed: the store's keeper has not answered for 2 s (pids "))
      << text.out;
  for (const int pid : keeper) EXPECT_EQ(count(text.out, std::to_string(pid)), 1u) << text.out;
  EXPECT_EQ(count(text.out, std::to_string(share.pid()) + " "), 1u) << text.out;
  EXPECT_EQ(metrics.status, 0) << metrics.err;
  EXPECT_TRUE(contains(metrics.out, fmt::format("onecopy_live_bytes{{pid=\"{}\"", share.pid())));
  EXPECT_TRUE(metrics.out.ends_with("\nonecopy_store_up 0\n")) << metrics.out;
  EXPECT_FALSE(nlohmann::json::parse(json.out).at("store").at("problem").get<std::string>().empty());
  EXPECT_TRUE(contains(ls({}).out, "llama"));
  EXPECT_EQ(run_command({"store", "stop"}, "", environment).status, 0);
}

TEST_F(LsOfOwners, SaysThatItsDirectoryCannotBeOneOfProcesses) {
  const Outcome nowhere = run_command({"ls"}, "", {{"ONECOPY_RUNTIME_DIR", "/nonexistent/x"}});
  EXPECT_EQ(nowhere.status, 1);
  EXPECT_TRUE(contains(nowhere.err, "/nonexistent/x")) << nowhere.err;
}

TEST_F(LsOfOwners, RemovingAnObjectOfTheStoreSaysWhatIsLeft) {
  for (int version = 1; version <= 3; ++version)
    ASSERT_EQ(run_command({"store", "put", "a", file("w", 64), "--keep", "3"}, "", environment).status, 0);
  EXPECT_EQ(run_command({"store", "rollback", "a", "2"}, "", environment).out,
            "a version 2 is the current one\n");
  EXPECT_EQ(run_command({"store", "rm", "a", "--keep", "1"}, "", environment).out,
            "a: 2 versions removed, 1 left\n");
  EXPECT_EQ(run_command({"store", "rm", "a"}, "", environment).out, "a: 1 version removed, 0 left\n");
  const Outcome again = run_command({"store", "rm", "a"}, "", environment);
  EXPECT_EQ(again.status, 1);
  EXPECT_TRUE(contains(again.err, "the store has no object \"a\"")) << again.err;
  EXPECT_EQ(run_command({"store", "stop"}, "", environment).status, 0);
}

TEST_F(LsOfOwners, ShowsArenasOfCapturedGraphs) {
  Child owner([&] {
    ::setenv("ONECOPY_RUNTIME_DIR", environment.front().second.c_str(), 1);
    const std::shared_ptr<graph::Arena> arena = graph::Arena::make(kCpu);
    const graph::Window small = arena->open(1000), large = arena->open(std::size_t{5} << 20);
    Session::current().list_arena([&] {
      const auto size = arena->footprint();
      return ArenaInfo{"cpu", size.shared, size.own, size.mapped, size.windows, size.parked};
    });
    ::pause();
  });
  const std::string pid = std::to_string(owner.pid());
  const std::string line = "Arenas of captured graphs: " + pid + " (6.0 MiB for 2 graphs)";
  EXPECT_TRUE(eventually([&] { return contains(ls({}).out, line); })) << ls({}).out;
  const std::string details = ls({"-v", pid}).out;
  EXPECT_TRUE(contains(details, pid + ": 6.0 MiB of an arena on cpu for 2 captured graphs\n")) << details;
  const auto arena = nlohmann::json::parse(ls({"--format", "json"}).out)["owners"][0]["arenas"][0];
  EXPECT_EQ(arena["shared"], 6 << 20);
  EXPECT_EQ(arena["mapped"], 8 << 20);
}

TEST_F(LsOfOwners, ListsMembersOfGroupsOfRpcWithTheirPeers) {
  EXPECT_TRUE(contains(ls({"--rpc"}).out, "No process of this user that answers is a member"));
  Child member([&] {
    ::setenv("ONECOPY_RUNTIME_DIR", environment.front().second.c_str(), 1);
    rpc::Agent agent({.name = "trainer", .number = 3});
    agent.define("echo", [](rpc::Values&& values) { return std::move(values); });
    agent.join(agent.address());
    for (int i = 0; i < 41; ++i) agent.call("trainer", "echo");
    ::pause();
  });
  const std::string pid = std::to_string(member.pid());
  EXPECT_TRUE(eventually(
      [&] { return contains(ls({"--rpc"}).out, pid + " is trainer (3), with 0 calls under way"); }));
  const auto peer = [&] {
    const auto list = nlohmann::json::parse(ls({"--rpc", "--format", "json"}).out);
    return list["owners"][0]["groups"][0]["peers"][0];
  };
  EXPECT_TRUE(eventually([&] { return peer()["answers"] == 41; }));
  EXPECT_EQ(peer()["served"], 41);
  EXPECT_EQ(peer()["state"], "here");
}

TEST_F(LsOfOwners, RefusesAPidThatNoOwnerHas) {
  const Outcome none = ls({"-v", "1"});
  EXPECT_EQ(none.status, 1);
  EXPECT_TRUE(contains(none.err, "onecopy: process 1 does not use onecopy"));
  EXPECT_TRUE(contains(ls({"-v", "weights"}).err, "weights is not a pid"));
}

TEST_F(LsOfOwners, WatchesUntilCtrlC) {
  const CommandProcess share({"share", file("small", 64)}, "", environment);
  ASSERT_TRUE(contains(share.first_line(), "onecopy:"));
  CommandProcess watch({"ls", "--watch", "0.01"}, "", environment);
  EXPECT_TRUE(eventually([&] { return count(watch.out(), std::to_string(share.pid())) >= 3; }))
      << watch.err();
  watch.signal(SIGINT);
  EXPECT_EQ(watch.wait(), 0) << watch.err();
}

TEST_F(LsOfOwners, WatchedInJsonIsALineForEachLook) {
  CommandProcess watch({"ls", "--watch", "0.01", "--format", "json"}, "", environment);
  ASSERT_TRUE(eventually([&] { return count(watch.out(), "\n") >= 3; })) << watch.err();
  watch.signal(SIGTERM);
  EXPECT_EQ(watch.wait(), 0);
  std::istringstream lines(watch.out());
  for (std::string line; std::getline(lines, line);)
    EXPECT_TRUE(nlohmann::json::parse(line).contains("owners")) << line;
}

/// A terminal of that many columns: bytes written to its name are read from it.
class Terminal {
 public:
  explicit Terminal(unsigned short columns) : master_(::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC)) {
    EXPECT_EQ(::grantpt(master_.get()), 0);
    EXPECT_EQ(::unlockpt(master_.get()), 0);
    const winsize size{50, columns, 0, 0};
    EXPECT_EQ(::ioctl(master_.get(), TIOCSWINSZ, &size), 0);
    name_ = ::ptsname(master_.get());
    slave_ = Fd(::open(name_.c_str(), O_RDWR | O_NOCTTY | O_CLOEXEC));  // or the master reads an end
    ::fcntl(master_.get(), F_SETFL, O_NONBLOCK);
  }

  const std::string& name() const noexcept { return name_; }
  /// The text written to it by now.
  std::string text() const {
    std::string all;
    char part[4096];
    for (ssize_t got; (got = ::read(master_.get(), part, sizeof part)) > 0;)
      all.append(part, static_cast<std::size_t>(got));
    return all;
  }

 private:
  Fd master_;
  Fd slave_;
  std::string name_;
};

/// The command's output on a terminal of that many columns, in lines without their colours.
std::vector<std::string> lines_on_terminal(unsigned short columns,
                                           const std::vector<std::string>& arguments,
                                           CommandProcess::Environment environment) {
  const Terminal terminal(columns);
  environment.emplace_back("NO_COLOR", "1");
  CommandProcess command(arguments, "", environment, terminal.name());
  EXPECT_EQ(command.wait(), 0) << command.err();
  std::istringstream text(terminal.text());
  std::vector<std::string> lines;
  for (std::string line; std::getline(text, line);) lines.push_back(line.substr(0, line.find('\r')));
  return lines;
}

std::size_t columns_of(const std::string& line) {
  std::size_t columns = 0;
  for (const char c : line) columns += (static_cast<unsigned char>(c) & 0xc0) != 0x80;
  return columns;
}

TEST_F(LsOfOwners, CutsCommandLinesToTheTerminal) {
  const std::string path = file(std::string(150, 'n'), 64);
  const CommandProcess share({"share", path}, "", environment);
  ASSERT_TRUE(contains(share.first_line(), "onecopy:"));
  const auto lines = lines_on_terminal(100, {"ls"}, environment);
  ASSERT_GE(lines.size(), 2u);
  for (const std::string& line : lines) EXPECT_LE(columns_of(line), 100u) << line;
  EXPECT_TRUE(contains(lines[1], std::to_string(share.pid())));
  EXPECT_TRUE(contains(ls({}).out, path)) << "what is no terminal gets all of it";
}

TEST_F(LsOfOwners, NamesOfTensorsAreCutToTheTerminalToo) {
  const std::string name = std::string(97, 'n') + ".weight";
  const std::string path = file("long", 64);
  write_file(path, safetensors_bytes(
                       R"({")" + name + R"(":{"dtype":"U8","shape":[2048],"data_offsets":[0,2048]}})",
                       std::string(2048, 'x')));
  const CommandProcess share({"share", path}, "", environment);
  const auto lines = lines_on_terminal(80, {"open", share.first_line()}, environment);
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_LE(columns_of(lines[1]), 80u) << lines[1];
  EXPECT_TRUE(contains(lines[1], "2.0 KiB"));
  EXPECT_TRUE(contains(run_command({"open", share.first_line()}, "", environment).out, name));
}

}  // namespace
}  // namespace onecopy::testing
