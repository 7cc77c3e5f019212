// SPDX-License-Identifier: Apache-2.0
#include "soak/commands.h"

#include <fmt/format.h>

#include <cstring>
#include <type_traits>

namespace onecopy::soak {
namespace {

class Writer {
 public:
  template <class T>
  void operator()(const T& value) {
    if constexpr (std::is_trivially_copyable_v<T>) {
      append(&value, sizeof value);
    } else {
      (*this)(std::uint64_t{value.size()});
      if constexpr (std::is_trivially_copyable_v<typename T::value_type>)
        append(value.data(), value.size() * sizeof(typename T::value_type));
      else
        for (const auto& each : value) fields(*this, each);
    }
  }
  Bytes take() { return std::move(bytes_); }

 private:
  void append(const void* data, std::size_t size) {
    const auto* begin = static_cast<const std::byte*>(data);
    bytes_.insert(bytes_.end(), begin, begin + size);
  }
  Bytes bytes_;
};

class Reader {
 public:
  explicit Reader(ByteSpan bytes) : bytes_(bytes) {}
  template <class T>
  void operator()(T& value) {
    if constexpr (std::is_trivially_copyable_v<T>) {
      extract(&value, sizeof value);
    } else {
      std::uint64_t size = 0;
      (*this)(size);
      value.resize(size);
      if constexpr (std::is_trivially_copyable_v<typename T::value_type>)
        extract(value.data(), size * sizeof(typename T::value_type));
      else
        for (auto& each : value) fields(*this, each);
    }
  }

 private:
  void extract(void* data, std::size_t size) {
    if (size > bytes_.size()) throw Error(ErrorCode::protocol, "a soak packet that is too short");
    if (size != 0) std::memcpy(data, bytes_.data(), size);
    bytes_ = bytes_.subspan(size);
  }
  ByteSpan bytes_;
};

template <class Coder, class C>
void command_fields(Coder& code, C& c) {
  code(c.op), code(c.named), code(c.tag), code(c.wait_ms), code(c.ref), code(c.other), code(c.block);
  code(c.version), code(c.size), code(c.queue), code(c.refs), code(c.bytes);
}
template <class Coder, class R>
void result_fields(Coder& code, R& r) {
  code(r.kind), code(r.code), code(r.tag), code(r.data_bytes), code(r.unkept), code(r.micros), code(r.text);
  code(r.bytes), code(r.seen), code(r.numbers);
}
template <class Coder>
void fields(Coder& code, const Command& c) {
  command_fields(code, c);
}
template <class Coder>
void fields(Coder& code, Command& c) {
  command_fields(code, c);
}
template <class Coder>
void fields(Coder& code, const Result& r) {
  result_fields(code, r);
}
template <class Coder>
void fields(Coder& code, Result& r) {
  result_fields(code, r);
}

}  // namespace

const char* name(Op op) noexcept {
  constexpr const char* kNames[] = {
      "allocate", "share",         "keep",  "open",  "check",   "write",        "drop",  "create",
      "connect",  "put",           "get",   "leave", "fork",    "exec",         "exit",  "exit_at_once",
      "linger",   "check by card", "unpin", "trim",  "publish", "open version", "settle"};
  return kNames[static_cast<std::size_t>(op)];
}

const char* name(Left left) noexcept {
  constexpr const char* kNames[] = {"owners",      "leases",    "limbo",       "deposits", "in transit",
                                    "live blocks", "borrowers", "descriptors", "mappings", "threads"};
  return kNames[static_cast<std::size_t>(left)];
}

std::string Command::str() const {
  std::string text = name(op);
  const auto say = [&](const char* what, std::uint64_t value) {
    if (value != 0) text += fmt::format(" {} {}", what, value);
  };
  say("ref", ref), say("other", other), say("block", block), say("version", version);
  say("queue", queue), say("size", size), say("tag", tag), say("wait_ms", wait_ms);
  for (const std::uint64_t each : refs) say("with", each);
  return named ? text + " named" : text;
}

std::string Result::str() const {
  if (kind == Kind::refused) return fmt::format("{}: {}", onecopy::name(code), text);
  std::string said = kind == Kind::nothing ? "nothing" : "done";
  for (const Seen& each : seen)
    said += fmt::format(", block {} version {}{}", each.block, each.version, each.whole ? "" : " TORN");
  for (std::size_t i = 0; i < numbers.size(); ++i)
    said += fmt::format(", {} {}", name(static_cast<Left>(i)), numbers[i]);
  return said;
}

Bytes encode(const std::vector<Command>& batch) {
  Writer writer;
  writer(batch);
  return writer.take();
}

std::vector<Command> decode_batch(ByteSpan bytes) {
  std::vector<Command> batch;
  Reader reader(bytes);
  reader(batch);
  return batch;
}

Bytes encode(const Answer& answer) {
  Writer writer;
  writer(answer.results), writer(answer.crashes);
  return writer.take();
}

Answer decode_answer(ByteSpan bytes) {
  Answer answer;
  Reader reader(bytes);
  reader(answer.results), reader(answer.crashes);
  return answer;
}

}  // namespace onecopy::soak
