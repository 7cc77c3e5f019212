// SPDX-License-Identifier: Apache-2.0
#include "onecopy/share/object.h"

#include "onecopy/core/error.h"
#include "onecopy/share/share.h"
#include "share/runtime/process.h"

namespace onecopy {

/// One byte stands for the object: its block has claims, holds and deaths like any other.
Handle share_object(std::shared_ptr<const void> object) {
  if (!object)
    throw Error(ErrorCode::invalid_argument, "there is no object to share: the pointer is empty");
  Process& process = Process::current();
  const Tensor byte = empty(Layout(DType::u8, {1}));
  Handle handle = process.share(byte);
  const PinnedObjects::Name name{handle.fields().block, handle.fields().generation};
  process.ledger().keep_with(name.block,
                             {OwnerKeeper::keep(process.objects().add(name, std::move(object)))});
  return handle;
}

std::shared_ptr<const void> shared_object(const Handle& handle) {
  Process* const process = Process::existing();
  const HandleFields& fields = handle.fields();
  if (!process || fields.owner != process->id()) return {};
  return process->objects().find({fields.block, fields.generation});
}

}  // namespace onecopy
