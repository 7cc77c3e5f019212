// SPDX-License-Identifier: Apache-2.0
// The client of etcd, with an etcd that the tests start.
#include "store/group/etcd.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <thread>

#include <fmt/format.h>

#include "onecopy/core/error.h"
#include "os/deadline.h"
#include "support/eventually.h"
#include "support/refusal.h"

namespace onecopy::store::group {
namespace {

using namespace std::chrono_literals;
using onecopy::testing::eventually;
using onecopy::testing::expect_refusal;

std::string free_url() {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof at;
  const bool is_bound = ::bind(fd, reinterpret_cast<sockaddr*>(&at), size) == 0 &&
                        ::getsockname(fd, reinterpret_cast<sockaddr*>(&at), &size) == 0;
  ::close(fd);
  return is_bound ? fmt::format("http://127.0.0.1:{}", ntohs(at.sin_port)) : "";
}

/// An endpoint that gives each request the same answer, as a member of etcd without a leader does.
class FakeEndpoint {
 public:
  FakeEndpoint(int status, const std::string& words) : listener_(::socket(AF_INET, SOCK_STREAM, 0)) {
    const std::string body = "{\"error\":\"" + words + "\"}";
    answer_ = fmt::format("HTTP/1.1 {} no\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{}", status,
                          body.size(), body);
    ::listen(listener_, 8);
    sockaddr_in at{};
    socklen_t size = sizeof at;
    ::getsockname(listener_, reinterpret_cast<sockaddr*>(&at), &size);
    url_ = fmt::format("http://127.0.0.1:{}", ntohs(at.sin_port));
    thread_ = std::thread([this] {
      for (int fd; (fd = ::accept(listener_, nullptr, nullptr)) >= 0; ::close(fd)) give_answer(fd);
    });
  }
  ~FakeEndpoint() {
    ::shutdown(listener_, SHUT_RDWR);
    thread_.join();
    ::close(listener_);
  }
  FakeEndpoint(const FakeEndpoint&) = delete;
  FakeEndpoint& operator=(const FakeEndpoint&) = delete;

  const std::string& url() const { return url_; }

 private:
  void give_answer(int fd) const {
    std::array<char, 65536> request{};
    if (::recv(fd, request.data(), request.size(), 0) < 0) return;
    if (::send(fd, answer_.data(), answer_.size(), MSG_NOSIGNAL) < 0) return;
    ::shutdown(fd, SHUT_WR);
    while (::recv(fd, request.data(), request.size(), 0) > 0) continue;
  }

  int listener_;
  std::string answer_, url_;
  std::thread thread_;
};

class EtcdTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (std::system("command -v etcd >/dev/null") != 0) GTEST_SKIP() << "wants etcd";
    directory_ = fmt::format("{}onecopy-etcd-test-{}", ::testing::TempDir(), ::getpid());
    url_ = free_url();
    start();
  }
  void TearDown() override {
    stop();
    std::filesystem::remove_all(directory_);
  }
  void start() {
    const std::string peers = free_url();
    const std::string cluster = "default=" + peers;
    pid_ = ::fork();
    if (pid_ == 0) {
      const int null = ::open("/dev/null", O_RDWR);
      ::dup2(null, STDOUT_FILENO);
      ::dup2(null, STDERR_FILENO);
      ::execlp("etcd", "etcd", "--data-dir", directory_.c_str(), "--listen-client-urls", url_.c_str(),
               "--advertise-client-urls", url_.c_str(), "--listen-peer-urls", peers.c_str(),
               "--initial-advertise-peer-urls", peers.c_str(), "--initial-cluster", cluster.c_str(),
               nullptr);
      ::_exit(127);
    }
    Etcd etcd(options());
    EXPECT_TRUE(eventually([&] {
      try {
        etcd.read({{"a"}});
        return true;
      } catch (const Error& error) {
        return std::string(error.what()).find("user name is empty") != std::string::npos;
      }
    }));
  }
  void stop() {
    if (pid_ == 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }
  EtcdOptions options() const { return {{url_}, {}, {}, 2000ms}; }
  static Change put(const std::string& key, const std::string& value, std::int64_t lease = 0) {
    return {.when = {}, .put = {{key, value, lease}}, .remove = {}};
  }

  std::string directory_, url_;
  pid_t pid_ = 0;
};

TEST_F(EtcdTest, KeepsAllBytesOfKeysAndValuesOfEachLength) {
  Etcd etcd(options());
  std::string all;
  for (int byte = 255; byte >= 0; --byte) all += static_cast<char>(byte);
  for (std::size_t length : {1U, 2U, 3U, 4U, 255U, 256U}) {
    const std::string bytes = all.substr(0, length);
    EXPECT_TRUE(etcd.change(put(bytes, bytes)));
    ASSERT_EQ(etcd.read({{bytes}}).size(), 1U) << length;
    EXPECT_EQ(etcd.read({{bytes}}).front().key, bytes);
    EXPECT_EQ(etcd.read({{bytes}}).front().value, bytes);
  }
}

TEST_F(EtcdTest, ReadsARangeInOrderAtOneMoment) {
  Etcd etcd(options());
  for (const char* const key : {"/t/b", "/t/a", "/u", "/t/\xc3\xa9\n"})
    EXPECT_TRUE(etcd.change(put(key, std::string(key) + "\0x")));
  const auto found = etcd.read({{"/t/", "/t0"}});
  ASSERT_EQ(found.size(), 3U);
  EXPECT_EQ(found[0].key, "/t/a");
  EXPECT_EQ(found[2].key, "/t/\xc3\xa9\n");
  EXPECT_GT(found[0].changed, found[1].changed);
  EXPECT_TRUE(etcd.read({{"/none"}}).empty());
}

TEST_F(EtcdTest, ReadsSeveralRangesInOneRequest) {
  Etcd etcd(options());
  for (const char* const key : {"/a/1", "/a/2", "/b", "/c/1"}) EXPECT_TRUE(etcd.change(put(key, "x")));
  const auto found = etcd.read({{"/c/", "/c0"}, {"/none"}, {"/a/", "/a0"}});
  ASSERT_EQ(found.size(), 3U);
  EXPECT_EQ(found[0].key, "/c/1");
  EXPECT_EQ(found[2].key, "/a/2");
}

TEST_F(EtcdTest, ChangesOnlyIfAllConditionsHold) {
  Etcd etcd(options());
  const Change create{.when = {{"k", 0}}, .put = {{"k", "1", 0}}, .remove = {}};
  EXPECT_TRUE(etcd.change(create));
  EXPECT_FALSE(etcd.change(create));
  const auto at = etcd.read({{"k"}}).front();
  EXPECT_FALSE(etcd.change({.when = {{"k", at.changed}, {"other", 5}}, .put = {}, .remove = {"k"}}));
  EXPECT_TRUE(etcd.change({.when = {{"k", at.changed}}, .put = {{"other", "", 0}}, .remove = {"k"}}));
  EXPECT_TRUE(etcd.read({{"k"}}).empty());
  EXPECT_EQ(etcd.read({{"other"}}).front().value, "");
}

TEST_F(EtcdTest, KeysGoWithTheirLease) {
  Etcd etcd(options());
  const std::int64_t lease = etcd.grant(60s);
  EXPECT_TRUE(etcd.change(put("k", "1", lease)));
  EXPECT_TRUE(etcd.renew(lease));
  etcd.revoke(lease);
  EXPECT_TRUE(etcd.read({{"k"}}).empty());
  EXPECT_FALSE(etcd.renew(lease));
  expect_refusal(ErrorCode::system, {"lease not found"}, [&] { etcd.change(put("k", "1", lease)); });
}

TEST_F(EtcdTest, AsksTheNextEndpointWhenOneIsAway) {
  EtcdOptions two = options();
  two.endpoints.insert(two.endpoints.begin(), free_url());
  Etcd etcd(two);
  EXPECT_TRUE(etcd.change(put("k", "1")));
  EXPECT_EQ(etcd.read({{"k"}}).size(), 1U);
}

TEST_F(EtcdTest, SaysThatEtcdDoesNotAnswerWithinItsPatience) {
  Etcd etcd({{url_}, {}, {}, 300ms});
  ::kill(pid_, SIGSTOP);
  ::waitpid(pid_, nullptr, WUNTRACED);
  expect_refusal(ErrorCode::timeout, {"etcd does not answer"}, [&] { etcd.read({{"k"}}); });
  ::kill(pid_, SIGCONT);
  stop();
  expect_refusal(ErrorCode::peer_died, {url_.c_str()}, [&] { etcd.read({{"k"}}); });
}

TEST_F(EtcdTest, AMemberWithoutALeaderCountsAsOneThatDoesNotAnswer) {
  for (const auto& [status, words] :
       {std::pair(503, "etcdserver: leader changed"), std::pair(503, "etcdserver: request timed out"),
        std::pair(504, "context deadline exceeded")}) {
    const FakeEndpoint member(status, words);
    EtcdOptions two = options();
    two.endpoints.insert(two.endpoints.begin(), member.url());
    Etcd etcd(two);
    expect_refusal(ErrorCode::timeout, {"etcd does not answer", words},
                   [&] { etcd.change(put("k", "1")); });
    EXPECT_TRUE(etcd.read({{"k"}}).empty());  // the other member is asked, which has not got the change
    EXPECT_TRUE(etcd.change(put("k", "1")));  // and from then on
    EXPECT_TRUE(etcd.change({.when = {}, .put = {}, .remove = {"k"}}));
  }
  const FakeEndpoint full(429, "etcdserver: mvcc: database space exceeded");
  expect_refusal(ErrorCode::system, {"database space exceeded"}, [&] {
    Etcd({{full.url()}, {}, {}, 2000ms}).change(put("k", "1"));
  });
}

TEST_F(EtcdTest, TellsOfEachChangeThatIsWatched) {
  std::atomic<int> rung{0};
  std::atomic<bool> is_over{false};
  std::thread watch([&] {
    Etcd(options()).watch(
        "/t/", "/t0", [&] { ++rung; }, [&] { return is_over.load(); });
  });
  EXPECT_TRUE(eventually([&] { return rung == 1; }));
  Etcd etcd(options());
  etcd.change(put("/u", "1"));
  etcd.change(put("/t/a", "1"));
  EXPECT_TRUE(eventually([&] { return rung >= 2; }));
  is_over = true;
  watch.join();
}

TEST_F(EtcdTest, LogsInAndAgainWhenTheLoginHasExpired) {
  const std::string ctl = "ETCDCTL_API=3 etcdctl --endpoints " + url_ + " ";
  for (const char* const command :
       {"user add root:secret", "role add root", "user grant-role root root", "auth enable"})
    ASSERT_EQ(std::system((ctl + command + " >/dev/null").c_str()), 0) << command;
  const std::string login = directory_ + "/login", wrong = directory_ + "/wrong";
  std::ofstream(login) << "root:secret\n";
  std::ofstream(wrong) << "root:guess\n";
  Etcd etcd({{url_}, {}, login, 2000ms});
  EXPECT_TRUE(etcd.change(put("k", "1")));
  stop();  // which forgets all logins
  start();
  EXPECT_EQ(etcd.read({{"k"}}).front().value, "1");
  expect_refusal(ErrorCode::bad_secret, {"refuses the user"}, [&] {
    Etcd({{url_}, {}, wrong, 2000ms}).read({{"k"}});
  });
  expect_refusal(ErrorCode::system, {"user name"}, [&] { Etcd(options()).read({{"k"}}); });
}

TEST(EtcdOptionsTest, RefusesWhatIsNoUrlAndFilesThatCannotBeRead) {
  expect_refusal(ErrorCode::invalid_argument, {"is not the URL of etcd"}, [] {
    Etcd({{"10.0.0.1:2379"}, {}, {}, 1s});
  });
  expect_refusal(ErrorCode::invalid_argument, {"give the URL"}, [] { Etcd(EtcdOptions{}); });
  expect_refusal(ErrorCode::invalid_argument, {"USER:PASSWORD"}, [] {
    Etcd({{"http://h:1"}, {}, "/none", 1s});
  });
}

}  // namespace
}  // namespace onecopy::store::group
