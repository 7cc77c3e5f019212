// SPDX-License-Identifier: Apache-2.0
// Calls that must ask a process that is stopped end at the caller's timeout.
#include <gtest/gtest.h>

#include <functional>

#include "onecopy/channel/pipe.h"
#include "onecopy/channel/queue.h"
#include "onecopy/core/error.h"
#include "onecopy/share/bundle.h"
#include "onecopy/share/share.h"
#include "os/deadline_scope.h"
#include "support/child.h"
#include "support/eventually.h"
#include "support/numbers.h"
#include "support/processes_test.h"
#include "support/refusal.h"

namespace onecopy {
namespace {

using namespace std::chrono_literals;
using testing::Child;
using testing::expect_refusal;
using testing::number_in;
using testing::numbers;

/// An owner may take ten minutes to answer here, so the watchdog comes if a call ignores its timeout.
class WaitForAStoppedOwner : public testing::ProcessesTest {
 protected:
  /// Expects that the call throws timeout while the owner is stopped, and works after it continues.
  void expect_timeout(const std::function<std::string()>& make,
                      const std::function<void(const std::string&, std::chrono::milliseconds)>& call) {
    Child owner([&] {
      const std::string text = make();
      note->write(text);
      note->reach(2);
    });
    const std::string text = note->read();
    owner.signal(SIGSTOP);
    reply_timeout_ms = 600'000;
    expect_refusal(ErrorCode::timeout, {}, [&] { call(text, 100ms); });
    owner.signal(SIGCONT);
    call(text, testing::kPatience);
    reply_timeout_ms = 10'000;
    note->step = 2;
    EXPECT_EQ(owner.join(), 0);
  }
};

TEST_F(WaitForAStoppedOwner, KeepsOpenNoLongerThanItsTimeout) {
  static Tensor tensor;
  expect_timeout([] { return share(tensor = numbers(100, 7)).to_text(); },
                 [](const std::string& text, std::chrono::milliseconds timeout) {
                   EXPECT_EQ(number_in(open(Handle::from_text(text), {.timeout = timeout})), 7);
                 });
}

TEST_F(WaitForAStoppedOwner, KeepsBundleOpenNoLongerThanItsTimeout) {
  static Handle bundle;
  expect_timeout(
      [] {
        bundle = share_bundle(std::vector<NamedTensor>{{"a", numbers(100, 7)}});
        return bundle.to_text();
      },
      [](const std::string& text, std::chrono::milliseconds timeout) {
        EXPECT_EQ(number_in(Bundle::open(Handle::from_text(text), {.timeout = timeout}).tensor(0)), 7);
      });
}

TEST_F(WaitForAStoppedOwner, KeepsQueueConnectNoLongerThanItsTimeout) {
  static std::optional<Queue> queue;
  expect_timeout(
      [] {
        queue.emplace(Queue::create());
        return queue->handle().to_text();
      },
      [](const std::string& text, std::chrono::milliseconds timeout) {
        Queue::connect(Handle::from_text(text), timeout);
      });
}

TEST_F(WaitForAStoppedOwner, KeepsPipeConnectNoLongerThanItsTimeout) {
  static std::optional<std::pair<Pipe, Pipe>> pipe;
  expect_timeout(
      [] {
        pipe.emplace(Pipe::create());
        return pipe->second.handle().to_text();
      },
      [](const std::string& text, std::chrono::milliseconds timeout) {
        Pipe::connect(PipeHandle::from_text(text), timeout);
      });
}

}  // namespace
}  // namespace onecopy
