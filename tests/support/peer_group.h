// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "os/unix_socket.h"

namespace onecopy::testing {

/// A peer of a group, for its body: its name, and connections that carry strings to and from the other peers.
/// Thread safety: used by the thread that runs the body.
class Role {
 public:
  Role(std::string name, std::map<std::string, UnixSocket> lines)
      : name_(std::move(name)), lines_(std::move(lines)) {}

  const std::string& name() const noexcept { return name_; }
  void tell(const std::string& role, const std::string& text);
  /// Returns the next string from the role. Throws timeout, and peer_died if the role has ended.
  std::string hear(const std::string& role);

 private:
  std::string name_;
  std::map<std::string, UnixSocket> lines_;
};

/// The code of a role, registered under its name at static initialisation, so that a spawned program finds the code:
/// `const Body lender("share.lender", [](Role& me) { ... });`
struct Body {
  Body(const char* body_name, void (*body)(Role&));

  const char* name;
  void (*run)(Role&);
};

/// The ways in which the peers of a group run.
enum class Form { threads, forked, spawned };
inline constexpr Form kForms[] = {Form::threads, Form::forked, Form::spawned};
std::string form_name(Form form);

/// Runs one body for each role, all at the same time, until all have ended. A failed expectation, an exception or a
/// crash in any body fails the test.
void run_peers(Form form, const std::map<std::string, const Body*>& roles);

/// Runs a body and exits if this program was spawned for it. REQUIRES: main() calls it first.
void run_if_spawned(int argc, char** argv);

}  // namespace onecopy::testing
