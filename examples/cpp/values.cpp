// SPDX-License-Identifier: Apache-2.0
// A worker in C++ takes Python's values and tensors from a queue and answers through another: queue_from_python.py runs
// it with two queues of Python. Without arguments it makes both queues.
#include <onecopy/onecopy.h>

#include <cstdio>
#include <string>

namespace rpc = onecopy::rpc;

namespace {

onecopy::Queue connect(const char* text) {
  return onecopy::Queue::connect(onecopy::Handle::from_text(text));
}

rpc::Value answer(const rpc::Value& value) {
  using Kind = rpc::Value::Kind;
  switch (value.kind()) {
    case Kind::tensor:  // the sender's memory
      value.as_tensor().as<float>()[0] = 42;
      return value;
    case Kind::dict: return rpc::Value::list({int(value.as_dict().size()), value});
    case Kind::foreign:  // only Python understands it: bytes that can be kept and passed on
      std::printf("the worker passes a %s on\n", value.as_foreign().format.c_str());
      return value;
    default: return rpc::Value::tuple({name(value.kind()), value});
  }
}

void work(onecopy::Queue& jobs, onecopy::Queue& answers) {
  for (;;) {
    const rpc::Value value = rpc::from_message(jobs.get());
    if (value.kind() == rpc::Value::Kind::none) return;
    answers.put(rpc::to_message(answer(value)));
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 3) {
    onecopy::Queue jobs = connect(argv[1]), answers = connect(argv[2]);
    work(jobs, answers);
    return 0;
  }
  onecopy::Queue jobs = onecopy::Queue::create(), answers = onecopy::Queue::create();
  const onecopy::Tensor tensor = onecopy::empty({onecopy::DType::f32, {3}});
  for (const rpc::Value& job : {rpc::Value(tensor), rpc::Value("text"), rpc::Value()})
    jobs.put(rpc::to_message(job));
  work(jobs, answers);
  std::printf("tensor[0] is %g\n", rpc::from_message(answers.get()).as_tensor().as<float>()[0]);
  const rpc::Value last = rpc::from_message(answers.get());  // a tuple, which as_list() accepts as well
  std::printf("%s\n", last.as_list().at(0).as_text().c_str());
}
