// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "os/unix_socket.h"

namespace onecopy::testing {

/// One of a group of peers, as its body sees it: its name, and strings to and from the others.
/// Thread safety: used by the thread that runs the body.
class Role {
 public:
  Role(std::string name, std::map<std::string, UnixSocket> lines)
      : name_(std::move(name)), lines_(std::move(lines)) {}

  const std::string& name() const noexcept { return name_; }
  void tell(const std::string& role, const std::string& text);
  /// Waits for the next string from that role. Throws timeout, and peer_died when it has ended.
  std::string hear(const std::string& role);

 private:
  std::string name_;
  std::map<std::string, UnixSocket> lines_;
};

/// The code of a role. It is registered under its name at static initialisation, so that a spawned program finds it:
/// `const Body lender("share.lender", [](Role& me) { ... });`
struct Body {
  Body(const char* body_name, void (*body)(Role&));

  const char* name;
  void (*run)(Role&);
};

/// How the peers of a group run.
enum class Form { threads, forked, spawned };
inline constexpr Form kForms[] = {Form::threads, Form::forked, Form::spawned};
std::string form_name(Form form);

/// Runs one body a role, all at once, until all have ended. A failed expectation, an exception or a
/// crash in any of them fails the test.
void run_peers(Form form, const std::map<std::string, const Body*>& roles);

/// In main(), before anything else: runs a body and ends when this program was spawned for it.
void run_if_spawned(int argc, char** argv);

}  // namespace onecopy::testing
