// SPDX-License-Identifier: Apache-2.0
#include "share/conversation.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <utility>

#include "onecopy/core/error.h"
#include "support/eventually.h"
#include "support/refusal.h"

namespace onecopy {
namespace {

using testing::eventually;
using testing::expect_refusal;

Bytes question() { return wire::pack(wire::Type::ask_limbo, wire::AskLimbo{1, 0}); }

/// Its descriptor's number may be another's at once: ThreadSanitizer sees who still looks at it.
TEST(Conversation, MayBeClosedWhileSomebodyAsks) {
  for (int round = 0; round < 20; ++round) {
    Watch watch;
    auto [ours, theirs] = UnixSocket::pair();
    Conversation conversation(std::move(ours), 1);
    conversation.watch(watch);
    theirs = UnixSocket();
    ASSERT_TRUE(eventually([&] { return conversation.is_over(); }));
    std::atomic<int> asked{0};
    std::thread asker([&] {
      for (; asked < 100; ++asked)
        expect_refusal(ErrorCode::peer_died, {"gone"},
                       [&] { conversation.ask(question(), wire::Type::limbo); });
    });
    EXPECT_TRUE(eventually([&] { return asked > 0; }));
    conversation.close();
    asker.join();
  }
}

}  // namespace
}  // namespace onecopy
