// SPDX-License-Identifier: Apache-2.0
#include "onecopy/share/object.h"

#include "onecopy/core/error.h"
#include "onecopy/share/share.h"
#include "share/runtime/runtime.h"
#include "share/session.h"

namespace onecopy {

/// Shares one byte, which stands for the object. The byte's block has claims, holds and deaths like any other.
Handle share_object(std::shared_ptr<const void> object) {
  if (!object)
    throw Error(ErrorCode::invalid_argument, "there is no object to share: the pointer is empty");
  Runtime& runtime = Runtime::current();
  const Tensor byte = empty(Layout(DType::u8, {1}));
  Handle handle = Session::current().share(byte);
  const PinnedObjects::Name name{handle.fields().block, handle.fields().generation};
  runtime.ledger().keep_with(name.block,
                             {ObjectBlock::keep(runtime.objects().add(name, std::move(object)))});
  return handle;
}

std::shared_ptr<const void> shared_object(const Handle& handle) {
  Runtime* const runtime = Runtime::existing();
  const HandleFields& fields = handle.fields();
  if (!runtime || fields.owner != runtime->id()) return {};
  return runtime->objects().find({fields.block, fields.generation});
}

}  // namespace onecopy
