// SPDX-License-Identifier: Apache-2.0
#include "share/format/process_name.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "onecopy/core/error.h"
#include "os/random.h"
#include "support/refusal.h"

namespace onecopy {
namespace {

ProcessId random_id() {
  ProcessId id;
  random_bytes(std::as_writable_bytes(std::span(id)));
  return id;
}

bool lists(const std::string& name) {
  const auto names = listening_names();
  return std::count(names.begin(), names.end(), name) == 1;
}

TEST(PublicName, Is32HexDigitsThatChangeWithEveryBitOfTheId) {
  ProcessId id = random_id();
  const std::string name = public_name(id);
  EXPECT_EQ(name.size(), 32u);
  EXPECT_EQ(name.find_first_not_of("0123456789abcdef"), std::string::npos);
  EXPECT_EQ(public_name(id), name);
  id[15] ^= 1;
  EXPECT_NE(public_name(id), name);
}

/// A process that sees the sockets of this host must not learn the secret in handles.
TEST(PublicName, DoesNotContainTheId) {
  const ProcessId id{0xde, 0xad, 0xbe, 0xef, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
  EXPECT_EQ(public_name(id).find("deadbeef"), std::string::npos);
}

TEST(SocketNames, AreAbstractAndListedWhileSomebodyListens) {
  ::unsetenv("ONECOPY_RUNTIME_DIR");
  const std::string name = public_name(random_id());
  EXPECT_TRUE(socket_name(name).abstract);
  EXPECT_FALSE(lists(name));
  {
    const UnixSocket listener = UnixSocket::listen(socket_name(name));
    EXPECT_TRUE(lists(name));
  }
  EXPECT_FALSE(lists(name));
}

TEST(SocketNames, OfOtherFormsAreNotListed) {
  ::unsetenv("ONECOPY_RUNTIME_DIR");
  std::string name = public_name(random_id());
  for (const char other : {'g', 'A', '\033', '/', ' '}) {
    name[7] = other;
    const UnixSocket listener = UnixSocket::listen({"onecopy-" + name, true});
    EXPECT_FALSE(lists(name)) << other;
  }
}

TEST(SocketNames, LieInTheRuntimeDirectoryWhenThereIsOne) {
  std::string directory = "/tmp/onecopy-names-XXXXXX";
  ASSERT_NE(::mkdtemp(directory.data()), nullptr);
  ::setenv("ONECOPY_RUNTIME_DIR", directory.c_str(), 1);
  const std::string name = public_name(random_id());
  EXPECT_FALSE(socket_name(name).abstract);
  EXPECT_EQ(socket_name(name).text.rfind(directory + "/", 0), 0u);
  {
    const UnixSocket listener = UnixSocket::listen(socket_name(name));
    EXPECT_TRUE(lists(name));
  }
  EXPECT_FALSE(lists(name));
  ::setenv("ONECOPY_RUNTIME_DIR", (directory + "/later").c_str(),
           1);  // the first process that listens makes it
  EXPECT_TRUE(listening_names().empty());
  ::setenv("ONECOPY_RUNTIME_DIR", "/nonexistent/onecopy", 1);
  testing::expect_refusal(ErrorCode::system, {"/nonexistent/onecopy", "ONECOPY_RUNTIME_DIR"},
                          [] { listening_names(); });
  ::setenv("ONECOPY_RUNTIME_DIR", "", 1);
  EXPECT_TRUE(socket_name(name).abstract);
  ::unsetenv("ONECOPY_RUNTIME_DIR");
  std::filesystem::remove_all(directory);
}

/// Two processes that find each other there by chance of where they are would be a riddle when they do not.
TEST(SocketNames, AreRefusedInARelativeDirectory) {
  ::setenv("ONECOPY_RUNTIME_DIR", "sockets", 1);
  remove_abandoned_sockets();
  EXPECT_THROW(listening_names(), Error);
  try {
    socket_name(public_name(random_id()));
    ADD_FAILURE() << "a relative path was taken";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::invalid_argument);
    EXPECT_NE(std::string(e.what()).find("ONECOPY_RUNTIME_DIR is \"sockets\""), std::string::npos)
        << e.what();
  }
  ::unsetenv("ONECOPY_RUNTIME_DIR");
}

TEST(SocketNames, AreNotLookedForInWhatIsNoDirectory) {
  ::setenv("ONECOPY_RUNTIME_DIR", "/proc/self/exe", 1);
  remove_abandoned_sockets();
  EXPECT_THROW(listening_names(), Error);
  ::unsetenv("ONECOPY_RUNTIME_DIR");
}

TEST(SocketNames, OfOtherProgramsAreNotListed) {
  const UnixSocket other = UnixSocket::listen({"onecopy-other-" + std::to_string(::getpid()), true});
  for (const std::string& name : listening_names()) EXPECT_EQ(name.size(), 32u) << name;
}

}  // namespace
}  // namespace onecopy
