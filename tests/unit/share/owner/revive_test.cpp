// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "onecopy/share/share.h"
#include "onecopy/share/stats.h"
#include "share/runtime/runtime.h"
#include "support/child.h"
#include "support/note.h"

namespace onecopy {
namespace {

using testing::Child;
using testing::eventually;
using testing::Note;
using testing::Shared;

/// The claimer reads that the block is closing, and asks when its owner has it back.
TEST(Revive, AClaimerThatAsksAfterItIsToldThatTheBlockIsKept) {
  Shared<Note> note;
  Child borrower([&] {
    const Tensor held = open(Handle::from_text(note->read(1)));
    note->reach(3);
  });
  Tensor tensor = empty(Layout(DType::u8, {64}));
  const HandleFields fields = share(tensor).fields();
  note->write(share(tensor).to_text());
  ASSERT_TRUE(eventually([] { return stats().borrowers == 1 && this_owner().borrowers[0].claims == 1; }));
  Ledger& ledger = Runtime::current().ledger();
  tensor.release();
  EXPECT_EQ(stats().limbo, 1U);
  EXPECT_TRUE(ledger.is_kept(fields.block, fields.generation)) << "in limbo";
  tensor = open(Handle(fields, {}));
  EXPECT_EQ(stats().limbo, 0U);
  EXPECT_TRUE(ledger.is_kept(fields.block, fields.generation)) << "taken back";
  tensor.release();
  note->step = 3;
  EXPECT_EQ(borrower.join(), 0);
  EXPECT_TRUE(eventually([] { return stats().limbo == 0; }));
  EXPECT_FALSE(ledger.is_kept(fields.block, fields.generation)) << "reusable";
}

}  // namespace
}  // namespace onecopy
