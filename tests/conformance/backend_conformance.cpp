// SPDX-License-Identifier: Apache-2.0
#include "conformance/backend_conformance.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <thread>

#include "onecopy/core/error.h"

namespace onecopy {

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(BackendConformance);

namespace {

ErrorCode code_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.code();
  }
  ADD_FAILURE() << "nothing was thrown";
  return ErrorCode::system;
}

/// The exit status of `body` in a forked child; the parent's address space and limits stay as they are.
int status_in_child(const std::function<int()>& body) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(body());
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + status;
}

TEST_P(BackendConformance, ReportsWhatItWasAskedFor) {
  const auto memory = create(16 * page());
  EXPECT_EQ(memory->size(), 16 * page());
  EXPECT_EQ(memory->kind(), GetParam().kind);
  EXPECT_NE(memory->data(), nullptr);
}

TEST_P(BackendConformance, RefusesSizesThatAreNotWholeUnits) {
  EXPECT_EQ(code_of([&] { create(0); }), ErrorCode::invalid_argument);
  EXPECT_EQ(code_of([&] { create(page() + 1); }), ErrorCode::invalid_argument);
}

TEST_P(BackendConformance, RefusesDevicesThatAreNotThere) {
  EXPECT_EQ(code_of([&] { device().create(1000, page(), GetParam().kind, "0", 1); }),
            ErrorCode::invalid_argument);
}

TEST_P(BackendConformance, FreshCommittedMemoryReadsAsZeros) {
  const auto memory = create(4 * page());
  memory->commit(page(), 2 * page());
  if (device().type() != DeviceType::cpu)
    GTEST_SKIP() << "the content of new memory is the vendor's choice";
  for (std::size_t i = page(); i < 3 * page(); ++i) ASSERT_EQ(memory->data()[i], std::byte{0});
}

TEST_P(BackendConformance, CommittingTwiceKeepsTheContent) {
  const auto memory = create(8 * page());
  memory->commit(2 * page(), page());
  fill(*memory, 2 * page(), page(), 7);
  memory->commit(0, 8 * page());
  EXPECT_EQ(get(*memory, 2 * page()), 7);
  EXPECT_EQ(get(*memory, 3 * page() - 1), 7);
}

TEST_P(BackendConformance, RefusesToCommitOutsideOfTheSegment) {
  const auto memory = create(4 * page());
  EXPECT_EQ(code_of([&] { memory->commit(page(), 4 * page()); }), ErrorCode::invalid_argument);
  EXPECT_EQ(code_of([&] { memory->commit(5 * page(), page()); }), ErrorCode::invalid_argument);
}

TEST_P(BackendConformance, DecommittedMemoryCanBeCommittedAgain) {
  const auto memory = create(4 * page());
  memory->commit(0, 4 * page());
  fill(*memory, 0, 4 * page(), 1);
  memory->decommit(page(), 2 * page());
  memory->commit(page(), 2 * page());
  EXPECT_EQ(get(*memory, 0), 1);
  EXPECT_EQ(get(*memory, 3 * page()), 1);
}

TEST_P(BackendConformance, LargeRangesAreCommittedWhole) {
  const auto memory = create(std::size_t{96} << 20);
  memory->commit(page(), memory->size() - page());
  fill(*memory, page(), memory->size() - page(), 3);
  EXPECT_EQ(get(*memory, memory->size() - 1), 3);
}

TEST_P(BackendConformance, DisjointRangesMayBeCommittedConcurrently) {
  const auto memory = create(std::size_t{32} << 20);
  const std::size_t part = memory->size() / 4;
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < 4; ++i)
    threads.emplace_back([&, i] {
      memory->commit(i * part, part);
      fill(*memory, i * part, part, static_cast<int>(i + 1));
      if (i == 3) memory->decommit(i * part, part);
    });
  for (auto& thread : threads) thread.join();
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(get(*memory, i * part + part - 1), static_cast<int>(i + 1));
}

TEST_P(BackendConformance, OpenedMemoryIsTheSameMemory) {
  const auto owner = create(4 * page());
  owner->commit(0, owner->size());
  const auto borrower = open(owner->export_memory(Access::read_write));
  EXPECT_EQ(borrower->size(), owner->size());
  EXPECT_EQ(borrower->kind(), owner->kind());
  put(*owner, 5, 42);
  EXPECT_EQ(get(*borrower, 5), 42);
  put(*borrower, page(), 43);
  EXPECT_EQ(get(*owner, page()), 43);
}

TEST_P(BackendConformance, MemoryOutlivesItsOwner) {
  auto owner = create(page());
  owner->commit(0, page());
  put(*owner, 0, 9);
  const auto borrower = open(owner->export_memory(Access::read_write));
  owner.reset();
  EXPECT_EQ(get(*borrower, 0), 9);
}

TEST_P(BackendConformance, ABorrowerCanLendOn) {
  auto owner = create(page());
  owner->commit(0, page());
  auto borrower = open(owner->export_memory(Access::read_write));
  owner.reset();
  const auto third = open(borrower->export_memory(Access::read_write));
  put(*borrower, 0, 4);
  EXPECT_EQ(get(*third, 0), 4);
}

TEST_P(BackendConformance, ReadOnlyMemoryFollowsTheOwnersWrites) {
  const auto owner = create(page());
  owner->commit(0, page());
  const auto reader = open(owner->export_memory(Access::read_only), Access::read_only);
  put(*owner, 0, 8);
  EXPECT_EQ(get(*reader, 0), 8);
}

TEST_P(BackendConformance, WritingReadOnlyMemoryDoesNotChangeIt) {
  const auto owner = create(page());
  owner->commit(0, page());
  put(*owner, 0, 5);
  const auto reader = open(owner->export_memory(Access::read_only), Access::read_only);
  if (!device().traits().host_memory) {
    EXPECT_THROW(put(*reader, 0, 1), Error);
  } else {
    const int status = status_in_child([&] {
      ::signal(SIGSEGV, [](int) { ::_exit(77); });
      *const_cast<volatile std::byte*>(reader->data()) = std::byte{1};
      return 0;
    });
    EXPECT_EQ(status, 77);
  }
  EXPECT_EQ(get(*owner, 0), 5);
}

TEST_P(BackendConformance, ReadOnlyMemoryIsNotLentForWriting) {
  const auto owner = create(page());
  owner->commit(0, page());
  const auto reader = open(owner->export_memory(Access::read_only), Access::read_only);
  EXPECT_EQ(code_of([&] { reader->export_memory(Access::read_write); }), ErrorCode::read_only);
  EXPECT_EQ(code_of([&] { reader->commit(0, page()); }), ErrorCode::read_only);
}

TEST_P(BackendConformance, AWrongSizeIsABadHandle) {
  const auto owner = create(4 * page());
  owner->commit(0, 4 * page());
  for (const std::size_t size : {std::size_t{0}, page() / 2, 3 * page(), 5 * page(), ~std::size_t{0}}) {
    auto exported = owner->export_memory(Access::read_write);
    exported.size = size;
    EXPECT_EQ(code_of([&] { open(std::move(exported)); }), ErrorCode::bad_handle) << size;
  }
}

TEST_P(BackendConformance, ADuplicatedExportOpensTheSameMemoryWithNoMoreAccess) {
  const auto owner = create(page());
  owner->commit(0, page());
  const auto exported = owner->export_memory(Access::read_write);
  const auto writer = open(device().duplicate(exported, Access::read_write));
  put(*writer, 0, 6);
  const auto reader = open(device().duplicate(exported, Access::read_only), Access::read_only);
  EXPECT_EQ(get(*reader, 0), 6);
  if (GetParam().kind == SegmentKind::named_file) return;  // its path opens it either way
  EXPECT_EQ(code_of([&] { open(device().duplicate(exported, Access::read_only)); }), ErrorCode::read_only);
}

TEST_P(BackendConformance, MissingExportsAreABadHandle) {
  ExportedMemory nothing;
  nothing.kind = GetParam().kind;
  nothing.size = page();
  EXPECT_EQ(code_of([&] { open(std::move(nothing)); }), ErrorCode::bad_handle);
}

TEST_P(BackendConformance, MoreMemoryThanTheMachineHasIsRefusedWithNumbers) {
  constexpr std::size_t kMiB = std::size_t{1} << 20;
  create(page())->commit(0, page());  // a vendor may not know a device's size before it is used
  const auto info = device().devices().at(static_cast<std::size_t>(GetParam().ordinal));
  const std::size_t unit = std::max(kMiB, page());
  const std::size_t bytes = (3 * info.total_bytes / unit + 1) * unit;
  std::unique_ptr<DeviceMemory> memory;
  try {
    memory = create(bytes);
    memory->commit(0, bytes);
    FAIL() << bytes << " bytes were reserved";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::out_of_memory);
    EXPECT_NE(std::string(error.what()).find(std::to_string(bytes / kMiB)), std::string::npos)
        << error.what();  // MiB
  }
  if (device().traits().whole_segments) return;
  memory->commit(0, page());
  put(*memory, 0, 1);
}

TEST_P(BackendConformance, AnExhaustedAddressSpaceIsAnErrorWithNumbers) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer needs terabytes of address space";
  if (!device().traits().host_memory) GTEST_SKIP() << "devices are not used in forked children";
  const int status = status_in_child([&] {
    const rlimit limit{std::size_t{1} << 30, std::size_t{1} << 30};
    ::setrlimit(RLIMIT_AS, &limit);
    try {
      create(std::size_t{4} << 30);
    } catch (const Error& error) {
      const bool numbers =
          std::string(error.what()).find(std::to_string(std::size_t{4} << 30)) != std::string::npos;
      return error.code() == ErrorCode::out_of_mappings && numbers ? 0 : 2;
    }
    return 1;
  });
  EXPECT_EQ(status, 0);
  EXPECT_NE(create(page()), nullptr);
}

TEST_P(BackendConformance, NothingIsLeftWhenAllAreDestroyed) {
  {
    auto owner = create(page());
    owner->commit(0, page());
    const auto borrower = open(owner->export_memory(Access::read_write));
    owner.reset();
  }
  EXPECT_EQ(directory_.files(), 0u);
}

}  // namespace
}  // namespace onecopy
