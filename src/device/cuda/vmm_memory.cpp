// SPDX-License-Identifier: Apache-2.0
#include "vmm_memory.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <set>
#include <utility>

#include "exported_chunks.h"
#include "kept_descriptors.h"
#include "onecopy/core/error.h"
#include "peers.h"

namespace onecopy::cuda {

CUresult try_export(const Driver& driver, CUmemGenericAllocationHandle memory, Fd& exported) {
  int fd = -1;
  const CUresult result =
      driver.cuMemExportToShareableHandle(&fd, memory, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
  if (result != CUDA_SUCCESS) return result;
  exported = Fd(fd);
  ::fcntl(fd, F_SETFD, FD_CLOEXEC);  // a program that is started meanwhile would keep the memory
  return result;
}

namespace {

/// Something of the driver's that is given back at the end of a scope, unless it was taken out.
class PhysicalMemory {
 public:
  PhysicalMemory() = default;
  explicit PhysicalMemory(CUmemGenericAllocationHandle handle) noexcept : handle_(handle) {}
  PhysicalMemory(PhysicalMemory&& other) noexcept : handle_(std::exchange(other.handle_, 0)) {}
  PhysicalMemory& operator=(PhysicalMemory&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~PhysicalMemory() {
    const Driver* driver = handle_ ? Driver::try_get() : nullptr;
    if (!driver) return;
    const RelaxedCapture relaxed(*driver);
    driver->cuMemRelease(handle_);
  }
  CUmemGenericAllocationHandle get() const noexcept { return handle_; }

 private:
  CUmemGenericAllocationHandle handle_ = 0;
};

/// Addresses, and what is mapped to them.
class AddressRange {
 public:
  AddressRange(const Driver& driver, std::size_t bytes) : bytes_(bytes) {
    const CUresult result = driver.cuMemAddressReserve(&base_, bytes, 0, 0, 0);
    if (result != CUDA_SUCCESS)
      throw Error(ErrorCode::out_of_mappings,
                  fmt::format("cannot reserve {} bytes of addresses for a CUDA segment: {}", bytes,
                              driver.describe(result)),
                  result, ErrorDomain::cuda);
  }
  AddressRange(const AddressRange&) = delete;
  AddressRange& operator=(const AddressRange&) = delete;
  ~AddressRange() {
    const Driver* driver = Driver::try_get();  // none at the end of the process, or in a forked child
    if (!driver) return;
    const RelaxedCapture relaxed(*driver);
    unmap(*driver);
    driver->cuMemAddressFree(base_, bytes_);
  }

  CUdeviceptr base() const noexcept { return base_; }
  std::size_t bytes() const noexcept { return bytes_; }

  void map(const Driver& driver, std::size_t bytes, const PhysicalMemory& memory) {
    driver.cuMemMap.must(base_ + mapped_, bytes, 0, memory.get(), 0);
    mapped_ += bytes;
    sizes_.push_back(bytes);
  }
  void allow(const Driver& driver, CUdevice device, Access access) const {
    const CUmemAccessDesc wanted{
        {CU_MEM_LOCATION_TYPE_DEVICE, device},
        access == Access::read_only ? CU_MEM_ACCESS_FLAGS_PROT_READ : CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    driver.cuMemSetAccess.must(base_, mapped_, &wanted, 1);
  }
  void unmap(const Driver& driver) noexcept {
    CUdeviceptr at = base_;
    for (const std::size_t bytes : std::exchange(sizes_, {})) {
      driver.cuMemUnmap(at, bytes);
      at += bytes;
    }
    mapped_ = 0;
  }

 private:
  CUdeviceptr base_ = 0;
  std::size_t bytes_;
  std::size_t mapped_ = 0;
  std::vector<std::size_t> sizes_;
};

/// The descriptor of a segment's memory. Once made it stays open, where there is room, for as long as the segment
/// has memory: the driver takes 0.1 ms for each, and 0.8 where none is open anywhere (seen on an H200). The first
/// segment of a card has one from the beginning, so that who opens it does not wait for that.
class Export {
 public:
  explicit Export(DeviceEntry& device) noexcept : device_(device) {}
  Export(const Export&) = delete;
  Export& operator=(const Export&) = delete;
  ~Export() { close(); }

  /// Does nothing where another segment has one, or it cannot be made: whoever wants it will hear why.
  void make_first_of_card(const Driver& driver, const PhysicalMemory& memory) {
    Fd fd;
    if (device_.open_exports == 0 && driver.cuMemExportToShareableHandle &&
        try_export(driver, memory.get(), fd) == CUDA_SUCCESS)
      keep(std::move(fd));
  }
  Fd get(const Driver& driver, const PhysicalMemory& memory) {
    if (!kept_.fds().empty()) return kept_.fds().front().duplicate();
    Fd fd;
    check(try_export(driver, memory.get(), fd), "cuMemExportToShareableHandle");
    try {
      keep(fd.duplicate());
    } catch (const Error&) {  // there is room for one descriptor; it is made anew for the next who asks
    }
    return fd;
  }
  void close() noexcept {
    device_.open_exports -= static_cast<int>(kept_.fds().size());
    kept_.close();
  }

 private:
  void keep(Fd fd) {
    std::vector<Fd> one;
    one.push_back(std::move(fd));
    kept_.keep(std::move(one));
    device_.open_exports += static_cast<int>(kept_.fds().size());
  }

  DeviceEntry& device_;
  KeptDescriptors kept_{room_for_exports};
};

/// A segment of kind cuda_vmm, of the owner (one chunk) or of a borrower. It is mapped with the context of `user`, for
/// that device and `home`: a borrower may have no business with the latter but this memory.
class VmmMemory final : public DeviceMemory {
 public:
  VmmMemory(int home, int user, std::size_t bytes, Access access)
      : home_(home),
        user_(user),
        access_(access),
        export_(Devices::get().at(home)),
        range_(Driver::get(), bytes) {}

  std::byte* data() const noexcept override { return reinterpret_cast<std::byte*>(range_.base()); }
  std::size_t size() const noexcept override { return range_.bytes(); }
  SegmentKind kind() const noexcept override { return SegmentKind::cuda_vmm; }
  void commit(std::size_t offset, std::size_t bytes) override;
  void decommit(std::size_t offset, std::size_t bytes) noexcept override;
  ExportedMemory export_memory(Access access) const override;
  std::byte* allow(int ordinal) override;

  void import(ExportedMemory memory);

 private:
  void create_memory();

  const int home_;  ///< whose memory it is
  const int user_;  ///< for whom it was mapped; `home_` in its owner
  const Access access_;
  mutable std::mutex mutex_;
  std::set<int> allowed_;               ///< devices beside `user_`
  std::vector<PhysicalMemory> chunks_;  // before range_: unmapped first
  std::vector<std::uint64_t> sizes_;
  mutable Export export_;
  bool imported_ = false;
  /// What a borrower was given, for passing the memory on when its owner has died: the driver exports what was
  /// made here, and not what was imported. A model in expandable segments comes with thousands, so this is empty
  /// where there was no room for all.
  KeptDescriptors received_{room_for_received};
  AddressRange range_;
};

[[noreturn]] void throw_out_of_memory(const Driver& driver, int ordinal, std::size_t bytes,
                                      CUresult result) {
  std::size_t free = 0;
  std::size_t total = 0;
  driver.cuMemGetInfo(&free, &total);
  throw Error(ErrorCode::out_of_memory,
              fmt::format("cannot reserve {} bytes ({} MiB) on cuda:{}: {} of its {} bytes are free ({})",
                          bytes, bytes >> 20, ordinal, free, total, driver.describe(result)),
              result, ErrorDomain::cuda);
}

void VmmMemory::create_memory() {
  const Driver& driver = Driver::get();
  const UseDevice use(home_);
  const DeviceEntry& device = Devices::get().at(home_);
  const CUmemAllocationProp prop = exportable_on(device);
  CUmemGenericAllocationHandle handle = 0;
  const CUresult result = driver.cuMemCreate(&handle, size(), &prop, 0);
  if (result == CUDA_ERROR_OUT_OF_MEMORY) throw_out_of_memory(driver, home_, size(), result);
  check(result, "cuMemCreate");
  PhysicalMemory memory(handle);
  range_.map(driver, size(), memory);
  try {
    range_.allow(driver, device.device, Access::read_write);
  } catch (...) {
    range_.unmap(driver);
    throw;
  }
  chunks_.push_back(std::move(memory));
  sizes_.push_back(size());
  export_.make_first_of_card(driver, chunks_.front());
}

void VmmMemory::commit(std::size_t offset, std::size_t bytes) {
  if (access_ == Access::read_only)
    throw Error(ErrorCode::read_only, "cannot reserve memory in a segment that was opened read-only");
  if (offset > size() || bytes > size() - offset)
    throw Error(ErrorCode::invalid_argument, fmt::format("bytes {} to {} are outside of a segment of {}",
                                                         offset, offset + bytes, size()));
  const std::lock_guard lock(mutex_);
  if (chunks_.empty()) create_memory();
}

/// All or nothing: the memory is one allocation. Called by the watch thread, too, while others capture.
void VmmMemory::decommit(std::size_t offset, std::size_t bytes) noexcept {
  if (offset != 0 || bytes != size()) return;
  const Driver* driver = Driver::try_get();
  if (!driver) return;
  const RelaxedCapture relaxed(*driver);
  const std::lock_guard lock(mutex_);
  export_.close();
  range_.unmap(*driver);
  allowed_.clear();
  chunks_.clear();
  sizes_.clear();
}

[[noreturn]] void throw_not_kept(std::size_t chunks) {
  throw Error(
      ErrorCode::unsupported,
      fmt::format(
          "this process opened the segment ({} chunks) and does not own it: it keeps the descriptors of {} "
          "chunks in all, to pass memory on when its owner has ended, and there was no room for these; "
          "open it in the third process while the owner runs, or send a copy",
          chunks, kMostReceived));
}

ExportedMemory VmmMemory::export_memory(Access access) const {
  if (access == Access::read_write && access_ == Access::read_only)
    throw Error(ErrorCode::read_only, "a segment that was opened read-only cannot be lent for writing");
  const Driver& driver = Driver::get();
  const RelaxedCapture relaxed(driver);
  const std::lock_guard lock(mutex_);
  if (chunks_.empty())
    throw Error(ErrorCode::invalid_argument, "the segment has no memory yet: commit it first");
  ExportedMemory memory;
  memory.kind = kind();
  memory.size = size();
  memory.blob = encode({access, sizes_, {}});
  if (imported_) {
    if (received_.fds().empty()) throw_not_kept(sizes_.size());
    for (const Fd& fd : received_.fds()) memory.fds.push_back(fd.duplicate());
    return memory;
  }
  memory.fds.push_back(export_.get(driver, chunks_.front()));
  return memory;
}

std::byte* VmmMemory::allow(int ordinal) {
  const std::lock_guard lock(mutex_);
  if (ordinal == user_ || allowed_.contains(ordinal)) return data();
  allow_mapping(range_.base(), range_.bytes(), ordinal, home_, access_);
  allowed_.insert(ordinal);
  return data();
}

PhysicalMemory import_chunk(const Driver& driver, const Fd& fd) {
  CUmemGenericAllocationHandle handle = 0;
  void* number = reinterpret_cast<void*>(static_cast<std::intptr_t>(fd.get()));
  const CUresult result =
      driver.cuMemImportFromShareableHandle(&handle, number, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  if (result == CUDA_ERROR_INVALID_VALUE)
    throw Error(ErrorCode::bad_handle, "the descriptor of a CUDA segment is not CUDA memory", result,
                ErrorDomain::cuda);
  check(result, "cuMemImportFromShareableHandle");
  return PhysicalMemory(handle);
}

void VmmMemory::import(ExportedMemory memory) {
  const Driver& driver = Driver::get();
  const UseDevice use(user_);
  sizes_ = decode_chunks(memory).sizes;
  for (std::size_t i = 0; i < sizes_.size(); ++i) {
    chunks_.push_back(import_chunk(driver, memory.fds[i]));
    range_.map(driver, sizes_[i], chunks_.back());
  }
  range_.allow(driver, Devices::get().at(user_).device, access_);
  // A copy to memory of the card that this is of is made by that card. It takes no context there.
  if (home_ != user_) {
    range_.allow(driver, Devices::get().at(home_).device, access_);
    allowed_.insert(home_);
  }
  imported_ = true;
  received_.keep(std::move(memory.fds));
}

}  // namespace

std::unique_ptr<DeviceMemory> create_vmm_memory(int ordinal, std::size_t bytes) {
  if (!Devices::get().at(ordinal).exports_descriptors)
    throw Error(
        ErrorCode::unsupported,
        fmt::format("cuda:{} cannot give memory to other processes as descriptors (a Tegra, a virtual "
                    "GPU or an old driver); share memory made by cudaMalloc instead",
                    ordinal));
  const UseDevice use(ordinal);
  return std::make_unique<VmmMemory>(ordinal, ordinal, bytes, Access::read_write);
}

std::unique_ptr<DeviceMemory> open_vmm_memory(int home, ExportedMemory memory, Access access, int user) {
  const ExportedChunks chunks = decode_chunks(memory);
  if (memory.fds.size() != chunks.sizes.size())
    throw Error(ErrorCode::bad_handle, fmt::format("a CUDA segment of {} chunks came with {} descriptors",
                                                   chunks.sizes.size(), memory.fds.size()));
  if (access == Access::read_write && chunks.access == Access::read_only)
    throw Error(ErrorCode::read_only, "the segment was lent read-only; open it with Access::read_only");
  check_path(user, home);
  const UseDevice use(user);
  auto opened = std::make_unique<VmmMemory>(home, user, memory.size, access);
  opened->import(std::move(memory));
  return opened;
}

}  // namespace onecopy::cuda
