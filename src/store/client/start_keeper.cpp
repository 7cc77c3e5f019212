// SPDX-License-Identifier: Apache-2.0
#include "store/client/start_keeper.h"

#include <fmt/format.h>
#include <pwd.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <optional>
#include <vector>

#include "core/throw_error.h"
#include "os/cgroup_owner.h"
#include "os/fd.h"
#include "os/file.h"
#include "os/log.h"
#include "os/process.h"

namespace onecopy::store {
namespace {

constexpr const char* kMaxUnused = "600";  ///< seconds; a keeper that nobody asked for does not stay

/// The settings to start a command whose output goes to a given file and whose signals have their defaults.
class SpawnSettings {
 public:
  explicit SpawnSettings(int output) {
    ::posix_spawn_file_actions_init(&actions_);
    ::posix_spawn_file_actions_addopen(&actions_, STDIN_FILENO, "/dev/null", 0, 0);
    ::posix_spawn_file_actions_adddup2(&actions_, output, STDOUT_FILENO);
    ::posix_spawn_file_actions_adddup2(&actions_, output, STDERR_FILENO);
    ::posix_spawnattr_init(&attributes_);
    sigset_t signals;
    ::sigemptyset(&signals);
    ::posix_spawnattr_setsigmask(&attributes_, &signals);
    ::sigfillset(&signals);
    ::posix_spawnattr_setsigdefault(&attributes_, &signals);
    ::posix_spawnattr_setflags(&attributes_, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  }
  SpawnSettings& operator=(SpawnSettings&&) = delete;
  ~SpawnSettings() {
    ::posix_spawn_file_actions_destroy(&actions_);
    ::posix_spawnattr_destroy(&attributes_);
  }
  const posix_spawn_file_actions_t* actions() const noexcept { return &actions_; }
  const posix_spawnattr_t* attributes() const noexcept { return &attributes_; }

 private:
  posix_spawn_file_actions_t actions_;
  posix_spawnattr_t attributes_;
};

/// Waits for the process and returns its exit status; 0 if the program ignores SIGCHLD and so cannot learn the status.
int wait_for(pid_t pid) {
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0)
    if (errno != EINTR) return 0;
  return status;
}

std::string text_in(int file) {
  std::string text(4096, '\0');
  const ssize_t read = ::pread(file, text.data(), text.size(), 0);
  text.resize(read > 0 ? static_cast<std::size_t>(read) : 0);
  while (!text.empty() && (text.back() == '\n' || text.back() == '\0')) text.pop_back();
  return text;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> all;
  all.reserve(texts.size() + 1);
  for (std::string& text : texts) all.push_back(text.data());
  all.push_back(nullptr);
  return all;
}

Fd make_output() {
  const int fd = ::memfd_create("onecopy-store-start", MFD_CLOEXEC);
  if (fd < 0) throw_errno("cannot make a file for the output of a command", errno);
  return Fd(fd);
}

/// Runs a command to its end. Returns its output if it fails, and nothing if it succeeds. Throws system if it cannot be run.
std::optional<std::string> run(std::vector<std::string> words, const std::string& program,
                               const std::vector<std::string>& environment) {
  const Fd output = make_output();
  const SpawnSettings settings(output.get());
  std::vector<char*> arguments = pointers(words);
  std::vector<std::string> variables = environment;  // the first of a name counts
  for (char** variable = environ; *variable; ++variable) variables.emplace_back(*variable);
  std::vector<char*> all = pointers(variables);
  pid_t pid = 0;
  const int error = ::posix_spawnp(&pid, program.c_str(), settings.actions(), settings.attributes(),
                                   arguments.data(), all.data());
  if (error != 0) throw_errno(fmt::format("the command \"{}\" cannot be run", program), error);
  if (wait_for(pid) == 0) return std::nullopt;
  return text_in(output.get());
}

/// Returns the directory of this user's systemd if a keeper lives longer there than with this process: the user's units outlive
/// logins, or this process is one of them. Empty otherwise.
std::string lasting_manager() {
  const std::string directory = fmt::format("/run/user/{}", ::geteuid());
  if (::access((directory + "/systemd/private").c_str(), F_OK) != 0) return {};
  const passwd* const user = ::getpwuid(::geteuid());
  const bool lingers =
      user && ::access(fmt::format("/var/lib/systemd/linger/{}", user->pw_name).c_str(), F_OK) == 0;
  const std::string membership = try_read_text("/proc/self/cgroup").value_or("");
  const bool is_unit = membership.find(fmt::format("/user@{}.service/", ::geteuid())) != std::string::npos;
  return lingers || is_unit ? directory : std::string();
}

/// Starts the keeper as a unit of its own, which does not end with the unit, container or job of this process. Returns false if
/// that is not possible here.
bool start_apart(const std::vector<std::string>& serve, std::vector<std::string> environment) {
  const std::string directory = lasting_manager();
  if (directory.empty()) return false;
  std::vector<std::string> words{"systemd-run", "--user",
                                 "--scope",     "--collect",
                                 "--quiet",     fmt::format("--unit=onecopy-store-{}", current_pid()),
                                 "--"};
  words.insert(words.end(), serve.begin(), serve.end());
  try {
    environment.push_back("XDG_RUNTIME_DIR=" + directory);
    return !run(words, words.front(), environment);
  } catch (const Error&) {  // there is no systemd-run
    return false;
  }
}

}  // namespace

void start_keeper(const std::string& command, const std::vector<std::string>& environment) {
  const std::vector<std::string> serve{command,        "store",        "serve",
                                       "--background", "--max-unused", kMaxUnused};
  if (start_apart(serve, environment)) return;
  std::optional<std::string> failure;
  try {
    failure = run(serve, command, environment);
  } catch (const Error& error) {
    throw Error(ErrorCode::unsupported,
                fmt::format("the store has no keeper, and {}; run `onecopy store serve`", error.what()),
                error.vendor_code(), ErrorDomain::posix);
  }
  if (failure) throw_error(ErrorCode::unsupported, "the store's keeper cannot be started: {}", *failure);
  if (const std::string end = what_ends(current_pid()); !end.empty())
    log_info("the store's keeper was started here, and ends with {}", end);
}

}  // namespace onecopy::store
