// SPDX-License-Identifier: Apache-2.0
// pytorch#60626, #92134, #87861, #112470: "unable to mmap ... Cannot allocate memory (12)", which was
// vm.max_map_count: one mapping for each tensor. Ours are O(segments).
#include <gtest/gtest.h>

#include <malloc.h>
#include <sys/mman.h>

#include <atomic>
#include <fstream>
#include <optional>

#include "core/point.h"
#include "onecopy/channel/queue.h"
#include "onecopy/core/error.h"
#include "onecopy/share/bundle.h"
#include "onecopy/share/share.h"
#include "support/child.h"
#include "support/footprint.h"
#include "support/limits.h"
#include "support/note.h"

namespace onecopy {
namespace {

using namespace testing;

/// All mappings that this process may have: the remaining ones are made of every second page of a range.
class NoMappingsLeft {
 public:
  NoMappingsLeft() {
    ::mallopt(M_TRIM_THRESHOLD, 1 << 30);
    ::free(::malloc(64 << 10));
    for (std::size_t page = 0; page < kPages; page += 2)
      if (::mprotect(range_ + page * kPage, kPage, PROT_READ) != 0) return;
    ADD_FAILURE() << "vm.max_map_count is above " << kPages;
  }
  ~NoMappingsLeft() { ::munmap(range_, kPages * kPage); }
  static constexpr std::size_t kPages = 1 << 18;

  NoMappingsLeft(const NoMappingsLeft&) = delete;
  NoMappingsLeft& operator=(const NoMappingsLeft&) = delete;

 private:
  static constexpr std::size_t kPage = 4096;

  char* range_ = static_cast<char*>(
      ::mmap(nullptr, kPages* kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
};

std::size_t most_mappings() {
  std::size_t most = 0;
  std::ifstream("/proc/sys/vm/max_map_count") >> most;
  return most;
}

std::atomic<int> looks{0};

TEST(MaxMapCount, AQueueThatCannotBeMappedIsRefusedAfterOneLookAtTheMappings) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer's own mappings count as well";
  if (most_mappings() > NoMappingsLeft::kPages)
    GTEST_SKIP() << "needs a vm.max_map_count of 262144 at most";
  JoinedChild child([] {
    const Tensor tensor = empty(Layout(DType::i64, {8}));
    share(tensor);
    point_hook = [](const char* name) noexcept { looks += std::string_view(name) == "mapping.counted"; };
    std::optional<ErrorCode> refusal;
    {
      const NoMappingsLeft none;
      try {
        Queue::create();
      } catch (const Error& error) {
        refusal = error.code();
      }
    }
    point_hook = nullptr;
    EXPECT_EQ(refusal, ErrorCode::out_of_mappings);
    EXPECT_EQ(looks, 1);
    Queue::create();
  });
}

TEST(MaxMapCount, ManyOpenTensorsNeedFewMappings) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer's own mappings count as well";
  constexpr std::int64_t kTensors = 70'000;  // more than the default limit
  Shared<Note> note;
  JoinedChild owner([&] {
    const std::uint64_t before = count_mappings();
    std::vector<NamedTensor> tensors;
    for (std::int64_t i = 0; i < kTensors; ++i)
      tensors.emplace_back(std::to_string(i), empty(Layout(DType::i64, {8})));
    const Handle handle = share_bundle(tensors);
    EXPECT_LT(count_mappings(), before + 64);
    note->write(handle.to_text());
    note->reach(2);
  });
  Child borrower([&] {
    const Handle handle = Handle::from_text(note->read());
    const std::uint64_t before = count_mappings();
    const Bundle bundle = Bundle::open(handle);
    std::vector<Tensor> held;
    for (std::size_t i = 0; i < bundle.size(); ++i) held.push_back(bundle.tensor(i));
    EXPECT_EQ(held.size(), static_cast<std::size_t>(kTensors));
    EXPECT_LT(count_mappings(), before + 64);
  });
  EXPECT_EQ(borrower.join(), 0);
  note->step = 2;
}

}  // namespace
}  // namespace onecopy
