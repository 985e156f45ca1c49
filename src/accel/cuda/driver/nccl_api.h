/* SPDX-License-Identifier: Apache-2.0 */
/* What is used of NCCL (libnccl), as tables of names and types, as driver_api.h has them. Source:
 * NCCL's documentation, "NCCL API", 2.28; the functions are there since 2.14. test_cuda_driver
 * compares these declarations with NVIDIA's, where its header is installed.
 *
 * Called by driver/group_nccl.c, and by the stand-in of the tests (test/accel/standin_nccl), which
 * implements it.
 */
#ifndef DSC_NCCL_API_H
#define DSC_NCCL_API_H

#include "accel/cuda/driver/driver_api.h"

typedef int dsc_nccl_result; /* ncclResult_t */
typedef struct ncclComm *dsc_nccl_comm;

typedef struct dsc_nccl_id { /* ncclUniqueId */
    char bytes[128];
} dsc_nccl_id;

/* ncclConfig_t of NCCL 2.17, which later ones take: they look at size and version. */
typedef struct dsc_nccl_config {
    size_t size;
    unsigned magic, version;
    int blocking, cga_cluster_size, min_ctas, max_ctas;
    const char *net_name;
} dsc_nccl_config;

enum {
    DSC_NCCL_SUCCESS = 0,
    DSC_NCCL_UNHANDLED_CUDA_ERROR = 1,
    DSC_NCCL_INTERNAL_ERROR = 3,
    DSC_NCCL_INVALID_ARGUMENT = 4,
    DSC_NCCL_INVALID_USAGE = 5,
    DSC_NCCL_REMOTE_ERROR = 6,
    DSC_NCCL_IN_PROGRESS = 7,
    DSC_NCCL_UINT8 = 1, /* ncclDataType_t: only bytes are moved */
    DSC_NCCL_CONFIG_VERSION = 21700
};
#define DSC_NCCL_CONFIG_MAGIC 0xcafebeefu
#define DSC_NCCL_UNDEFINED    (-2147483647 - 1) /* NCCL_CONFIG_UNDEF_INT */

/* X(type, member, symbol, parameters) */
#define DSC_NCCL_LIST(X)                                                                           \
    X(dsc_nccl_result, version, ncclGetVersion, (int *version_out))                                \
    X(const char *, text, ncclGetErrorString, (dsc_nccl_result result))                            \
    X(const char *, last, ncclGetLastError, (dsc_nccl_comm comm))                                  \
    X(dsc_nccl_result, id, ncclGetUniqueId, (dsc_nccl_id * id_out))                                \
    X(dsc_nccl_result, init, ncclCommInitRankConfig,                                               \
      (dsc_nccl_comm * comm_out, int n_ranks, dsc_nccl_id id, int rank, dsc_nccl_config *config))  \
    X(dsc_nccl_result, async_error, ncclCommGetAsyncError,                                         \
      (dsc_nccl_comm comm, dsc_nccl_result * result_out))                                          \
    X(dsc_nccl_result, finalize, ncclCommFinalize, (dsc_nccl_comm comm))                           \
    X(dsc_nccl_result, destroy, ncclCommDestroy, (dsc_nccl_comm comm))                             \
    X(dsc_nccl_result, abort, ncclCommAbort, (dsc_nccl_comm comm))                                 \
    X(dsc_nccl_result, group_start, ncclGroupStart, (void))                                        \
    X(dsc_nccl_result, group_end, ncclGroupEnd, (void))                                            \
    X(dsc_nccl_result, send, ncclSend,                                                             \
      (const void *from, size_t count, int type, int peer, dsc_nccl_comm comm,                     \
       dsc_cu_stream stream))                                                                      \
    X(dsc_nccl_result, recv, ncclRecv,                                                             \
      (void *to, size_t count, int type, int peer, dsc_nccl_comm comm, dsc_cu_stream stream))      \
    X(dsc_nccl_result, all_gather, ncclAllGather,                                                  \
      (const void *from, void *to, size_t count_each, int type, dsc_nccl_comm comm,                \
       dsc_cu_stream stream))                                                                      \
    X(dsc_nccl_result, broadcast, ncclBroadcast,                                                   \
      (const void *from, void *to, size_t count, int type, int root, dsc_nccl_comm comm,           \
       dsc_cu_stream stream))

/* The library, loaded. */
typedef struct dsc_nccl_api {
#define X(type, member, symbol, params) type(*member) params;
    DSC_NCCL_LIST(X)
#undef X
} dsc_nccl_api;

#endif
