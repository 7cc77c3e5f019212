// SPDX-License-Identifier: Apache-2.0
#include "backend.h"
#include "driver.h"
#include "kept_descriptors.h"
#include "onecopy/core/error.h"

namespace onecopy::cuda {
namespace {

Room no_limit{SIZE_MAX / 2};

/// A segment of kind cuda_sealed, which is mapped for reading. Keeps all descriptors, so that the memory can be passed on,
/// and so that the last one shows others that the memory is in use until the destructor.
class SealedMemory final : public DeviceMemory {
 public:
  SealedMemory(std::vector<Fd> fds, Bytes blob, std::unique_ptr<DeviceMemory> mapped)
      : DeviceMemory(Access::read_only), blob_(std::move(blob)), mapped_(std::move(mapped)) {
    kept_.keep(std::move(fds));
  }

  std::byte* data() const noexcept override { return mapped_->data(); }
  std::size_t size() const noexcept override { return mapped_->size(); }
  SegmentKind kind() const noexcept override { return SegmentKind::cuda_sealed; }
  std::byte* allow(int ordinal) override { return mapped_->allow(ordinal); }

 private:
  ExportedMemory do_export(Access) const override {
    Driver::get();  // throws in a forked child, where the descriptors are /dev/null
    ExportedMemory memory;
    for (const Fd& fd : kept_.fds()) memory.fds.push_back(fd.duplicate());
    memory.blob = blob_;
    return memory;
  }

  KeptDescriptors kept_{no_limit};
  const Bytes blob_;                            ///< says that the memory is lent for reading
  const std::unique_ptr<DeviceMemory> mapped_;  // declared last, so that it is unmapped before the use ends
};

}  // namespace

/// Maps the chunks of the memory: all descriptors but the last one.
std::unique_ptr<DeviceMemory> CudaBackend::open_sealed(int home, ExportedMemory memory, Access access,
                                                       int user) {
  if (memory.fds.empty())
    throw Error(ErrorCode::bad_handle, "a segment that cannot change came without descriptors");
  ExportedMemory chunks = duplicate(memory, Access::read_only);
  Bytes blob = chunks.blob;
  chunks.fds.pop_back();
  std::unique_ptr<DeviceMemory> mapped = open_chunks(home, std::move(chunks), access, user);
  return std::make_unique<SealedMemory>(std::move(memory.fds), std::move(blob), std::move(mapped));
}

}  // namespace onecopy::cuda
