// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/socket.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>

/// The part of UCP's C interface that is used here, with the names of its headers, so that building needs no UCX. Where the
/// real headers are there, tests/unit/rpc/ucp_abi_test.cpp compares these declarations with them. Nothing of it is linked:
/// ucp.h finds the calls at run time. UCP keeps its interface stable from 1.17 on: a structure says in its mask which fields
/// are set.
// NOLINTBEGIN(readability-identifier-naming): the names of UCX
namespace onecopy::ucx {

using ucp_config_t = struct ConfigTag;
using ucp_context_h = struct UcpContextTag*;
using ucp_worker_h = struct WorkerTag*;
using ucp_ep_h = struct EndpointTag*;
using ucp_mem_h = struct UcpMemoryTag*;
using ucp_address_t = struct AddressTag;
using ucs_status_t = signed char;  ///< an enum of one byte
using ucs_status_ptr_t = void*;    ///< null, a request, or an error

struct ucp_params_t {
  std::uint64_t field_mask, features;
  std::size_t request_size;
  void (*request_init)(void*);
  void (*request_cleanup)(void*);
  std::uint64_t tag_sender_mask;
  int mt_workers_shared;
  std::size_t estimated_num_eps, estimated_num_ppn;
  const char* name;
  std::size_t node_local_id;
};

struct ucp_context_attr_t {
  std::uint64_t field_mask;
  std::size_t request_size;
  int thread_mode;
  std::uint64_t memory_types;
  char name[32];
  std::size_t device_counter_size;
};

struct ucp_worker_params_t {
  std::uint64_t field_mask;
  int thread_mode;
  std::uint64_t cpu_mask[16];
  unsigned events;
  void* user_data;
  int event_fd;
  std::uint64_t flags;
  const char* name;
  std::size_t am_alignment;
  std::uint64_t client_id;
};

struct ucp_err_handler_t {
  void (*cb)(void* arg, ucp_ep_h ep, ucs_status_t status);
  void* arg;
};

struct ucs_sock_addr_t {
  const void* addr;
  unsigned addrlen;
};

struct ucp_transport_entry_t {
  const char* transport_name;
  const char* device_name;
};

struct ucp_ep_attr_t {
  std::uint64_t field_mask;
  char name[32];
  sockaddr_storage local_sockaddr;
  sockaddr_storage remote_sockaddr;
  struct {
    ucp_transport_entry_t* entries;
    unsigned num_entries;
    std::size_t entry_size;
  } transports;
  void* user_data;
};

struct ucp_ep_params_t {
  std::uint64_t field_mask;
  const ucp_address_t* address;
  int err_mode;
  ucp_err_handler_t err_handler;
  void* user_data;
  unsigned flags;
  ucs_sock_addr_t sockaddr;
  void* conn_request;
  const char* name;
  ucs_sock_addr_t local_sockaddr;
};

using SendDone = void (*)(void* request, ucs_status_t status, void* user_data);
using ReceiveDone = void (*)(void* request, ucs_status_t status, std::size_t length, void* user_data);

struct ucp_request_param_t {
  std::uint32_t op_attr_mask, flags;
  void* request;
  union {
    SendDone send;
    ReceiveDone recv_am;
  } cb;
  std::uint64_t datatype;
  void* user_data;
  void* reply_buffer;
  int memory_type;
  void* recv_info;
  void* memh;
  std::uint64_t remote_datatype;
  const void* remote;
  std::size_t remote_count;
};

struct ucp_mem_map_params_t {
  std::uint64_t field_mask;
  void* address;
  std::size_t length;
  unsigned flags, prot;
  int memory_type;
  void* exported_memh_buffer;
};

struct ucp_am_recv_param_t {
  std::uint64_t recv_attr;
  ucp_ep_h reply_ep;
};

using Receive = ucs_status_t (*)(void* arg, const void* header, std::size_t header_length, void* data,
                                 std::size_t length, const ucp_am_recv_param_t* param);

struct ucp_am_handler_param_t {
  std::uint64_t field_mask;
  unsigned id;
  std::uint32_t flags;
  Receive cb;
  void* arg;
};

inline constexpr ucs_status_t UCS_OK = 0, UCS_INPROGRESS = 1, UCS_ERR_BUSY = -15, UCS_ERR_LAST = -100;
inline constexpr int UCS_THREAD_MODE_SERIALIZED = 1;
inline constexpr int UCS_MEMORY_TYPE_HOST = 0, UCS_MEMORY_TYPE_CUDA = 1;
inline constexpr std::uint64_t UCP_ATTR_FIELD_MEMORY_TYPES = 1 << 2, UCP_EP_ATTR_FIELD_TRANSPORTS = 1 << 3;
inline constexpr std::uint64_t UCP_PARAM_FIELD_FEATURES = 1 << 0;
inline constexpr std::uint64_t UCP_FEATURE_WAKEUP = 1 << 4, UCP_FEATURE_AM = 1 << 6;
inline constexpr std::uint64_t UCP_WORKER_PARAM_FIELD_THREAD_MODE = 1 << 0;
inline constexpr std::uint64_t UCP_EP_PARAM_FIELD_REMOTE_ADDRESS = 1 << 0,
                               UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE = 1 << 1,
                               UCP_EP_PARAM_FIELD_ERR_HANDLER = 1 << 2;
inline constexpr int UCP_ERR_HANDLING_MODE_PEER = 1;
inline constexpr std::uint32_t UCP_OP_ATTR_FIELD_CALLBACK = 1 << 1, UCP_OP_ATTR_FIELD_USER_DATA = 1 << 2,
                               UCP_OP_ATTR_FIELD_FLAGS = 1 << 4, UCP_OP_ATTR_FIELD_MEMORY_TYPE = 1 << 6,
                               UCP_OP_ATTR_FIELD_MEMH = 1 << 8;
inline constexpr std::uint64_t UCP_MEM_MAP_PARAM_FIELD_ADDRESS = 1 << 0,
                               UCP_MEM_MAP_PARAM_FIELD_LENGTH = 1 << 1,
                               UCP_MEM_MAP_PARAM_FIELD_PROT = 1 << 3;
inline constexpr unsigned UCP_MEM_MAP_PROT_LOCAL_READ = 1 << 0, UCP_MEM_MAP_PROT_REMOTE_READ = 1 << 8;
inline constexpr std::uint64_t UCP_AM_RECV_ATTR_FLAG_DATA = 1 << 16, UCP_AM_RECV_ATTR_FLAG_RNDV = 1 << 17;
inline constexpr std::uint32_t UCP_AM_SEND_FLAG_RNDV = 1 << 2;
inline constexpr std::uint64_t UCP_AM_HANDLER_PARAM_FIELD_ID = 1 << 0,
                               UCP_AM_HANDLER_PARAM_FIELD_FLAGS = 1 << 1,
                               UCP_AM_HANDLER_PARAM_FIELD_CB = 1 << 2,
                               UCP_AM_HANDLER_PARAM_FIELD_ARG = 1 << 3;
inline constexpr std::uint32_t UCP_AM_FLAG_WHOLE_MSG = 1 << 0;
inline constexpr std::uint32_t UCP_EP_CLOSE_FLAG_FORCE = 1 << 0;

}  // namespace onecopy::ucx
// NOLINTEND(readability-identifier-naming)

/// A list of the calls: CALL(name, result, (parameters)).
#define ONECOPY_UCP_CALLS(CALL)                                                                     \
  CALL(ucp_get_version, void, (unsigned*, unsigned*, unsigned*))                                    \
  CALL(ucp_get_version_string, const char*, ())                                                     \
  CALL(ucp_config_read, ucs_status_t, (const char*, const char*, ucp_config_t**))                   \
  CALL(ucp_config_modify, ucs_status_t, (ucp_config_t*, const char*, const char*))                  \
  CALL(ucp_config_release, void, (ucp_config_t*))                                                   \
  CALL(ucp_init_version, ucs_status_t,                                                              \
       (unsigned, unsigned, const ucp_params_t*, const ucp_config_t*, ucp_context_h*))              \
  CALL(ucp_context_query, ucs_status_t, (ucp_context_h, ucp_context_attr_t*))                       \
  CALL(ucp_context_print_info, void, (ucp_context_h, std::FILE*))                                   \
  CALL(ucp_cleanup, void, (ucp_context_h))                                                          \
  CALL(ucp_worker_create, ucs_status_t, (ucp_context_h, const ucp_worker_params_t*, ucp_worker_h*)) \
  CALL(ucp_worker_destroy, void, (ucp_worker_h))                                                    \
  CALL(ucp_worker_get_address, ucs_status_t, (ucp_worker_h, ucp_address_t**, std::size_t*))         \
  CALL(ucp_worker_release_address, void, (ucp_worker_h, ucp_address_t*))                            \
  CALL(ucp_worker_get_efd, ucs_status_t, (ucp_worker_h, int*))                                      \
  CALL(ucp_worker_arm, ucs_status_t, (ucp_worker_h))                                                \
  CALL(ucp_worker_signal, ucs_status_t, (ucp_worker_h))                                             \
  CALL(ucp_worker_progress, unsigned, (ucp_worker_h))                                               \
  CALL(ucp_worker_set_am_recv_handler, ucs_status_t, (ucp_worker_h, const ucp_am_handler_param_t*)) \
  CALL(ucp_ep_create, ucs_status_t, (ucp_worker_h, const ucp_ep_params_t*, ucp_ep_h*))              \
  CALL(ucp_ep_query, ucs_status_t, (ucp_ep_h, ucp_ep_attr_t*))                                      \
  CALL(ucp_ep_close_nbx, ucs_status_ptr_t, (ucp_ep_h, const ucp_request_param_t*))                  \
  CALL(ucp_am_send_nbx, ucs_status_ptr_t,                                                           \
       (ucp_ep_h, unsigned, const void*, std::size_t, const void*, std::size_t,                     \
        const ucp_request_param_t*))                                                                \
  CALL(ucp_am_recv_data_nbx, ucs_status_ptr_t,                                                      \
       (ucp_worker_h, void*, void*, std::size_t, const ucp_request_param_t*))                       \
  CALL(ucp_am_data_release, void, (ucp_worker_h, void*))                                            \
  CALL(ucp_request_free, void, (void*))                                                             \
  CALL(ucp_mem_map, ucs_status_t, (ucp_context_h, const ucp_mem_map_params_t*, ucp_mem_h*))         \
  CALL(ucp_mem_unmap, ucs_status_t, (ucp_context_h, ucp_mem_h))                                     \
  CALL(ucs_global_opts_set_value, ucs_status_t, (const char*, const char*))                         \
  CALL(ucs_status_string, const char*, (ucs_status_t))
