// SPDX-License-Identifier: Apache-2.0
#include "physical_chunk.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <string>

#include "backend.h"
#include "core/throw_error.h"
#include "exported_chunks.h"
#include "os/mutex.h"

namespace onecopy::cuda {

CUresult try_export(const Driver& driver, CUmemGenericAllocationHandle memory, Fd& exported) {
  int fd = -1;
  const CUresult result =
      driver.cuMemExportToShareableHandle(&fd, memory, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
  if (result != CUDA_SUCCESS) return result;
  exported = Fd(fd);
  ::fcntl(fd, F_SETFD, FD_CLOEXEC);  // a program started by another thread would keep the memory
  return result;
}

AllocationHandle::~AllocationHandle() {
  const Driver* driver = handle_ ? Driver::try_get() : nullptr;
  if (!driver) return;
  const RelaxedCapture relaxed(*driver);
  driver->cuMemRelease(handle_);
}

namespace {

/// A chunk allocated here. If there is room, its descriptor stays open once it was created: the driver takes 0.1 ms for
/// each, and 0.8 ms if none is open anywhere (seen on an H200). The first chunk of a card gets one at once, so that its
/// borrower does not wait.
class OwnChunk final : public CudaChunk {
 public:
  OwnChunk(int ordinal, std::size_t bytes, AllocationHandle handle)
      : CudaChunk(ordinal, bytes, std::move(handle)), device_(Devices::get().at(ordinal)) {}
  ~OwnChunk() override { device_.open_exports -= static_cast<int>(kept_.fds().size()); }

  /// Creates a descriptor, unless another chunk has one or the driver fails; the next request reports the error.
  void make_first_descriptor_of_card(const Driver& driver) {
    Fd fd;
    const LockGuard lock(mutex_);
    if (device_.open_exports == 0 && driver.cuMemExportToShareableHandle &&
        try_export(driver, handle(), fd) == CUDA_SUCCESS)
      keep(std::move(fd));
  }

  Fd descriptor() const override {
    const Driver& driver = Driver::get();
    const RelaxedCapture relaxed(driver);
    const LockGuard lock(mutex_);
    if (!kept_.fds().empty()) return kept_.fds().front().duplicate();
    Fd fd;
    check(try_export(driver, handle(), fd), "cuMemExportToShareableHandle");
    try {
      keep(fd.duplicate());
    } catch (const Error&) {  // the descriptor is created anew for the next caller
    }
    return fd;
  }

 private:
  void keep(Fd fd) const REQUIRES(mutex_) {
    std::vector<Fd> one;
    one.push_back(std::move(fd));
    kept_.keep(std::move(one));
    device_.open_exports += static_cast<int>(kept_.fds().size());
  }

  DeviceEntry& device_;
  mutable Mutex mutex_;
  mutable KeptDescriptors kept_ GUARDED_BY(mutex_){room_for_exports};
};

/// The descriptors of all chunks that arrived together, or none if there was no room for all: a model in expandable
/// segments has thousands.
struct ReceivedChunk {
  KeptDescriptors kept{room_for_received};
  std::size_t chunks = 0;
};

/// A chunk of another process. The driver exports only memory that was allocated here, so the received descriptor is
/// kept, to pass the memory on after its owner has ended.
class ImportedChunk final : public CudaChunk {
 public:
  /// Constructs a chunk. The chunks of one message share `received` and end independently.
  ImportedChunk(int home, std::size_t bytes, AllocationHandle handle,
                std::shared_ptr<const ReceivedChunk> received, std::size_t index)
      : CudaChunk(home, bytes, std::move(handle)), received_(std::move(received)), index_(index) {}

  Fd descriptor() const override {
    if (index_ < received_->kept.fds().size()) return received_->kept.fds()[index_].duplicate();
    throw_error(ErrorCode::unsupported,
                "this process opened the segment ({} chunks) and does not own it: it keeps the descriptors "
                "of {} chunks in all, to pass memory on when its owner has ended, and there was no room "
                "for these; open it in the third process while the owner runs, or send a copy",
                received_->chunks, kMaxReceived);
  }

 private:
  const std::shared_ptr<const ReceivedChunk> received_;
  const std::size_t index_;
};

/// Returns the free bytes. Only a context can be asked, and a context takes memory itself.
std::string free_bytes(const Driver& driver, int ordinal) {
  if (!is_in_use(ordinal)) return "too few";
  const UseDevice use(ordinal);
  std::size_t free = 0;
  std::size_t total = 0;
  return driver.cuMemGetInfo(&free, &total) == CUDA_SUCCESS ? std::to_string(free) : "too few";
}

[[noreturn]] void throw_out_of_memory(const Driver& driver, int ordinal, std::size_t bytes,
                                      CUresult result) {
  throw Error(ErrorCode::out_of_memory,
              fmt::format("cannot reserve {} bytes ({} MiB) on cuda:{}: {} of its {} bytes are free ({})",
                          bytes, bytes >> 20, ordinal, free_bytes(driver, ordinal),
                          Devices::get().at(ordinal).info.total_bytes, driver.describe(result)),
              result, ErrorDomain::cuda);
}

AllocationHandle import_handle(const Driver& driver, const Fd& fd) {
  CUmemGenericAllocationHandle handle = 0;
  void* number = reinterpret_cast<void*>(static_cast<std::intptr_t>(fd.get()));
  const CUresult result =
      driver.cuMemImportFromShareableHandle(&handle, number, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  if (result == CUDA_ERROR_INVALID_VALUE)
    throw Error(ErrorCode::bad_handle, "the descriptor of a CUDA segment is not CUDA memory", result,
                ErrorDomain::cuda);
  check(result, "cuMemImportFromShareableHandle");
  return AllocationHandle(handle);
}

/// Asks the owner for more descriptors. Earlier ones are closed first, because a large tensor has more chunks than a
/// process may have open files.
std::vector<Fd> rest_of(ExportedMemory& memory, std::size_t first) {
  memory.fds.clear();
  std::vector<Fd> rest = memory.rest(first);
  if (rest.empty())
    throw_error(ErrorCode::protocol, "the owner of a CUDA segment has no descriptor of its chunk {}",
                first);
  return rest;
}

}  // namespace

std::unique_ptr<PhysicalChunk> CudaBackend::create_chunk(int ordinal, std::size_t bytes) {
  const Driver& driver = Driver::get();
  const DeviceEntry& device = Devices::get().at(ordinal);
  require_exports(device);
  const RelaxedCapture relaxed(driver);
  const CUmemAllocationProp prop = exportable_on(device);
  CUmemGenericAllocationHandle handle = 0;
  const CUresult result = driver.cuMemCreate(&handle, bytes, &prop, 0);
  if (result == CUDA_ERROR_OUT_OF_MEMORY) throw_out_of_memory(driver, ordinal, bytes, result);
  check(result, "cuMemCreate");
  auto chunk = std::make_unique<OwnChunk>(ordinal, bytes, AllocationHandle(handle));
  chunk->make_first_descriptor_of_card(driver);
  return chunk;
}

std::vector<std::unique_ptr<PhysicalChunk>> CudaBackend::import_chunks(int home, ExportedMemory memory,
                                                                       int) {
  const Driver& driver = Driver::get();
  const RelaxedCapture relaxed(driver);
  const std::vector<std::uint64_t> sizes = decode_chunks(memory).sizes;
  std::vector<AllocationHandle> handles;
  std::size_t first = 0;  // the number of the first descriptor in this message
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (i - first == memory.fds.size()) memory.fds = rest_of(memory, first = i);
    handles.push_back(import_handle(driver, memory.fds[i - first]));
  }
  auto received = std::make_shared<ReceivedChunk>();
  received->chunks = sizes.size();
  if (first == 0 && memory.kind != SegmentKind::cuda_sealed)  // SealedMemory keeps its own
    received->kept.keep(std::move(memory.fds));
  std::vector<std::unique_ptr<PhysicalChunk>> chunks;
  for (std::size_t i = 0; i < sizes.size(); ++i)
    chunks.push_back(std::make_unique<ImportedChunk>(home, sizes[i], std::move(handles[i]), received, i));
  return chunks;
}

ExportedMemory CudaBackend::export_chunks(std::span<const std::unique_ptr<PhysicalChunk>> chunks,
                                          Access access) const {
  ExportedMemory memory;
  ExportedChunks exported{access, {}, {}};
  for (const auto& chunk : chunks) {
    memory.fds.push_back(static_cast<const CudaChunk&>(*chunk).descriptor());
    exported.sizes.push_back(chunk->size());
  }
  memory.blob = encode(exported);
  return memory;
}

}  // namespace onecopy::cuda
