// SPDX-License-Identifier: Apache-2.0
#include "support/peer_group.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <memory>
#include <sstream>
#include <thread>

#include "support/child.h"

namespace onecopy::testing {
namespace {

constexpr const char* kArgument = "--onecopy-peer=";

using Lines = std::map<std::string, UnixSocket>;

std::map<std::string, const Body*>& bodies() {
  static std::map<std::string, const Body*> all;
  return all;
}

/// Connects every two roles by a socket.
std::map<std::string, Lines> connect_all(const std::map<std::string, const Body*>& roles) {
  std::map<std::string, Lines> lines;
  for (const auto& [a, body_a] : roles)
    for (const auto& [b, body_b] : roles) {
      if (a >= b) continue;
      auto [first, second] = UnixSocket::pair();
      lines[a].emplace(b, std::move(first));
      lines[b].emplace(a, std::move(second));
    }
  return lines;
}

void run_in_thread(const Body& body, Role role) {
  try {
    body.run(role);
  } catch (const std::exception& e) {
    ADD_FAILURE() << role.name() << ": " << e.what();
  }
}

/// Returns "<body> <role> <other role>=<descriptor>..." as an argument, and lets the descriptors survive exec.
std::string argument_for(const Body& body, const std::string& role, const Lines& lines) {
  std::ostringstream text;
  text << kArgument << body.name << ' ' << role;
  for (const auto& [other, socket] : lines) {
    ::fcntl(socket.fd(), F_SETFD, 0);
    text << ' ' << other << '=' << socket.fd();
  }
  return text.str();
}

[[noreturn]] void become(const std::string& argument) {
  std::string program = "/proc/self/exe";
  std::string copy = argument;
  char* const argv[] = {program.data(), copy.data(), nullptr};
  ::execv(program.c_str(), argv);
  std::perror("execv of this test program");
  ::_exit(Child::kThrew);
}

/// Starts the process of a role. The process closes the sockets of other roles, so that the end of each role is
/// noticed.
Child start(Form form, const Body& body, const std::string& role, std::map<std::string, Lines>& all) {
  return Child([&] {
    Lines mine = std::move(all[role]);  // empty for a single role
    all.clear();
    if (form == Form::spawned) become(argument_for(body, role, mine));
    Role me(role, std::move(mine));
    body.run(me);
  });
}

}  // namespace

void Role::tell(const std::string& role, const std::string& text) {
  lines_.at(role).send(std::as_bytes(std::span(text)), {}, kPatience);
}

std::string Role::hear(const std::string& role) {
  const Packet packet = lines_.at(role).receive(kPatience);
  return {reinterpret_cast<const char*>(packet.bytes.data()), packet.bytes.size()};
}

Body::Body(const char* body_name, void (*body)(Role&)) : name(body_name), run(body) {
  bodies()[body_name] = this;
}

std::string form_name(Form form) {
  return form == Form::threads ? "Threads" : form == Form::forked ? "ForkedProcesses" : "SpawnedPrograms";
}

void run_peers(Form form, const std::map<std::string, const Body*>& roles) {
  auto lines = connect_all(roles);
  if (form == Form::threads) {
    std::vector<std::thread> threads;
    for (const auto& [role, body] : roles)
      threads.emplace_back(run_in_thread, std::cref(*body), Role(role, std::move(lines[role])));
    for (std::thread& thread : threads) thread.join();
    return;
  }
  std::vector<std::pair<std::string, Child>> children;
  for (const auto& [role, body] : roles) children.emplace_back(role, start(form, *body, role, lines));
  lines.clear();
  for (auto& [role, child] : children) EXPECT_EQ(child.join(), 0) << role << " failed";
}

void run_if_spawned(int argc, char** argv) {
  const std::string prefix = kArgument;
  if (argc != 2 || std::string(argv[1]).rfind(prefix, 0) != 0) return;
  std::istringstream words(std::string(argv[1]).substr(prefix.size()));
  std::string body, role;
  words >> body >> role;
  Lines lines;
  for (std::string line; words >> line;) {
    const auto equals = line.find('=');
    Fd fd(std::stoi(line.substr(equals + 1)));
    ::fcntl(fd.get(), F_SETFD, FD_CLOEXEC);
    lines.emplace(line.substr(0, equals), UnixSocket(std::move(fd)));
  }
  Role me(role, std::move(lines));
  run_in_thread(*bodies().at(body), std::move(me));
  const auto& result = ::testing::UnitTest::GetInstance()->ad_hoc_test_result();
  // exit() runs the exit handlers of a user's program. The status is not the number of failures, as it is in forked
  // children.
  std::exit(result.Failed() ? 1 : 0);
}

}  // namespace onecopy::testing
