// SPDX-License-Identifier: Apache-2.0
// Two processes in C++ that call each other's functions with plain values and a tensor.
#include <onecopy/rpc/agent.h>
#include <onecopy/share/share.h>

#include <cstdio>
#include <cstdlib>
#include <future>
#include <numeric>
#include <string>

namespace rpc = onecopy::rpc;

namespace {

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

rpc::Value sum(const rpc::Value::List& arguments) {
  const onecopy::Tensor tensor = arguments.at(0).as_tensor();
  const float* elements = tensor.as<float>();
  return std::accumulate(elements, elements + tensor.layout().numel(), 0.0);
}

int be_worker(const std::string& address) {
  std::promise<void> end;
  rpc::Agent agent({.name = "worker", .number = 2});
  agent.define_plain("sum", sum);
  agent.define_plain("end", [&](const rpc::Value::List&) { return end.set_value(), rpc::Value(); });
  const std::string parent = agent.join(from_hex(address));
  agent.call_plain(parent, "enter", {rpc::Value::bytes(agent.address())});
  end.get_future().wait();
  return 0;  // the destructor of the agent leaves the group
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2) return be_worker(argv[1]);
  std::promise<std::string> entered;
  rpc::Agent agent({.name = "parent", .number = 1});
  agent.define_plain("enter", [&](const rpc::Value::List& arguments) {
    entered.set_value(agent.join(arguments.at(0).as_bytes()));
    return rpc::Value();
  });
  const std::string command = std::string(argv[0]) + " " + to_hex(agent.address());
  std::future<int> status = std::async(std::launch::async, [&] { return std::system(command.c_str()); });
  const std::string name = entered.get_future().get();
  onecopy::Tensor tensor = onecopy::empty(onecopy::Layout(onecopy::DType::f32, {1000}));
  for (int i = 0; i < 1000; ++i) tensor.as<float>()[i] = 0.5F;
  std::printf("%s says that the sum is %g\n", name.c_str(),
              agent.call_plain(name, "sum", {tensor}).as_double());
  try {
    agent.call_plain(name, "sum", {"not a tensor"});
  } catch (const onecopy::Error& error) {
    std::printf("%s: %s\n", onecopy::name(error.code()), error.what());
  }
  std::fflush(stdout);
  try {
    agent.call_plain(name, "end");
  } catch (const onecopy::Error& error) {  // the worker may leave before its answer is out
    if (error.code() != onecopy::ErrorCode::peer_died) throw;
  }
  return status.get() == 0 ? 0 : 1;
}
