// SPDX-License-Identifier: Apache-2.0
// Functions in C++ that programs in C++ and in Python call, with tensors and plain values.
#include <onecopy/rpc/agent.h>
#include <onecopy/share/share.h>

#include <cstdio>
#include <string>

namespace rpc = onecopy::rpc;

namespace {

rpc::Value scale(const rpc::Value::List& arguments) {  // the caller's tensor, or a copy from Python
  const onecopy::Tensor tensor = arguments.at(0).as_tensor();
  float* elements = tensor.as<float>();
  for (std::int64_t i = 0; i < tensor.layout().numel(); ++i)
    elements[i] *= static_cast<float>(arguments.at(1).as_double());
  return tensor;
}

std::string to_hex(const onecopy::Bytes& bytes) {
  std::string text;
  for (const std::byte byte : bytes) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", std::to_integer<unsigned>(byte));
    text += digits;
  }
  return text;
}

onecopy::Bytes from_hex(const std::string& text) {
  onecopy::Bytes bytes;
  for (std::size_t i = 0; i + 1 < text.size(); i += 2)
    bytes.push_back(static_cast<std::byte>(std::stoi(text.substr(i, 2), nullptr, 16)));
  return bytes;
}

}  // namespace

int main(int argc, char** argv) {
  rpc::Agent agent({.name = "program", .number = 1000});  // not the rank of a process in Python
  agent.define_plain("scale", scale);
  if (argc == 1) {  // without others: it calls itself
    agent.join(agent.address());
    onecopy::Tensor tensor = onecopy::empty(onecopy::Layout(onecopy::DType::f32, {1}));
    *tensor.as<float>() = 21;
    const rpc::Value result = agent.call_plain("program", "scale", {tensor, 2});
    std::printf("scaled to %g\n", *result.as_tensor().as<float>());
    return 0;
  }
  const std::string python = agent.join(from_hex(argv[1]));
  std::printf("%s\n", to_hex(agent.address()).c_str());
  std::printf("%s\n", agent.call_plain(python, "__main__:greet", {"C++"}).as_text().c_str());
  std::fflush(stdout);
  std::getchar();  // until the other closes it
}
