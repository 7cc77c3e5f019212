// SPDX-License-Identifier: Apache-2.0
#include "rpc/failure.h"

#include "rpc/message.h"

namespace onecopy::rpc {

Message encode_failure(ErrorCode code, const std::string& text) {
  Message message;
  message.data.push_back(static_cast<std::byte>(code));
  append_name(message.data, text);
  return message;
}

void throw_failure(const Message& answer) {
  if (answer.data.empty() || body_form(answer.tag) != 0)
    throw Error(ErrorCode::remote_error, "a function of another language has thrown");
  auto code = static_cast<ErrorCode>(answer.data.front());
  if (code > ErrorCode::system) code = ErrorCode::remote_error;
  throw Error(code,
              std::string(reinterpret_cast<const char*>(answer.data.data() + 1), answer.data.size() - 1));
}

}  // namespace onecopy::rpc
