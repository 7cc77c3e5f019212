// SPDX-License-Identifier: Apache-2.0
#include "rpc/body.h"

#include <string>
#include <utility>

#include "torch/torch.h"

namespace onecopy::python {
namespace {

constexpr std::size_t kUsual = 160;  ///< the size of most calls in bytes, with their tail

/// Records the tensors as sent within `autograd`.
void record_sent(nb::handle autograd, const std::vector<nb::object>& sent, OutgoingRefs& refs,
                 Message& message, rpc::CallContext& context) {
  add_context(autograd, context);
  nb::object record =
      call_python([&] { return nb::object(autograd.attr("record_sent")(list_of(sent), refs.receiver())); });
  if (record.is_none()) return;
  refs.record(nb::borrow(autograd), record);
  context.parts |= rpc::CallContext::kRecord;
  context.record = nb::cast<std::uint64_t>(nb::object(record[0]));
  context.mark_bytes = static_cast<std::uint32_t>((sent.size() + 7) / 8);
  Bytes marks(context.mark_bytes);
  for (const nb::handle at : nb::object(record[1])) {
    const auto number = nb::cast<std::size_t>(at);
    marks[number / 8] |= std::byte{1} << number % 8;
  }
  message.data.insert(message.data.end(), marks.begin(), marks.end());
}

/// Names the receiver's card for each tensor, for transports between hosts.
void add_cards(Message& message, const DeviceMap& devices) {
  for (const Tensor& tensor : message.tensors) {
    const bool is_on_card = tensor.device().type == DeviceType::cuda;
    message.cards.push_back(
        static_cast<std::int16_t>(is_on_card ? target_of(devices, tensor.device().index) : -1));
  }
}

/// Makes the tensors that the sender recorded a part of this process's graph.
void attach_received(const nb::object& autograd, const rpc::CallContext& context, const Bytes& marks,
                     const std::vector<nb::object>& received, std::uint32_t sender) {
  nb::list recorded;
  for (std::size_t i = 0; i < received.size() && i / 8 < marks.size(); ++i)
    if ((marks[i / 8] & std::byte{1} << i % 8) != std::byte{0}) recorded.append(i);
  call_python([&] {
    autograd.attr("attach_received")(nb::make_tuple(context.record, recorded), list_of(received), sender);
  });
}

/// Opens a tensor of a card, and copies it if the sender meant another card.
nb::object open_on_card(const Tensor& tensor, std::uint32_t flags) {
  constexpr std::uint32_t kOfLeaf = torch::kRequiresGrad | torch::kParameter;
  const int card = card_of(flags);
  if (card < 0 || (tensor.device().type == DeviceType::cuda && tensor.device().index == card))
    return open_tensor(tensor, flags & 0xff);
  const nb::object opened = open_tensor(tensor, flags & 0xff & ~kOfLeaf);
  const nb::module_ devices = nb::module_::import_("onecopy.rpc.devices");
  return torch::as_leaf(
      devices.attr("to_target")(opened, nb::str(("cuda:" + std::to_string(card)).c_str())),
      flags & kOfLeaf);
}

std::vector<nb::object> tensors_on_cards(const std::vector<nb::object>& tensors) {
  std::vector<nb::object> found;
  for (const nb::object& tensor : tensors)
    if (const auto device = torch::device_of(tensor); !device || device->type != DeviceType::cpu)
      found.push_back(tensor);
  return found;
}

/// Returns (class, text).
nb::object read_failure(Message&& failure, const Hooks& hooks) {
  const Bytes kind = rpc::take_class(failure);
  const DecodeOptions options{
      .tensors = Tensors::are_copied, .classes = hooks.classes, .rebuild = hooks.rebuild};
  const auto* const text = reinterpret_cast<const char*>(failure.data.data());
  return call_python([&] {
    return nb::object(nb::make_tuple(decode_value(kind, {}, open_tensor, options),
                                     nb::str(text + 1, failure.data.size() - 1)));
  });
}

}  // namespace

void add_context(nb::handle autograd, rpc::CallContext& context) {
  context.parts |= rpc::CallContext::kAutograd;
  context.autograd = nb::cast<std::uint64_t>(nb::object(autograd.attr("id")));
}

/// Returns the reference that a call makes to its result, as (member, number), or None.
nb::object reference_of(const rpc::CallContext& context) {
  if (!context.has(rpc::CallContext::kResult)) return nb::none();
  return nb::make_tuple(context.result.member, context.result.number);
}

Message encode_body(nb::handle value, const Hooks& hooks, const Receiver& receiver, OutgoingRefs& refs,
                    nb::handle autograd, rpc::CallContext& context) {
  Message message;
  message.data.reserve(kUsual);
  std::vector<nb::object> sent;
  TensorCounts counts;
  EncodeOptions options{.tensors = Tensors::are_copied,
                        .receiver = &receiver,
                        .reduce = hooks.reduce,
                        .classes = hooks.classes,
                        .counts = &counts};
  if (!autograd.is_none()) options.sent = &sent;
  call_python([&] { return encode_value(value.ptr(), message, options); });
  if (!autograd.is_none()) record_sent(autograd, sent, refs, message, context);
  message.tag = tag_of(BodyForm::value);
  if (!receiver.devices.numbers_agree && !receiver.devices.cards.empty())
    add_cards(message, receiver.devices);
  refs.count(rpc::Route::inlined, counts.inlined);
  refs.count(rpc::Route::copy, counts.copied);
  return message;
}

Message encode_body(nb::handle value, const Hooks& hooks, const Receiver& receiver, OutgoingRefs& refs) {
  rpc::CallContext none;
  return encode_body(value, hooks, receiver, refs, nb::none(), none);
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

Message encode_for_program(nb::handle value, OutgoingRefs& refs) {
  Message message;
  TensorCounts counts;
  if (!encode_for_program(value, message, counts))
    throw nb::type_error("only plain values and tensors of the CPU cross to a program in C++");
  refs.count(rpc::Route::copy, counts.copied);
  return message;
}

void decode_body(Message&& message, const rpc::CallContext& context, const Hooks& hooks, nb::handle agent,
                 std::uint32_t sender, bool makes_context, Body& body) {
  const auto form = static_cast<BodyForm>(rpc::body_form(message.tag));
  const bool has_stayed_here = body.value.is_valid();
  if (form != BodyForm::value && form != BodyForm::failure && !has_stayed_here)
    rpc::refuse_message("has a body of a form that Python programs do not read");
  body.is_failure = form == BodyForm::failure;
  if (body.is_failure) {
    body.value = read_failure(std::move(message), hooks);
    return;
  }
  const Bytes marks = rpc::take_marks(message.data, context);
  if (context.has(rpc::CallContext::kAutograd))
    body.autograd = call_python(
        [&] { return nb::object(agent.attr("context")(context.autograd, sender, makes_context)); });
  if (has_stayed_here) return;
  const IncomingMessage incoming(agent, sender);
  if (context.parts == 0 && message.tensors.empty()) {  // the usual case
    const DecodeOptions plain{
        .tensors = Tensors::are_copied, .classes = hooks.classes, .rebuild = hooks.rebuild};
    body.value = call_python([&] { return decode_value(message.data, {}, open_on_card, plain); });
    return;
  }
  const bool is_recorded = context.has(rpc::CallContext::kRecord) && !body.autograd.is_none();
  receive(message.tensors);
  std::vector<nb::object> received;
  DecodeOptions options{.tensors = Tensors::are_copied, .classes = hooks.classes, .rebuild = hooks.rebuild};
  if (is_recorded || !message.tensors.empty()) options.received = &received;
  body.value =
      call_python([&] { return decode_value(message.data, message.tensors, open_on_card, options); });
  if (is_recorded) attach_received(body.autograd, context, marks, received, sender);
  body.on_cards = tensors_on_cards(received);
}

CallValues arguments_of(nb::handle value) {
  const Py_ssize_t count = PyTuple_CheckExact(value.ptr()) ? NB_TUPLE_GET_SIZE(value.ptr()) : 0;
  if (count != 2) rpc::refuse_message("has no arguments");
  const nb::object args = nb::borrow(NB_TUPLE_GET_ITEM(value.ptr(), 0));
  nb::object kwargs = nb::borrow(NB_TUPLE_GET_ITEM(value.ptr(), 1));
  if (!PyTuple_CheckExact(args.ptr()) && !PyList_CheckExact(args.ptr()))
    rpc::refuse_message("has arguments that are not a tuple");
  if (!kwargs.is_none() && !PyDict_CheckExact(kwargs.ptr()))
    rpc::refuse_message("has keyword arguments that are not a dict");
  return {nb::tuple(args), std::move(kwargs)};
}

}  // namespace onecopy::python
