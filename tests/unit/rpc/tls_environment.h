// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "support/watchdog.h"
#include "transport/fabric.h"
#include "unit/rpc/meeting.h"

namespace onecopy::rpc {

inline constexpr const char* kTestKey = "a secret of these tests, of 40 characters";

/// A variable for this process and its children, for as long as it lives.
class Environment {
 public:
  Environment(const char* name, const std::string& value) : name_(name) {
    ::setenv(name, value.c_str(), 1);
  }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;
  ~Environment() { ::unsetenv(name_); }

 private:
  const char* name_;
};

/// Returns why messages cannot go over UCX on this machine; empty when they can, and where they are not told to.
inline std::string ucx_obstacle(const std::string& fabric) {
  if (fabric != "ucx") return "";
  try {
    transport::require_fabric(fabric);
    return "";
  } catch (const Error& error) {
    return std::string("wants UCX: ") + error.what();
  }
}

/// Members of this host that reach each other over TLS, on loopback.
class TlsMembers : public ::testing::Test {
 protected:
  testing::Watchdog watchdog_;
  Environment key_{"ONECOPY_RPC_KEY", kTestKey};
  Environment link_{"ONECOPY_RPC_LINK", "tcp"};
  Environment listen_{"ONECOPY_RPC_LISTEN", "127.0.0.1:0"};
  testing::Shared<Meeting> meeting_;
};

}  // namespace onecopy::rpc
