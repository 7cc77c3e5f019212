// SPDX-License-Identifier: Apache-2.0 Compares our declarations of UCP's interface with the real headers.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "transport/ucx/ucp_api.h"

/// The names mean our declarations within our namespace, and the real ones outside of it.
#define VALUES                                                                                             \
  sizeof(ucp_params_t), offsetof(ucp_params_t, name), sizeof(ucp_worker_params_t),                         \
      offsetof(ucp_worker_params_t, events), offsetof(ucp_worker_params_t, event_fd),                      \
      sizeof(ucp_ep_params_t), offsetof(ucp_ep_params_t, err_handler), offsetof(ucp_ep_params_t, flags),   \
      sizeof(ucp_request_param_t), offsetof(ucp_request_param_t, user_data),                               \
      offsetof(ucp_request_param_t, memory_type), sizeof(ucp_am_handler_param_t),                          \
      offsetof(ucp_am_handler_param_t, cb), sizeof(ucp_am_recv_param_t), sizeof(ucs_status_t),             \
      std::uint64_t(UCS_ERR_BUSY), std::uint64_t(UCS_ERR_LAST), UCS_THREAD_MODE_SERIALIZED,                \
      UCS_MEMORY_TYPE_HOST, UCS_MEMORY_TYPE_CUDA, UCP_ATTR_FIELD_MEMORY_TYPES,                             \
      UCP_EP_ATTR_FIELD_TRANSPORTS, sizeof(ucp_ep_attr_t), offsetof(ucp_ep_attr_t, transports),            \
      sizeof(ucp_transport_entry_t), offsetof(ucp_context_attr_t, memory_types), UCP_PARAM_FIELD_FEATURES, \
      UCP_FEATURE_WAKEUP, UCP_FEATURE_AM, UCP_WORKER_PARAM_FIELD_THREAD_MODE,                              \
      UCP_EP_PARAM_FIELD_REMOTE_ADDRESS, UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE,                             \
      UCP_EP_PARAM_FIELD_ERR_HANDLER, UCP_ERR_HANDLING_MODE_PEER, UCP_OP_ATTR_FIELD_CALLBACK,              \
      UCP_OP_ATTR_FIELD_USER_DATA, UCP_OP_ATTR_FIELD_FLAGS, UCP_OP_ATTR_FIELD_MEMORY_TYPE,                 \
      UCP_AM_RECV_ATTR_FLAG_DATA, UCP_AM_RECV_ATTR_FLAG_RNDV, UCP_AM_SEND_FLAG_RNDV,                       \
      UCP_AM_HANDLER_PARAM_FIELD_ID, UCP_AM_HANDLER_PARAM_FIELD_FLAGS, UCP_AM_HANDLER_PARAM_FIELD_CB,      \
      UCP_AM_HANDLER_PARAM_FIELD_ARG, UCP_AM_FLAG_WHOLE_MSG, UCP_EP_CLOSE_FLAG_FORCE,                      \
      sizeof(ucp_mem_map_params_t), offsetof(ucp_mem_map_params_t, length),                                \
      offsetof(ucp_mem_map_params_t, prot), offsetof(ucp_request_param_t, memh), UCP_OP_ATTR_FIELD_MEMH,   \
      UCP_MEM_MAP_PARAM_FIELD_ADDRESS, UCP_MEM_MAP_PARAM_FIELD_LENGTH, UCP_MEM_MAP_PARAM_FIELD_PROT,       \
      UCP_MEM_MAP_PROT_LOCAL_READ, UCP_MEM_MAP_PROT_REMOTE_READ

namespace onecopy::ucx {
static const std::vector<std::uint64_t> kOurs{VALUES};
}  // namespace onecopy::ucx

#if __has_include(<ucp/api/ucp.h>)
#include <ucp/api/ucp.h>

TEST(Ucp, IsDeclaredAsItsHeadersDeclareIt) {
  const std::vector<std::uint64_t> real{VALUES};
  EXPECT_EQ(onecopy::ucx::kOurs, real);
}
#else
TEST(Ucp, IsDeclaredAsItsHeadersDeclareIt) { GTEST_SKIP() << "wants the headers of UCX"; }
#endif
