// SPDX-License-Identifier: Apache-2.0
// A server and a client meet at an address, and prove to each other that they have the same key. The server sends the
// client the text of a queue.
#include <onecopy/onecopy.h>

#include <cstdio>
#include <cstdlib>
#include <span>
#include <string>
#include <string_view>
#include <thread>

namespace {

// In a real program, 32 random bytes that both programs read from a file.
constexpr std::string_view kKey = "a secret of both programs";

onecopy::ByteSpan bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

int client(const char* address) {
  onecopy::Pipe pipe = onecopy::connect(address, bytes_of(kKey));
  const onecopy::Message welcome = pipe.recv();
  const std::string_view text(reinterpret_cast<const char*>(welcome.data.data()), welcome.data.size());
  onecopy::Queue jobs = onecopy::Queue::connect(onecopy::Handle::from_text(text));
  const onecopy::Tensor job = jobs.get_tensor();
  job.as<float>()[0] = 42;
  pipe.send(onecopy::Message{.tag = 1});
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2) return client(argv[1]);
  auto listener = onecopy::Listener::listen("tcp:127.0.0.1:0", bytes_of(kKey));
  const std::string command = argv[0] + (" " + listener.address());
  std::thread other([&] { std::system(command.c_str()); });
  onecopy::Pipe pipe = listener.accept();
  onecopy::Queue jobs = onecopy::Queue::create();
  const std::string text = jobs.handle().to_text();
  const onecopy::ByteSpan bytes = bytes_of(text);
  pipe.send(onecopy::Message{.data = {bytes.begin(), bytes.end()}});
  const onecopy::Tensor job = onecopy::empty({onecopy::DType::f32, {1000}});
  jobs.put(job);
  pipe.recv();
  std::printf("the client wrote %g\n", job.as<float>()[0]);
  other.join();
}
