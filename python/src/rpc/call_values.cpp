// SPDX-License-Identifier: Apache-2.0
#include "rpc/call_values.h"

#include <string>
#include <utility>

#include "binding/device.h"
#include "onecopy/core/error.h"
#include "value/message.h"

namespace onecopy::python {

Message encode_body(nb::handle value) {
  Message message = encode_message(value);
  const std::uint32_t form = message.tag & rpc::kFormBits;
  message.tag = (message.tag & rpc::kDataIsTensor) | form << rpc::kBodyShift;
  return message;
}

nb::object decode_body(Message&& message) {
  if (rpc::body_form(message.tag) == kPlainTree) return decode_plain(std::move(message));
  message.tag = (message.tag & rpc::kDataIsTensor) | rpc::body_form(message.tag);
  if (message.tag == 0)
    throw Error(ErrorCode::bad_handle, "a call of a program in C++ came to a group of Python programs");
  message.kind = MessageKind::python;
  return decode_message(std::move(message));
}

bool encode_plain(nb::handle value, Message& message, TensorCounts* counts, const Receiver& receiver,
                  std::uint32_t form) {
  constexpr std::size_t kUsual = 160;  // most calls, and the tail behind them, without growing
  message.data.reserve(kUsual);
  if (!call_python([&] {
        return encode_value(value.ptr(), message,
                            {.tensors = Tensors::are_copied, .receiver = &receiver, .counts = counts});
      }))
    return false;
  message.tag = form << rpc::kBodyShift;
  return true;
}

CallValues decode_call(Message&& message) {
  const nb::object values = decode_plain(std::move(message));
  const Py_ssize_t count = PyTuple_CheckExact(values.ptr()) ? NB_TUPLE_GET_SIZE(values.ptr()) : 0;
  if (count != 2 && count != 3)
    throw Error(ErrorCode::bad_handle, "a call of another member has no arguments");
  const nb::object args = nb::borrow(NB_TUPLE_GET_ITEM(values.ptr(), 0));
  nb::object kwargs = nb::borrow(NB_TUPLE_GET_ITEM(values.ptr(), 1));
  nb::object trace = count == 3 ? nb::borrow(NB_TUPLE_GET_ITEM(values.ptr(), 2)) : nb::none();
  if (!PyTuple_CheckExact(args.ptr()) && !PyList_CheckExact(args.ptr()))
    throw Error(ErrorCode::bad_handle, "a call of another member has arguments that are no tuple");
  if (!kwargs.is_none() && !PyDict_CheckExact(kwargs.ptr()))
    throw Error(ErrorCode::bad_handle, "a call of another member has keyword arguments that are no dict");
  if (count == 3 && !PyUnicode_CheckExact(trace.ptr()))
    throw Error(ErrorCode::bad_handle, "a call of another member has a trace that is no str");
  nb::object tuple = nb::steal(PySequence_Tuple(args.ptr()));
  if (!tuple.is_valid()) throw nb::python_error();
  return {std::move(tuple), std::move(kwargs), std::move(trace)};
}

namespace {

/// A tensor of a card may be meant for another one, or for the card that has this number here.
nb::object open_on_card(const Tensor& tensor, std::uint32_t flags) {
  nb::object opened = open_tensor(tensor, flags & 0xff);
  const int card = card_of(flags);
  if (card < 0 || (tensor.device().type == DeviceType::cuda && tensor.device().index == card))
    return opened;
  const nb::module_ devices = nb::module_::import_("onecopy.rpc._devices");
  return devices.attr("unpack")(opened, nb::str(("cuda:" + std::to_string(card)).c_str()));
}

}  // namespace

nb::object decode_plain(Message&& message) {
  receive(message.tensors);
  return call_python(
      [&] { return decode_value(message.data, message.tensors, open_on_card, {Tensors::are_copied}); });
}

}  // namespace onecopy::python
