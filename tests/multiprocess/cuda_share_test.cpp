// SPDX-License-Identifier: Apache-2.0
// The peculiarities of CUDA memory between processes. The bodies use the driver's own calls as a framework
// would, and no process forks after it has used a device.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <string_view>
#include <thread>

#include "core/point.h"
#include "onecopy/channel/queue.h"
#include "onecopy/core/error.h"
#include "onecopy/memory/copy.h"
#include "onecopy/share/bundle.h"
#include "onecopy/share/share.h"
#include "onecopy/share/stats.h"
#include "os/process.h"
#include "share/owner/adopted_allocations.h"
#include "share/runtime/runtime.h"
#include "support/child.h"
#include "support/cuda_streams.h"
#include "support/footprint.h"
#include "support/note.h"
#include "support/numbers.h"
#include "support/refusal.h"

namespace onecopy {
namespace {

using testing::Child;
using testing::CudaCalls;
using testing::element;
using testing::eventually;
using testing::expect_refusal;
using testing::Footprint;
using testing::JoinedChild;
using testing::Note;
using testing::set_element;
using testing::Shared;

constexpr Device kCuda0{DeviceType::cuda, 0};

Tensor numbers_on(std::int64_t count, Device device = kCuda0) {
  const Tensor host = empty(Layout(DType::i64, {count}));
  for (std::int64_t i = 0; i < count; ++i) host.as<std::int64_t>()[i] = i;
  return copy(host.view(), device);
}

TensorView view_of(testing::CUdeviceptr at, std::int64_t count) {
  return {reinterpret_cast<void*>(at), Layout(DType::i64, {count}), kCuda0, Access::read_write};
}

constexpr std::size_t kChunk = std::size_t{2} << 20;

/// One more chunk of an expandable segment, which may leave the process as these handle types.
void map_chunk(const CudaCalls& cu, testing::CUdeviceptr at,
               int handle_types = testing::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
  auto prop = CudaCalls::exportable(0);
  prop.requestedHandleTypes = handle_types;
  testing::CUmemGenericAllocationHandle chunk = 0;
  EXPECT_EQ(cu.cuMemCreate(&chunk, kChunk, &prop, 0), testing::CUDA_SUCCESS);
  EXPECT_EQ(cu.cuMemMap(at, kChunk, 0, chunk, 0), testing::CUDA_SUCCESS);
  cu.cuMemRelease(chunk);
  cu.allow(at, kChunk, 0);
}

/// Addresses as an expandable segment of PyTorch has them, with the first `chunks` chunks mapped.
testing::CUdeviceptr expandable(const CudaCalls& cu, std::size_t chunks) {
  testing::CUdeviceptr at = 0;
  cu.cuMemAddressReserve(&at, 2 * chunks * kChunk, 0, 0, 0);
  for (std::size_t i = 0; i < chunks; ++i) map_chunk(cu, at + i * kChunk);
  return at;
}

/// Devices that this machine has, found out in a process of its own.
std::size_t device_count() {
  Shared<std::atomic<std::size_t>> count;
  testing::in_child([&] { *count = backend(DeviceType::cuda).devices().size(); });
  return *count;
}

class CudaBetweenProcesses : public ::testing::Test {
 protected:
  void SetUp() override {
    if (device_count() < 1) GTEST_SKIP() << "no CUDA device on this machine";
  }
};

TEST_F(CudaBetweenProcesses, TheBorrowerFindsTheDeviceByItsUuid) {
  if (device_count() < 2) GTEST_SKIP() << "one device only";
  Shared<Note> note;
  JoinedChild owner([&] {
    const Tensor tensor = numbers_on(1000);
    note->write(share(tensor).to_text());
    note->reach(3);
    EXPECT_EQ(element(tensor, 7), 70);
  });
  Child hidden([&] {
    ::setenv("CUDA_VISIBLE_DEVICES", "1", 1);
    expect_refusal(ErrorCode::unsupported, {"UUID", "CUDA_VISIBLE_DEVICES", "MIG"},
                   [&] { open(Handle::from_text(note->read())); });
    note->step = 2;
  });
  JoinedChild renumbered([&] {
    note->reach(2);
    ::setenv("CUDA_VISIBLE_DEVICES", "1,0", 1);
    const Tensor tensor = open(Handle::from_text(note->read()));
    EXPECT_EQ(tensor.device(), (Device{DeviceType::cuda, 1}));
    EXPECT_EQ(element(tensor, 999), 999);
    set_element<std::int64_t>(tensor, 7, 70);
    EXPECT_EQ(share(tensor).fields().device, Handle::from_text(note->read()).fields().device);
    note->step = 3;
  });
  EXPECT_EQ(hidden.join(), 0);
}

TEST_F(CudaBetweenProcesses, AStateDictIsOneMessageAndFewMappings) {
  Shared<Note> note;
  constexpr int kTensors = 2000;
  JoinedChild owner([&] {
    std::vector<NamedTensor> tensors;
    for (int i = 0; i < kTensors; ++i)
      tensors.emplace_back("layer." + std::to_string(i), empty(Layout(DType::f32, {64 + i * 8}), kCuda0));
    set_element<float>(tensors.back().second, 3, 1.5f);
    const std::uint64_t before = stats().descriptors;
    const Handle handle = share_bundle(tensors);
    note->write(handle.to_text());
    note->reach(2);
    EXPECT_LE(stats().descriptors, before + 12) << "the connection, and exports that stay open";
    EXPECT_LE(stats().segments, 30u);
  });
  JoinedChild borrower([&] {
    const Bundle bundle = Bundle::open(Handle::from_text(note->read()));
    std::vector<Tensor> tensors;
    for (std::size_t row = 0; row < bundle.size(); ++row) tensors.push_back(bundle.tensor(row));
    EXPECT_EQ(element<float>(tensors.back(), 3), 1.5f);
    EXPECT_LE(stats().foreign_segments, 30u);
    note->step = 2;
  });
}

// ---- memory of other allocators

std::atomic<int> questions{0};

void count_questions(const char* name) noexcept {
  if (std::string_view(name) == "conversation.asked") ++questions;
}

TEST_F(CudaBetweenProcesses, ManyAllocationsAreAskedForInFewMessages) {
  Shared<Note> note;
  constexpr int kAllocations = 300;
  JoinedChild owner([&] {
    const CudaCalls cu(0);
    std::vector<NamedTensor> tensors;
    for (int i = 0; i < kAllocations; ++i) {
      tensors.emplace_back(std::to_string(i),
                           adopt(view_of(cu.memory(4096), 512), std::make_shared<int>()));
      set_element<std::int64_t>(tensors.back().second, 0, i);
    }
    const Handle handle = share_bundle(tensors);
    note->write(handle.to_text());
    note->reach(2);
  });
  JoinedChild borrower([&] {
    const Bundle bundle = Bundle::open(Handle::from_text(note->read()));
    point_hook = &count_questions;
    const std::vector<Tensor> tensors = bundle.tensors(bundle.size());
    point_hook = nullptr;
    EXPECT_LE(questions, 10) << "for " << kAllocations << " segments";
    for (int i = 0; i < kAllocations; ++i) EXPECT_EQ(element<std::int64_t>(tensors[i], 0), i);
    note->step = 2;
  });
}

/// A chunk that its owner has freed does not keep the other chunks from being mapped.
TEST_F(CudaBetweenProcesses, AnAllocationThatIsGoneIsLeftOutOfTheMessageWithTheOthers) {
  Shared<Note> note;
  JoinedChild owner([&] {
    const CudaCalls cu(0);
    std::vector<NamedTensor> tensors;
    std::vector<testing::CUdeviceptr> places;
    for (int i = 0; i < 3; ++i) {
      places.push_back(cu.memory(4096));
      tensors.emplace_back(std::to_string(i), adopt(view_of(places.back(), 512), std::make_shared<int>()));
      set_element<std::int64_t>(tensors.back().second, 0, i);
    }
    const Handle handle = share_bundle(tensors);
    EXPECT_EQ(cu.cuMemFree(places[1]), testing::CUDA_SUCCESS);  // under its tensor, against all rules
    note->write(handle.to_text());
    note->reach(2);
  });
  JoinedChild borrower([&] {
    const Bundle bundle = Bundle::open(Handle::from_text(note->read()));
    EXPECT_THROW((void)bundle.tensors(3), Error);
    EXPECT_EQ(element<std::int64_t>(bundle.tensor(0), 0), 0);
    EXPECT_EQ(element<std::int64_t>(bundle.tensor(2), 0), 2);
    note->step = 2;
  });
}

TEST_F(CudaBetweenProcesses, WhatCudaMallocGaveIsSharedWhereItIs) {
  Shared<Note> note;
  JoinedChild owner([&] {
    const CudaCalls cu(0);
    const auto at = cu.memory(4 << 20);
    auto freed = std::make_shared<std::atomic<bool>>(false);
    std::shared_ptr<const void> keeper(nullptr, [&cu, at, freed](const void*) {
      cu.use(0);
      EXPECT_EQ(cu.cuMemFree(at), testing::CUDA_SUCCESS);
      *freed = true;
    });
    Tensor tensor = adopt(view_of(at + 4096, 1000), keeper);
    Tensor other = adopt(view_of(at + (1 << 20), 1000), std::move(keeper));
    EXPECT_EQ(stats().segments, 1u) << "one allocation";
    EXPECT_EQ(tensor.data(), reinterpret_cast<void*>(at + 4096)) << "no copy";
    set_element<std::int64_t>(tensor, 999, 999);
    note->write(share(tensor).to_text());
    note->reach(2);
    EXPECT_EQ(element(tensor, 7), 70);
    tensor.release();
    other.release();
    EXPECT_FALSE(*freed) << "a borrower has it";
    note->step = 3;
    EXPECT_TRUE(eventually([&] { return freed->load(); }));
    EXPECT_TRUE(eventually([] { return stats().segments == 0; }));
  });
  JoinedChild borrower([&] {
    const Handle handle = Handle::from_text(note->read());
    EXPECT_EQ(handle.fields().kind, SegmentKind::cuda_ipc);
    const Tensor tensor = open(handle);
    EXPECT_EQ(element(tensor, 999), 999);
    set_element<std::int64_t>(tensor, 7, 70);
    note->step = 2;
    note->reach(3);
    EXPECT_EQ(element(tensor, 999), 999);
  });
}

/// Its memory has ended with it, and a handle or an item would be of no use to any process.
TEST_F(CudaBetweenProcesses, WhatCudaMallocGaveIsNeitherSharedNorPutOnceItsOwnerHasEnded) {
  Shared<Note> note;
  Child owner([&] {
    const CudaCalls cu(0);
    const Tensor tensor = adopt(view_of(cu.memory(4 << 20), 1000), nullptr);
    note->write(share(tensor).to_text());
    ::pause();
  });
  JoinedChild borrower([&] {
    Queue queue = Queue::create();
    const Tensor tensor = open(Handle::from_text(note->read()));
    queue.put(tensor);
    note->step = 2;
    const auto is_refused = [](const auto& action) {
      try {
        action();
        return false;
      } catch (const Error& error) {
        return error.code() == ErrorCode::owner_died;
      }
    };
    EXPECT_TRUE(eventually([&] { return is_refused([&] { share(tensor); }); }));
    EXPECT_TRUE(is_refused([&] { queue.put(tensor); }));
    EXPECT_EQ(queue.size(), 1u);
  });
  note->reach(2);
  owner.kill();
}

TEST_F(CudaBetweenProcesses, ATensorMayLieInSeveralChunksOfAnExpandableSegment) {
  Shared<Note> note;
  JoinedChild owner([&] {
    const CudaCalls cu(0);
    const auto at = expandable(cu, 4);
    const std::int64_t count = 2 * kChunk / 8;  // from the middle of chunk 1 to that of chunk 3
    const Tensor tensor = adopt(view_of(at + kChunk + kChunk / 2, count), nullptr);
    set_element<std::int64_t>(tensor, 0, 11);
    set_element<std::int64_t>(tensor, count - 1, 22);
    const std::uint64_t before = stats().descriptors;
    note->write(share(tensor).to_text());
    note->reach(2);
    EXPECT_EQ(element(tensor, count / 2), 33);
    EXPECT_LE(stats().descriptors, before + 8) << "none stays open";
  });
  JoinedChild borrower([&] {
    const Handle handle = Handle::from_text(note->read());
    EXPECT_EQ(handle.fields().kind, SegmentKind::cuda_vmm);
    const Tensor tensor = open(handle);
    const std::int64_t count = tensor.shape()[0];
    EXPECT_EQ(element(tensor, 0), 11);
    EXPECT_EQ(element(tensor, count - 1), 22);
    set_element<std::int64_t>(tensor, count / 2, 33);
    note->step = 2;
  });
}

TEST_F(CudaBetweenProcesses, AProgramThatIsStartedInheritsNoDescriptorsOfChunks) {
  testing::in_child([] {
    const CudaCalls cu(0);
    const auto at = expandable(cu, 2);
    Backend& cuda = backend(DeviceType::cuda);
    const auto data = reinterpret_cast<const void*>(at);
    const auto memory = cuda.adopt(cuda.find_foreign(data, 2 * kChunk));
    const ExportedMemory exported = memory->export_memory(Access::read_write);
    ASSERT_EQ(exported.fds.size(), 2u);
    for (const Fd& fd : exported.fds) EXPECT_NE(::fcntl(fd.get(), F_GETFD) & FD_CLOEXEC, 0);
  });
}

/// A message takes the descriptors of 252.
class CudaManyChunks : public CudaBetweenProcesses, public ::testing::WithParamInterface<std::size_t> {};

std::int64_t count_of(std::size_t chunks) { return static_cast<std::int64_t>(chunks * kChunk / 8); }

/// Bytes at the beginning and the end of each chunk, so that none is taken for another.
void number_chunks(const Tensor& tensor, std::size_t chunks) {
  for (std::size_t i = 0; i < chunks; ++i) {
    set_element<std::int64_t>(tensor, count_of(i), static_cast<std::int64_t>(2 * i));
    set_element<std::int64_t>(tensor, count_of(i + 1) - 1, static_cast<std::int64_t>(2 * i + 1));
  }
}

void expect_numbers(const Tensor& tensor, std::size_t chunks) {
  for (std::size_t i = 0; i < chunks; ++i) {
    ASSERT_EQ(element(tensor, count_of(i)), static_cast<std::int64_t>(2 * i));
    ASSERT_EQ(element(tensor, count_of(i + 1) - 1), static_cast<std::int64_t>(2 * i + 1));
  }
}

TEST_P(CudaManyChunks, OneTensorInThemIsOpenedWhereItIs) {
  Shared<Note> note;
  const std::size_t chunks = GetParam();
  // The simulator's memory is files; a driver has some of its own, 44 of all were seen with CUDA 13.
  const std::uint64_t drivers_own = testing::is_simulated() ? chunks : 60;
  JoinedChild owner([&] {
    const CudaCalls cu(0);
    const Tensor tensor = adopt(view_of(expandable(cu, chunks), count_of(chunks)), nullptr);
    number_chunks(tensor, chunks);
    const std::uint64_t before = stats().descriptors;
    note->write(share(tensor).to_text());
    note->reach(2);
    EXPECT_LE(stats().descriptors, before + 16) << "those that were sent are closed";
  });
  JoinedChild borrower([&] {
    const Tensor tensor = open(Handle::from_text(note->read()));  // connects, and asks at once
    expect_numbers(tensor, chunks);
    EXPECT_LE(stats().descriptors, drivers_own + 40);
    note->step = 2;
  });
}

TEST_P(CudaManyChunks, OneTensorInThemCrossesAQueue) {
  Shared<Note> note;
  const std::size_t chunks = GetParam();
  JoinedChild owner([&] {
    const CudaCalls cu(0);
    const Tensor tensor = adopt(view_of(expandable(cu, chunks), count_of(chunks)), nullptr);
    number_chunks(tensor, chunks);
    Queue queue = Queue::connect(Handle::from_text(note->read()));
    queue.put(tensor);
    if (chunks > 252) {
      EXPECT_EQ(stats().unkept, 1u) << "nobody keeps what takes several messages";
    }
    note->step = 2;
    note->reach(3);
  });
  JoinedChild borrower([&] {
    Queue queue = Queue::create();
    note->write(queue.handle().to_text());
    note->reach(2);
    expect_numbers(queue.get_tensor(), chunks);
    note->step = 3;
  });
}

INSTANTIATE_TEST_SUITE_P(Of, CudaManyChunks, ::testing::Values(252, 253, 505),
                         [](const auto& chunks) { return std::to_string(chunks.param); });

TEST_F(CudaBetweenProcesses, WhatTakesSeveralMessagesIsNotPassedOnAndTheErrorSaysWhy) {
  Shared<Note> note;
  JoinedChild owner([&] {
    const CudaCalls cu(0);
    const Tensor tensor = adopt(view_of(expandable(cu, 253), count_of(253)), nullptr);
    note->write(share(tensor).to_text());
    note->reach(2);
  });
  JoinedChild borrower([&] {
    const Tensor tensor = open(Handle::from_text(note->read()));
    Queue queue = Queue::create();
    queue.put(tensor);
    EXPECT_EQ(stats().unkept, 1u);
    auto& keeper = as_shared(*tensor.block().group());
    const auto segment = keeper.export_block(tensor.block().number(), Access::read_write).info.segment;
    expect_refusal(ErrorCode::unsupported, {"253 descriptors", "its owner hands it out"},
                   [&] { Runtime::current().segment_source().pass_on(keeper, segment); });
    note->step = 2;
  });
}

/// A tensor in each chunk of an expandable segment, as a model has them.
Handle share_pieces(const CudaCalls& cu, int count, std::vector<Tensor>& kept) {
  const auto at = expandable(cu, static_cast<std::size_t>(count));
  std::vector<NamedTensor> named;
  for (int i = 0; i < count; ++i) {
    kept.push_back(adopt(view_of(at + static_cast<std::size_t>(i) * kChunk, 8), nullptr));
    set_element<std::int64_t>(kept.back(), 0, i);
    named.emplace_back(std::to_string(i), kept.back());
  }
  return share_bundle(named);
}

std::vector<Tensor> open_all(const Bundle& bundle) {
  std::vector<Tensor> tensors;
  for (std::size_t row = 0; row < bundle.size(); ++row) tensors.push_back(bundle.tensor(row));
  return tensors;
}

TEST_F(CudaBetweenProcesses, HoweverManyPiecesAreOpenFewDescriptorsAre) {
  Shared<Note> note;
  constexpr int kPieces = 200;
  const int drivers_own = testing::is_simulated() ? kPieces : 0;  // its memory is files
  JoinedChild owner([&] {
    const CudaCalls cu(0);
    std::vector<Tensor> kept;
    const std::uint64_t before = stats().descriptors + drivers_own;
    const Handle handle = share_pieces(cu, kPieces, kept);
    note->write(handle.to_text());
    note->reach(2);
    EXPECT_LE(stats().descriptors, before + 16);
  });
  JoinedChild borrower([&] {
    const Bundle bundle = Bundle::open(Handle::from_text(note->read()));
    EXPECT_EQ(element(bundle.tensor(0), 0), 0) << "by a context, whose files stay open";
    const std::uint64_t before = stats().descriptors + drivers_own;
    const std::vector<Tensor> tensors = open_all(bundle);
    EXPECT_EQ(element(tensors.back(), 0), kPieces - 1);
    EXPECT_EQ(stats().foreign_segments, kPieces + 1u) << "the bundle's own is one";
    EXPECT_LE(stats().descriptors, before + 20);
    note->step = 2;
  });
}

TEST_F(CudaBetweenProcesses, WhatABorrowerKeptNoDescriptorOfGoesOnWhileItsOwnerLives) {
  Shared<Note> pieces, queue, first, last, relay;
  constexpr int kPieces = 40;
  Child owner([&] {
    const CudaCalls cu(0);
    std::vector<Tensor> kept;
    const Handle handle = share_pieces(cu, kPieces, kept);
    pieces->write(handle.to_text());
    ::pause();
  });
  Child third([&] {
    Queue created = Queue::create();
    queue->write(created.handle().to_text());
    queue->reach(3);
    const Tensor tensor = created.get_tensor();
    EXPECT_EQ(element(tensor, 0), kPieces - 1) << "it was deposited, with the owner's help";
    queue->step = 4;
    EXPECT_EQ(element(created.get_tensor(), 0), kPieces - 1) << "it is open here";
  });
  JoinedChild borrower([&] {
    const std::vector<Tensor> tensors = open_all(Bundle::open(Handle::from_text(pieces->read())));
    Queue to_third = Queue::connect(Handle::from_text(queue->read()));
    to_third.put(tensors.back());
    Queue own = Queue::create();
    own.put(tensors.back());
    relay->write(own.handle().to_text());
    queue->step = 2;
    queue->reach(4);
    to_third.put(tensors.back());
    EXPECT_EQ(element(tensors.back(), 0), kPieces - 1) << "the memory is still here";
    EXPECT_EQ(element(open(share(tensors.back()), Access::read_only), 0), kPieces - 1)
        << "its queue has it";
    const Handle kept = share(tensors.front());
    const Handle not_kept = share(tensors[kPieces - 2]);
    first->write(kept.to_text());
    last->write(not_kept.to_text());
    last->reach(2);
  });
  queue->reach(2);
  owner.kill();
  queue->step = 3;
  Child late([&] {
    EXPECT_EQ(element(open(Handle::from_text(first->read())), 0), 0);
    expect_refusal(ErrorCode::unsupported, {"descriptors", "while the owner runs", "copy"},
                   [&] { open(Handle::from_text(last->read())); });
    const Tensor relayed = Queue::connect(Handle::from_text(relay->read())).get_tensor();
    EXPECT_EQ(element(relayed, 0), kPieces - 1) << "its creator kept what it put there";
    last->step = 2;
  });
  EXPECT_EQ(late.join(), 0);
  EXPECT_EQ(third.join(), 0);
}

TEST_F(CudaBetweenProcesses, MemoryThatCannotBeSharedIsRefusedInWords) {
  testing::in_child([] {
    const CudaCalls cu(0);
    testing::CUdeviceptr managed = 0;
    EXPECT_EQ(cu.cuMemAllocManaged(&managed, 8000, 1), testing::CUDA_SUCCESS);
    expect_refusal(ErrorCode::unsupported, {"managed", "copy"},
                   [&] { adopt(view_of(managed, 10), nullptr); });
    std::int64_t host[10] = {};
    expect_refusal(ErrorCode::invalid_argument, {"host memory"},
                   [&] { adopt(view_of(reinterpret_cast<testing::CUdeviceptr>(host), 10), nullptr); });
    expect_refusal(ErrorCode::unsupported, {"copy"}, [&] {
      adopt({host, Layout(DType::i64, {10}), kCpu, Access::read_write}, nullptr);
    });
    const auto at = cu.memory(8000);
    expect_refusal(ErrorCode::invalid_argument, {"past the end"},
                   [&] { adopt(view_of(at, 5000), nullptr); });
    EXPECT_EQ(stats().segments, 0u);
  });
}

TEST_F(CudaBetweenProcesses, AMappingThatCannotBeExportedIsRefusedWhereverItLiesAndLeavesNothing) {
  testing::in_child([] {
    const CudaCalls cu(0);
    const auto at = expandable(cu, 2);
    constexpr int kNone = 0;
    map_chunk(cu, at + 2 * kChunk, kNone);
    constexpr std::int64_t kThree = 3 * kChunk / 8;
    const Footprint before = Footprint::unchanging();
    for (const auto& [first, count] :
         {std::pair(at + 2 * kChunk, 10L), {at, kThree}, {at + 8, kThree - 1}}) {
      expect_refusal(ErrorCode::unsupported, {"exportable handle type", "copy", "onecopy"},
                     [view = view_of(first, count)] { adopt(view, nullptr); });
      EXPECT_EQ(stats().segments, 0u);
      testing::expect_soon(before);
    }
    const Tensor good = adopt(view_of(at, 2 * kChunk / 8), nullptr);
    EXPECT_EQ(share(good).fields().segment_size, 2 * kChunk) << "the chunks before it";
  });
}

TEST_F(CudaBetweenProcesses, OneAllocationIsDescribedByTheDriverOnce) {
  if (!testing::is_simulated()) GTEST_SKIP() << "counts calls of the simulator";
  testing::in_child([] {
    const CudaCalls cu(0);
    const auto at = cu.memory(4 << 20);
    const Tensor first = adopt(view_of(at, 10), nullptr);
    cu.sim_fail("cuMemGetAddressRange", testing::CUDA_ERROR_UNKNOWN, 0, 1);
    const Tensor second = adopt(view_of(at + (1 << 20), 10), nullptr);
    EXPECT_EQ(share(second).fields().segment, share(first).fields().segment);
    EXPECT_EQ(share(second).fields().tensor_offset, 0u);
    expect_refusal(ErrorCode::system, {"cuMemGetAddressRange"},  // and so it does for a longer range
                   [&] { adopt(view_of(at, 5 << 20), nullptr); });
  });
}

TEST_F(CudaBetweenProcesses, InARoundTheDriverIsAskedOncePerAllocation) {
  if (!testing::is_simulated()) GTEST_SKIP() << "counts calls of the simulator";
  testing::in_child([] {
    const CudaCalls cu(0);
    const auto first = cu.memory(4 << 20);
    {
      const AdoptionRound round;
      const Tensor one = adopt(view_of(first, 10), nullptr);
      const Tensor two = adopt(view_of(first + 1000, 10), nullptr);
      cu.sim_fail("cuPointerGetAttributes", testing::CUDA_ERROR_UNKNOWN, 0, 1000);
      const AdoptionRound inner;
      const Tensor three = adopt(view_of(first + kChunk / 2, 10), nullptr);
      EXPECT_EQ(share(three).fields().segment, share(one).fields().segment);
    }
    expect_refusal(ErrorCode::system, {"cuPointerGetAttributes"},
                   [&] { adopt(view_of(first, 10), nullptr); });
  });
}

TEST_F(CudaBetweenProcesses, InARoundTheDriverIsAskedOncePerChunkOfAnExpandableSegment) {
  if (!testing::is_simulated()) GTEST_SKIP() << "counts calls of the simulator";
  testing::in_child([] {
    const CudaCalls cu(0);
    const auto at = expandable(cu, 2);
    const AdoptionRound round;
    const Tensor one = adopt(view_of(at, 10), nullptr);
    const Tensor two = adopt(view_of(at + 1000, 10), nullptr);
    const Tensor across = adopt(view_of(at + kChunk - 80, 20), nullptr);
    cu.sim_fail("cuPointerGetAttributes", testing::CUDA_ERROR_UNKNOWN, 0, 1000);
    cu.sim_fail("cuMemGetAddressRange", testing::CUDA_ERROR_UNKNOWN, 0, 1000);
    const Tensor three = adopt(view_of(at + kChunk / 2, 10), nullptr);
    EXPECT_EQ(share(three).fields().segment, share(one).fields().segment);
    EXPECT_NE(share(three).fields().segment, share(across).fields().segment);
    expect_refusal(ErrorCode::system, {"cuPointerGetAttributes"},
                   [&] { adopt(view_of(at + kChunk, 10), nullptr); });
  });
}

/// As a model's tensors lie: in a chunk, across its end, in the next.
TEST_F(CudaBetweenProcesses, AChunkThatSeveralRowsHaveIsExportedOnce) {
  if (!testing::is_simulated()) GTEST_SKIP() << "counts calls of the simulator";
  testing::in_child([] {
    const CudaCalls cu(0);
    const auto at = expandable(cu, 2);
    std::vector<Tensor> tensors{adopt(view_of(at, 10), nullptr),
                                adopt(view_of(at + kChunk - 80, 20), nullptr),
                                adopt(view_of(at + kChunk, 10), nullptr)};
    share(tensors.front());  // from here on there is a socket
    const std::uint64_t before = stats().descriptors;
    cu.sim_fail("cuMemExportToShareableHandle", testing::CUDA_ERROR_UNKNOWN, 2, 1000);
    for (const Tensor& tensor : tensors) {
      const std::uint32_t segment = share(tensor).fields().segment;
      EXPECT_FALSE(Runtime::current().ledger().export_segment(segment, Access::read_write).fds.empty());
    }
    tensors.clear();
    collect();
    EXPECT_EQ(stats().segments, 0u);
    EXPECT_EQ(stats().descriptors, before) << "none outlives its rows";
  });
}

// A round once took a small tensor for a part of the row of chunks of a large tensor, which the small tensor does not
// keep. Its handle then could not be opened, or showed old memory.
TEST_F(CudaBetweenProcesses, InARoundATensorOfOneChunkIsNotPartOfALongerRow) {
  testing::in_child([] {
    const CudaCalls cu(0);
    const auto at = expandable(cu, 3);
    const AdoptionRound round;
    const Tensor large = adopt(view_of(at, 3 * kChunk / 8), nullptr);
    const Tensor small = adopt(view_of(at + 1024, 10), nullptr);
    EXPECT_NE(share(small).fields().segment, share(large).fields().segment);
    EXPECT_EQ(share(small).fields().segment_size, kChunk);
  });
}

// Rows of chunks were once told apart by their first chunk only.
TEST_F(CudaBetweenProcesses, ARowOfWhichAChunkWasExchangedIsAnotherSegment) {
  testing::in_child([] {
    const CudaCalls cu(0);
    const auto at = expandable(cu, 3);
    const auto segment = [&] {
      return share(adopt(view_of(at, 3 * kChunk / 8), nullptr)).fields().segment;
    };
    const auto before = segment();
    EXPECT_EQ(segment(), before);
    EXPECT_EQ(cu.cuMemUnmap(at + kChunk, kChunk), testing::CUDA_SUCCESS);
    map_chunk(cu, at + kChunk);
    EXPECT_NE(segment(), before);
  });
}

TEST_F(CudaBetweenProcesses, AnAddressThatWasFreedBetweenTwoRoundsIsAnotherSegment) {
  testing::in_child([] {
    const CudaCalls cu(0);
    const auto first = cu.memory(4 << 20);
    const auto adopted_in_a_round = [](testing::CUdeviceptr at) {
      const AdoptionRound round;
      return share(adopt(view_of(at, 10), nullptr)).fields().segment;
    };
    const auto segment = adopted_in_a_round(first);
    EXPECT_EQ(adopted_in_a_round(first), segment);
    cu.cuMemFree(first);
    const auto second = cu.memory(4 << 20);
    EXPECT_NE(adopted_in_a_round(second), segment);
  });
}

TEST_F(CudaBetweenProcesses, AnAddressThatWasFreedAndGivenOutAgainIsAnotherSegment) {
  testing::in_child([] {
    const CudaCalls cu(0);
    const auto first = cu.memory(4 << 20);
    const auto segment = share(adopt(view_of(first, 10), nullptr)).fields().segment;
    EXPECT_EQ(share(adopt(view_of(first, 10), nullptr)).fields().segment, segment);
    cu.cuMemFree(first);
    const auto second = cu.memory(4 << 20);
    EXPECT_NE(share(adopt(view_of(second, 10), nullptr)).fields().segment, segment);
  });
}

TEST_F(CudaBetweenProcesses, AnIdleAllocationStaysASegmentWhileItIsThereForAWhile) {
  testing::in_child([] {
    const CudaCalls cu(0);
    SegmentTable segments;
    Ledger ledger(ProcessId{}, segments);
    AdoptedAllocations adoptions(segments, ledger);
    const auto idle_segment = [&](testing::CUdeviceptr at, std::int64_t count = 10) {
      const Tensor tensor = adoptions.adopt(view_of(at, count), nullptr);
      return ledger.export_spot(tensor.block().number()).info.segment;
    };
    const auto allocation = cu.memory(1 << 20);
    const auto stays = idle_segment(allocation);
    const auto freed = cu.memory(1 << 20);
    const auto is_freed = idle_segment(freed);
    const auto chunk_at = expandable(cu, 1);
    const auto chunk = idle_segment(chunk_at);                         // its mapping can be asked about
    const auto row = idle_segment(expandable(cu, 2), 2 * kChunk / 8);  // nothing to ask the driver by
    cu.cuMemFree(freed);
    const auto now = std::chrono::steady_clock::now();
    EXPECT_TRUE(adoptions.sweep(now));
    EXPECT_TRUE(adoptions.contains(is_freed));
    EXPECT_TRUE(adoptions.contains(row));
    EXPECT_TRUE(adoptions.sweep(now + AdoptedAllocations::kDecay));
    EXPECT_TRUE(adoptions.contains(stays));
    EXPECT_FALSE(adoptions.contains(is_freed));
    EXPECT_TRUE(adoptions.contains(chunk));
    EXPECT_FALSE(adoptions.contains(row));
    EXPECT_TRUE(adoptions.sweep(now + AdoptedAllocations::kDecay + AdoptedAllocations::kAskAgain));
    EXPECT_TRUE(adoptions.contains(stays));
    cu.cuMemFree(allocation);
    EXPECT_EQ(cu.cuMemUnmap(chunk_at, kChunk), testing::CUDA_SUCCESS);
    EXPECT_FALSE(adoptions.sweep(now + AdoptedAllocations::kDecay + 2 * AdoptedAllocations::kAskAgain));
    EXPECT_FALSE(adoptions.contains(stays));
    const auto forgotten = idle_segment(cu.memory(1 << 20));
    EXPECT_FALSE(adoptions.sweep(std::chrono::steady_clock::now() + AdoptedAllocations::kDecayWhileThere));
    EXPECT_FALSE(adoptions.contains(forgotten));
  });
}

TEST_F(CudaBetweenProcesses, AskingAboutAnAllocationSpoilsNobodysCapture) {
  testing::in_child([] {
    const CudaCalls cu(0);
    SegmentTable segments;
    Ledger ledger(ProcessId{}, segments);
    AdoptedAllocations adoptions(segments, ledger);
    const auto at = cu.memory(1 << 20);
    const auto stream = cu.stream();
    EXPECT_EQ(cu.cuStreamBeginCapture(stream, testing::CU_STREAM_CAPTURE_MODE_GLOBAL),
              testing::CUDA_SUCCESS);
    std::thread([&] {
      adoptions.adopt(view_of(at, 10), nullptr);
      EXPECT_TRUE(adoptions.sweep(std::chrono::steady_clock::now() + AdoptedAllocations::kDecay));
    }).join();
    testing::CUgraph graph = nullptr;
    EXPECT_EQ(cu.cuStreamEndCapture(stream, &graph), testing::CUDA_SUCCESS);
  });
}

TEST_F(CudaBetweenProcesses, MemoryOfCudaMallocIsRefusedOnceItsOwnerIsGone) {
  Shared<Note> note;
  Child owner([&] {
    const CudaCalls cu(0);
    const Tensor tensor = adopt(view_of(cu.memory(1 << 20), 1000), nullptr);
    note->write(share(tensor).to_text());
    ::pause();
  });
  JoinedChild borrower([&] {
    const Handle handle = Handle::from_text(note->read());
    const Tensor tensor = open(handle);
    note->step = 2;
    note->reach(3);
    EXPECT_TRUE(eventually([&] {
      try {
        open(handle);
        return false;
      } catch (const Error& error) {
        return error.code() == ErrorCode::owner_died;
      }
    }));
    expect_refusal(ErrorCode::owner_died, {"ends with its process"}, [&] { open(handle); });
  });
  note->reach(2);
  owner.kill();
  note->step = 3;
}

// ---- forks

/// A borrower that opens the tensor of a note and then becomes another program, which does not end.
Child becoming_another_program(Shared<Note>& note, int step) {
  return Child([&note, step] {
    const Tensor tensor = open(Handle::from_text(note->read(step)));
    note->step = step + 1;
    execlp("sleep", "sleep", "600", nullptr);
  });
}

bool has_become(const Child& child, const char* program) { return process_name(child.pid()) == program; }

// Its claims fell when it no longer mapped their page, while its device could still be writing.
TEST_F(CudaBetweenProcesses, AProgramThatABorrowerBecomesHoldsItsMemoryUntilItEnds) {
  Shared<Note> on_device;
  Shared<Note> on_host;
  Child device_user = becoming_another_program(on_device, 1);
  Child host_user = becoming_another_program(on_host, 1);
  JoinedChild owner([&] {
    Tensor of_device = numbers_on(1000);
    Tensor of_host = numbers_on(1000, kCpu);
    on_device->write(share(of_device).to_text());
    on_device->reach(2);
    of_device.release();
    EXPECT_EQ(stats().limbo, 1u);
    on_device->reach(3);
    on_host->write(share(of_host).to_text());
    on_host->reach(3);
    of_host.release();
    EXPECT_TRUE(eventually([] { return stats().borrowers == 1; }))
        << "who has no claims on a device has none";
    EXPECT_EQ(stats().limbo, 1u);
    on_host->step = 4;
    EXPECT_TRUE(eventually([] { return stats().limbo == 0 && stats().borrowers == 0; })) << "it has ended";
  });
  EXPECT_TRUE(eventually([&] { return has_become(device_user, "sleep"); }));
  on_device->step = 3;
  EXPECT_TRUE(eventually([&] { return has_become(host_user, "sleep"); }));
  on_host->step = 3;
  on_host->reach(4);
  device_user.kill();
}

TEST_F(CudaBetweenProcesses, AForkedChildIsToldToUseSpawn) {
  testing::in_child([] {
    Tensor tensor = numbers_on(1000);
    const Handle handle = share(tensor);
    Child child([&] {
      expect_refusal(ErrorCode::unsupported, {"fork", "spawn"}, [] { numbers_on(10); });
      expect_refusal(ErrorCode::unsupported, {"fork", "spawn"}, [&] { element(tensor, 0); });
      tensor.release();
    });
    tensor.release();
    EXPECT_EQ(child.join(), 0);
    EXPECT_TRUE(eventually([] { return stats().limbo == 0; }));
    EXPECT_EQ(element(numbers_on(10), 9), 9);
  });
}

}  // namespace
}  // namespace onecopy
