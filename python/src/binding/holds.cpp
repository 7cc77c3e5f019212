// SPDX-License-Identifier: Apache-2.0
#include "binding/holds.h"

#include "binding/bytes.h"
#include "binding/device.h"
#include "binding/gil.h"
#include "binding/kept.h"
#include "onecopy/share/object.h"
#include "onecopy/share/share.h"
#include "share/session.h"

/// Functions for reducers, which write handles themselves: pickling a Handle does not return the number of its hold.
namespace onecopy::python {
namespace {

void let_last(const nb::bytes& bytes) {
  Session::current().holds().make_permanent(Handle::from_bytes(span_of(bytes)).fields().hold);
}

nb::bytes let_it_last(const Handle& held) {
  Session::current().holds().make_permanent(held.fields().hold);
  return to_python(held.to_bytes());
}

}  // namespace

nb::bytes share_held(const Tensor& tensor) {
  Session& session = Session::current();
  if (is_on_host(tensor)) return to_python(session.share_held(tensor, {}).to_bytes());
  const Stream stream = current_stream(tensor.device());
  return to_python(without_gil([&] { return session.share_held(tensor, stream); }).to_bytes());
}

namespace {

nb::bytes hold_object(nb::object object) {
  return let_it_last(hold(share_object(keep_object(std::move(object)))));
}

void end_hold_of(const nb::bytes& bytes) { end_hold(Handle::from_bytes(span_of(bytes))); }

}  // namespace

void init_holds(nb::module_& m) {
  m.def("_share_held", &share_held, nb::arg("tensor"),
        "Returns the bytes of a handle that can be opened once, as long as this process lives.");
  m.def("_hold_object", &hold_object, nb::arg("object"),
        "Keeps an object until any process calls _end_hold() with the returned bytes, or as long as this "
        "process lives.");
  m.def("_let_hold_last", &let_last, nb::arg("handle"),
        "Makes the hold of these bytes last as long as this process instead of ten minutes.");
  m.def("_end_hold", &end_hold_of, nb::arg("handle"), "Ends the hold of bytes that will not be opened.");
}

}  // namespace onecopy::python
