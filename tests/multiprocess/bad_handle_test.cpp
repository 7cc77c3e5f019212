// SPDX-License-Identifier: Apache-2.0
// Handles that are wrong in every way we know: each its own clear error, and nothing is mapped, held
// or lost by trying.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>

#include "core/crc32c.h"
#include "onecopy/share/bundle.h"
#include "onecopy/share/share.h"
#include "onecopy/share/stats.h"
#include "support/child.h"
#include "support/footprint.h"
#include "support/note.h"
#include "support/refusal.h"

namespace onecopy {
namespace {

using testing::Child;
using testing::eventually;
using testing::expect_refusal;
using testing::expect_soon;
using testing::Footprint;
using testing::JoinedChild;
using testing::Note;
using testing::Shared;

constexpr std::int64_t kCount = 1000;

Tensor pattern() {
  Tensor tensor = empty(Layout(DType::i64, {kCount}));
  for (std::int64_t i = 0; i < kCount; ++i) tensor.as<std::int64_t>()[i] = i;
  return tensor;
}

/// With the right checksum, as a malicious writer would make it.
Handle resealed(Bytes bytes) {
  write_value(bytes.data() + 12, std::uint32_t{0});
  write_value(bytes.data() + 12, crc32c(bytes));
  return Handle::from_bytes(bytes);
}

/// A borrower of a good tensor in another process, whose owner ends with the test.
class WrongHandle : public ::testing::Test {
 protected:
  WrongHandle()
      : owner_([this] {
          const Tensor tensor = pattern();
          const Tensor second = pattern();  // lies beside it and has never been shared
          note_->write(share(tensor).to_text());
          note_->reach(2);
          // The borrowers' attempts have left the owner as it was.
          EXPECT_TRUE(eventually([] { return stats().borrowers == 0; }));
          EXPECT_EQ(stats().limbo, 0u);
          EXPECT_EQ(stats().live_blocks, 2u);
          EXPECT_EQ(tensor.as<std::int64_t>()[kCount - 1], kCount - 1);
        }) {}

  void TearDown() override { finish(); }
  void finish() {
    if (note_->step >= 2) return;
    borrower_ends();
  }

  /// Runs `body` in a borrower that has opened the good handle once, which must still work afterwards.
  void in_borrower(const std::function<void(const HandleFields&)>& body) {
    Child borrower([&] {
      const Handle good = Handle::from_text(note_->read());
      open(good);
      open(good, Access::read_only);
      const Footprint before = Footprint::unchanging();  // its first tick cleans up after others
      body(good.fields());
      expect_soon(before);
      EXPECT_EQ(open(good).as<std::int64_t>()[kCount - 1], kCount - 1);
    });
    EXPECT_EQ(borrower.join(), 0);
    borrower_ends();
  }

  Shared<Note> note_;
  Child owner_;

 private:
  void borrower_ends() {
    note_->step = 2;
    EXPECT_EQ(owner_.join(), 0);
  }
};

TEST_F(WrongHandle, EveryTruncationIsRefused) {
  in_borrower([](const HandleFields& good) {
    const Bytes bytes = encode(good);
    for (std::size_t length = 0; length < bytes.size(); ++length)
      EXPECT_THROW(open(Handle::from_bytes(ByteSpan(bytes).first(length))), Error) << length;
  });
}

/// Every bit once, first with the checksum left as it was, then with the right one.
TEST_F(WrongHandle, NoFlippedBitOpensAnythingButTheBlockItself) {
  in_borrower([](const HandleFields& good) {
    const Bytes bytes = encode(good);
    const Tensor whole = open(Handle(good, {}));
    const auto* begin = whole.as<std::byte>();
    int opened = 0;
    for (std::size_t bit = 0; bit < bytes.size() * 8; ++bit) {
      Bytes wrong = bytes;
      wrong[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
      EXPECT_THROW(Handle::from_bytes(wrong), Error) << "bit " << bit;
      try {
        const Tensor tensor = open(resealed(wrong), Access::read_only);
        ++opened;
        const std::size_t reach = tensor.layout().extent_bytes();
        const Tensor writable = open(resealed(wrong));
        const auto* data = writable.as<std::byte>();
        EXPECT_TRUE(reach == 0 || (data >= begin && data + reach <= begin + good.storage_size))
            << "bit " << bit;
      } catch (const Error& e) {
        EXPECT_NE(e.code(), ErrorCode::system) << "bit " << bit << ": " << e.what();
        EXPECT_NE(e.code(), ErrorCode::protocol) << "bit " << bit << ": " << e.what();
      }
    }
    EXPECT_GT(opened, 0) << "smaller shapes, other dtypes: they are harmless";
  });
}

struct Lie {
  const char* name;
  void (*tell)(HandleFields&);
  ErrorCode code;
  const char* says;
};

class LyingHandle : public WrongHandle, public ::testing::WithParamInterface<Lie> {};

TEST_P(LyingHandle, IsRefusedAndNothingIsHeld) {
  in_borrower([](const HandleFields& good) {
    for (int i = 0; i < 3; ++i)
      expect_refusal(GetParam().code, {GetParam().says}, [&] {
        HandleFields wrong = good;
        GetParam().tell(wrong);
        open(Handle::from_bytes(encode(wrong)));
      });
  });
}

constexpr std::uint64_t kHuge = ~std::uint64_t{0} - 63;

const Lie kLies[] = {
    {"AnotherBoot", [](HandleFields& f) { f.boot[3] ^= 1; }, ErrorCode::other_boot, "restarted"},
    {"AnOwnerThatNeverWas",
     [](HandleFields& f) {
       f.owner[0] ^= 1;
       f.maker = f.owner;
     },
     ErrorCode::owner_died, "has exited"},
    {"AnOwnerItsMakerNeverHeardOf", [](HandleFields& f) { f.owner[0] ^= 1; }, ErrorCode::owner_died,
     "has exited"},
    {"ASegmentThatDoesNotExist", [](HandleFields& f) { f.segment = 4711; }, ErrorCode::bad_handle,
     "segment 4711"},
    {"TheLargestSegment", [](HandleFields& f) { f.segment = ~0u; }, ErrorCode::bad_handle,
     "segment 4294967295"},
    {"Segment0", [](HandleFields& f) { f.segment = 0; }, ErrorCode::bad_handle, "numbered from 1"},
    {"AnotherKindOfSegment", [](HandleFields& f) { f.kind = SegmentKind::named_file; },
     ErrorCode::bad_handle, "kind"},
    {"AnotherDevice",
     [](HandleFields& f) {
       f.device_type = DeviceType::cuda;
       f.kind = SegmentKind::cuda_vmm;
     },
     ErrorCode::bad_handle, "kind"},
    {"ASmallerSegment", [](HandleFields& f) { f.segment_size -= 4096; }, ErrorCode::bad_handle, "bytes"},
    {"ALargerSegment", [](HandleFields& f) { f.segment_size += 4096; }, ErrorCode::bad_handle, "bytes"},
    {"ASegmentOf64Bits", [](HandleFields& f) { f.segment_size = kHuge; }, ErrorCode::bad_handle, "63 bits"},
    {"StorageBeyondTheBlock", [](HandleFields& f) { f.storage_size += 64 << 10; }, ErrorCode::bad_handle,
     "bytes"},
    {"StorageBeyondTheSegment", [](HandleFields& f) { f.storage_size = f.segment_size + 1; },
     ErrorCode::bad_handle, "storage of"},
    {"StorageOf64Bits", [](HandleFields& f) { f.storage_size = kHuge; }, ErrorCode::bad_handle,
     "storage of"},
    {"ABlockThatIsNotUsed", [](HandleFields& f) { f.block = 70000; }, ErrorCode::stale_handle,
     "block 70000"},
    {"ABlockBeyondAllTables", [](HandleFields& f) { f.block = ~0u; }, ErrorCode::bad_handle,
     "block 4294967295"},
    {"TheFirstBlockBeyondTheTable", [](HandleFields& f) { f.block = 4u << 20; }, ErrorCode::bad_handle,
     "block 4194304"},
    {"ALaterGeneration", [](HandleFields& f) { f.generation += 1; }, ErrorCode::stale_handle, "freed"},
    {"AnEarlierGeneration",
     [](HandleFields& f) { f.generation = (f.generation - 1) & kMaxHandleGeneration; },
     ErrorCode::stale_handle, "freed"},
    {"AGenerationOf64Bits", [](HandleFields& f) { f.generation = ~std::uint64_t{0}; },
     ErrorCode::bad_handle, "62 bits"},
    {"AnOffsetPastTheStorage", [](HandleFields& f) { f.tensor_offset = f.storage_size; },
     ErrorCode::bad_handle, "at byte"},
    {"AnOffsetThatWrapsAround", [](HandleFields& f) { f.tensor_offset = kHuge; }, ErrorCode::bad_handle,
     "at byte"},
    {"AShapePastTheStorage", [](HandleFields& f) { f.layout = Layout(DType::i64, {1 << 20}); },
     ErrorCode::bad_handle, "storage of"},
    {"ABundleThatIsATensor", [](HandleFields& f) { f.flags |= kHandleIsBundle; }, ErrorCode::bad_handle,
     "Bundle::open"},
    {"AReadOnlyOneOpenedForWriting", [](HandleFields& f) { f.flags |= kHandleIsReadOnly; },
     ErrorCode::read_only, "Access::read_only"},
    {"UnknownFlags", [](HandleFields& f) { f.flags |= 1u << 30; }, ErrorCode::bad_handle, "flags"},
};
INSTANTIATE_TEST_SUITE_P(Lies, LyingHandle, ::testing::ValuesIn(kLies),
                         [](const auto& lie) { return std::string(lie.param.name); });

TEST_F(WrongHandle, AnotherVersionSaysWhichOnBothSides) {
  in_borrower([](const HandleFields& good) {
    Bytes bytes = encode(good);
    write_value(bytes.data() + 6, std::uint16_t{9});
    expect_refusal(ErrorCode::version_mismatch, {"version 9", "version 1", "same version"},
                   [&] { open(resealed(bytes)); });
  });
}

TEST_F(WrongHandle, ATensorOpenedAsABundleIsRefusedWithOrWithoutItsFlag) {
  in_borrower([](const HandleFields& good) {
    expect_refusal(ErrorCode::bad_handle, {"single tensor", "open()"},
                   [&] { Bundle::open(Handle(good, {})); });
    HandleFields wrong = good;
    wrong.flags |= kHandleIsBundle;
    expect_refusal(ErrorCode::bad_handle, {"row of bytes", "int64"},
                   [&] { Bundle::open(Handle::from_bytes(encode(wrong))); });
    wrong.layout = Layout(DType::u8, {kCount});
    expect_refusal(ErrorCode::bad_handle, {"1CBND"},
                   [&] { Bundle::open(Handle::from_bytes(encode(wrong))); });
  });
}

TEST_F(WrongHandle, ADeadOwnersHandleSaysSoAndLeavesNothing) {
  in_borrower([](const HandleFields&) {
    Shared<Note> note;
    Child dead([&] {
      const Tensor tensor = pattern();
      note->write(share(tensor).to_text());
    });
    EXPECT_EQ(dead.join(), 0);
    for (int i = 0; i < 10; ++i)
      expect_refusal(ErrorCode::owner_died, {"exited", "maker"},
                     [&] { open(Handle::from_text(note->read())); });
  });
}

TEST_F(WrongHandle, AnotherUserIsRefusedByName) {
  if (geteuid() != 0) {
    finish();
    GTEST_SKIP() << "only root can become another user";
  }
  JoinedChild stranger([this] {
    const Handle handle = Handle::from_text(note_->read());
    ASSERT_EQ(setgid(65534), 0);
    ASSERT_EQ(setuid(65534), 0);
    const Footprint before = Footprint::unchanging();
    for (int i = 0; i < 3; ++i)
      expect_refusal(ErrorCode::other_user, {"uid 0", "uid 65534", "one user"}, [&] { open(handle); });
    expect_soon(before);
  });
}

}  // namespace
}  // namespace onecopy
