// SPDX-License-Identifier: Apache-2.0
// The only producer of a queue is killed. What it has put arrives, and then the consumer learns that nobody is left.
#include <onecopy/onecopy.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>

namespace {

int producer(const char* text) {
  onecopy::Queue queue = onecopy::Queue::connect(onecopy::Handle::from_text(text));
  for (int i = 1; i <= 3; ++i) {
    const onecopy::Tensor tensor = onecopy::empty({onecopy::DType::i32, {1}});
    *tensor.as<int>() = i;
    queue.put(tensor);
  }
  return std::raise(SIGKILL);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2) return producer(argv[1]);
  onecopy::Queue queue = onecopy::Queue::create({.ends_with_producers = true});
  std::system((argv[0] + (" " + queue.handle().to_text())).c_str());
  try {
    for (;;) std::printf("got %d\n", *queue.get_tensor().as<int>());
  } catch (const onecopy::Error& error) {
    if (error.code() != onecopy::ErrorCode::closed) throw;
    std::printf("no producer is left\n");
  }
}
