// SPDX-License-Identifier: Apache-2.0
// Random processes share memory, and die, for as long as is wanted; a model lists the allowed outcomes.
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>

#include "onecopy/core/error.h"
#include "soak/agent.h"
#include "soak/director.h"
#include "store/keeper/keeper.h"
#include "support/user_namespace.h"

namespace {

using onecopy::soak::Options;

constexpr const char* kUsage =
    "usage: onecopy_soak [--seed S] [--steps N] [--minutes M] [--agents K] [--until-fault] [--card]\n"
    "                    [--user-namespaces]\n"
    "  without --steps and --minutes: 20,000 steps; without --seed: a random one, which is printed\n"
    "  with --card agents pin memory, and read it through the first CUDA device\n"
    "  with --user-namespaces each program is \"nobody\" in one of its own; needs root\n";
constexpr int kCannotRun = 77;

int run_agent(int fd) {
  ::fcntl(fd, F_SETFD, FD_CLOEXEC);
  onecopy::soak::Agent agent{onecopy::UnixSocket(onecopy::Fd(fd))};
  agent.serve();
  return 0;
}

Options options_from(int argc, char** argv) {
  Options options;
  options.seed = std::random_device{}();
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const char* const value = i + 1 < argc ? argv[i + 1] : nullptr;
    if (word == "--until-fault") {
      options.ends_at_fault = true;
      continue;
    }
    if (word == "--user-namespaces") {
      options.has_user_namespaces = true;
      continue;
    }
    if (word == "--card") {
      options.has_card = true;
      continue;
    }
    if (!value || word.rfind("--", 0) != 0) std::fputs(kUsage, stderr), std::exit(2);
    if (word == "--seed") options.seed = std::strtoull(value, nullptr, 10);
    else if (word == "--steps") options.steps = std::strtoull(value, nullptr, 10);
    else if (word == "--minutes") options.minutes = std::strtod(value, nullptr);
    else if (word == "--agents") options.agents = std::strtoull(value, nullptr, 10);
    else std::fputs(kUsage, stderr), std::exit(2);
    ++i;
  }
  if (options.steps == 0 && options.minutes == 0) options.steps = 20'000;
  return options;
}

/// A process that does nothing else tries it.
bool has_user_namespaces() {
  const int pid = ::fork();
  if (pid == 0) ::_exit(::geteuid() == 0 && onecopy::testing::try_become_nobody(1).empty() ? 0 : 1);
  int status = 1;
  return pid > 0 && ::waitpid(pid, &status, 0) == pid && status == 0;
}

int run_director(const Options& options) {
  if (options.has_user_namespaces && !has_user_namespaces()) {
    std::puts("soak: skipped: needs root and a kernel with user namespaces");
    return kCannotRun;
  }
  std::printf("soak: seed %llu, %zu agents\n", static_cast<unsigned long long>(options.seed),
              options.agents);
  std::fflush(stdout);
  onecopy::soak::Director director(options);
  const auto& counters = director.run();
  std::printf("%s\n%llu passed, %llu failed\n", counters.str().c_str(),
              static_cast<unsigned long long>(counters.steps - std::min(counters.steps, counters.faults())),
              static_cast<unsigned long long>(counters.faults()));
  return counters.faults() == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    constexpr const char* kAgent = "--agent=";
    if (argc == 2 && std::strncmp(argv[1], kAgent, std::strlen(kAgent)) == 0)
      return run_agent(std::atoi(argv[1] + std::strlen(kAgent)));
    constexpr const char* kKeeper = "--keeper=";
    if (argc == 2 && std::strncmp(argv[1], kKeeper, std::strlen(kKeeper)) == 0)
      return onecopy::store::serve(onecopy::store::StoreDirectory(argv[1] + std::strlen(kKeeper)), {}), 0;
    return run_director(options_from(argc, argv));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "soak: %s\n", error.what());
    return 3;
  }
}
