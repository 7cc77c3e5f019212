// SPDX-License-Identifier: Apache-2.0
#include "rpc/body.h"

#include <string>
#include <utility>

#include "onecopy/core/error.h"
#include "torch/torch.h"

namespace onecopy::python {
namespace {

constexpr std::size_t kUsual = 160;  ///< bytes of most calls, with the tail behind them

std::uint32_t tag_of(BodyForm form) noexcept { return static_cast<std::uint32_t>(form) << rpc::kBodyShift; }

/// Records the tensors as sent, and writes the extension and its size behind the value.
void append_extension(Message& message, Extension extension, const std::vector<nb::object>& sent,
                      Giving& giving) {
  nb::object context_id = nb::none();
  if (!extension.context.is_none()) {
    context_id = extension.context.attr("id");
    nb::list tensors;
    for (const nb::object& tensor : sent) tensors.append(tensor);
    const nb::object agent = giving.agent();
    extension.record = call_python(
        [&] { return agent.attr("about_to_send")(extension.context, tensors, giving.receiver()); });
    if (!extension.record.is_none()) giving.record(extension.context, extension.record);
  }
  const std::size_t before = message.data.size();
  const nb::tuple parts = nb::make_tuple(context_id, extension.record, extension.reference);
  encode_value(parts.ptr(), message, {.tensors = Tensors::are_copied});
  rpc::append_tail(message.data, static_cast<std::uint32_t>(message.data.size() - before));
}

/// Takes the extension off the end.
void take_extension(Bytes& data, nb::handle agent, std::uint32_t sender, bool makes_context,
                    Extension& extension) {
  const auto size = rpc::take_tail<std::uint32_t>(data);
  if (size > data.size()) rpc::refuse_message("has an extension that is cut off");
  const nb::object parts = decode_value(ByteSpan(data).last(size), {}, open_tensor, {Tensors::are_copied});
  data.resize(data.size() - size);
  if (!PyTuple_CheckExact(parts.ptr()) || NB_TUPLE_GET_SIZE(parts.ptr()) != 3)
    rpc::refuse_message("has an extension that is not three values");
  extension.reference = parts[2];
  const nb::object id = parts[0];
  if (id.is_none()) return;
  extension.context = call_python([&] { return agent.attr("context")(id, sender, makes_context); });
  if (!extension.context.is_none()) extension.record = parts[1];
}

/// A tensor of a card may be meant for another card, or for the card that has this number here.
nb::object open_on_card(const Tensor& tensor, std::uint32_t flags) {
  nb::object opened = open_tensor(tensor, flags & 0xff);
  const int card = card_of(flags);
  if (card < 0 || (tensor.device().type == DeviceType::cuda && tensor.device().index == card))
    return opened;
  const nb::module_ devices = nb::module_::import_("onecopy.rpc.devices");
  return devices.attr("to_target")(opened, nb::str(("cuda:" + std::to_string(card)).c_str()));
}

std::vector<nb::object> tensors_on_cards(const std::vector<nb::object>& tensors) {
  std::vector<nb::object> found;
  for (const nb::object& tensor : tensors)
    if (const auto device = torch::device_of(tensor); !device || device->type != DeviceType::cpu)
      found.push_back(tensor);
  return found;
}

}  // namespace

Message encode_body(nb::handle value, const Hooks& hooks, const Receiver& receiver, Giving& giving,
                    Extension extension) {
  Message message;
  message.data.reserve(kUsual);
  std::vector<nb::object> sent;
  TensorCounts counts;
  EncodeOptions options{
      .tensors = Tensors::are_copied, .receiver = &receiver, .reduce = hooks.reduce, .counts = &counts};
  if (!extension.context.is_none()) options.sent = &sent;
  const bool is_extended = !extension.is_empty();
  call_python([&] { return encode_value(value.ptr(), message, options); });
  if (is_extended) append_extension(message, std::move(extension), sent, giving);
  message.tag = tag_of(is_extended ? BodyForm::extended : BodyForm::value);
  giving.count(rpc::Route::inlined, counts.inlined);
  giving.count_copies(message.tensors.size());
  return message;
}

bool encode_for_program(nb::handle value, Message& message, TensorCounts& counts) {
  message.data.reserve(kUsual);
  if (!call_python([&] {
        return encode_value(value.ptr(), message, {.tensors = Tensors::are_copied, .counts = &counts});
      }))
    return false;
  message.tag = tag_of(BodyForm::value);
  return true;
}

void decode_body(Message&& message, const Hooks& hooks, nb::handle agent, std::uint32_t sender,
                 bool makes_context, Body& body) {
  const auto form = static_cast<BodyForm>(rpc::body_form(message.tag));
  if (form != BodyForm::value && form != BodyForm::extended && form != BodyForm::failure)
    rpc::refuse_message("has a body of a form that Python programs do not read");
  body.is_failure = form == BodyForm::failure;
  if (form == BodyForm::extended)
    take_extension(message.data, agent, sender, makes_context, body.extension);
  const nb::object& record = body.extension.record;
  receive(message.tensors);
  std::vector<nb::object> received;
  DecodeOptions options{.tensors = Tensors::are_copied, .rebuild = hooks.rebuild};
  if (!record.is_none() || !message.tensors.empty()) options.received = &received;
  const Taking taking(agent, sender);
  body.value =
      call_python([&] { return decode_value(message.data, message.tensors, open_on_card, options); });
  if (!record.is_none()) {
    nb::list tensors;
    for (const nb::object& tensor : received) tensors.append(tensor);
    call_python([&] { agent.attr("arrived")(body.extension.context, record, tensors, sender); });
  }
  body.on_cards = tensors_on_cards(received);
}

CallValues arguments_of(nb::handle value) {
  const Py_ssize_t count = PyTuple_CheckExact(value.ptr()) ? NB_TUPLE_GET_SIZE(value.ptr()) : 0;
  if (count != 2 && count != 3) rpc::refuse_message("has no arguments");
  const nb::object args = nb::borrow(NB_TUPLE_GET_ITEM(value.ptr(), 0));
  nb::object kwargs = nb::borrow(NB_TUPLE_GET_ITEM(value.ptr(), 1));
  nb::object trace = count == 3 ? nb::borrow(NB_TUPLE_GET_ITEM(value.ptr(), 2)) : nb::none();
  if (!PyTuple_CheckExact(args.ptr()) && !PyList_CheckExact(args.ptr()))
    rpc::refuse_message("has arguments that are no tuple");
  if (!kwargs.is_none() && !PyDict_CheckExact(kwargs.ptr()))
    rpc::refuse_message("has keyword arguments that are no dict");
  if (count == 3 && !PyUnicode_CheckExact(trace.ptr())) rpc::refuse_message("has a trace that is no str");
  nb::object tuple = nb::steal(PySequence_Tuple(args.ptr()));
  if (!tuple.is_valid()) throw nb::python_error();
  return {std::move(tuple), std::move(kwargs), std::move(trace)};
}

}  // namespace onecopy::python
