/* SPDX-License-Identifier: Apache-2.0 */
/* What is used of cuBLASLt (libcublasLt), as tables of names and types, as driver_api.h has them.
 * Source: cuBLAS library documentation, "Using the cuBLASLt API", CUDA 13.0; CUDA 12's is the same.
 * test_cuda_driver compares these declarations with NVIDIA's, where its header is installed.
 *
 * Called by driver/lt_*.c, and by the stand-in of the tests (test/accel/standin_lt), which
 * implements it. Matrices are column-major. A matrix product is D = alpha·op(A)·op(B) + beta·C +
 * bias, with D (m,n), op(A) (m,k), op(B) (k,n) and a bias of m elements.
 */
#ifndef DSC_LT_API_H
#define DSC_LT_API_H

#include "accel/cuda/driver/driver_api.h"

typedef int dsc_lt_status; /* cublasStatus_t */
typedef struct cublasLtContext *dsc_lt_handle;
typedef struct dsc_lt_desc_st *dsc_lt_desc;     /* cublasLtMatmulDesc_t */
typedef struct dsc_lt_layout_st *dsc_lt_layout; /* cublasLtMatrixLayout_t */
typedef struct dsc_lt_pref_st *dsc_lt_pref;     /* cublasLtMatmulPreference_t */

typedef struct dsc_lt_algo {
    uint64_t data[8];
} dsc_lt_algo;

typedef struct dsc_lt_result { /* cublasLtMatmulHeuristicResult_t */
    dsc_lt_algo algo;
    size_t work_bytes;
    dsc_lt_status state;
    float waves;
    int reserved[4];
} dsc_lt_result;

enum {
    DSC_LT_SUCCESS = 0,
    DSC_LT_NOT_INITIALIZED = 1,
    DSC_LT_ALLOC_FAILED = 3,
    DSC_LT_INVALID_VALUE = 7,
    DSC_LT_EXECUTION_FAILED = 13,
    DSC_LT_NOT_SUPPORTED = 15
};

enum {
    DSC_LT_COMPUTE_32F = 68, /* cublasComputeType_t */
    DSC_LT_R_32F = 0,        /* cudaDataType */
    DSC_LT_R_16F = 2,
    DSC_LT_R_16BF = 14,
    DSC_LT_OP_N = 0,
    DSC_LT_OP_T = 1,
    DSC_LT_EPILOGUE_DEFAULT = 1,
    DSC_LT_EPILOGUE_BIAS = 4,
    DSC_LT_DESC_TRANSA = 3, /* int32_t */
    DSC_LT_DESC_TRANSB = 4,
    DSC_LT_DESC_EPILOGUE = 7,     /* uint32_t */
    DSC_LT_DESC_BIAS_POINTER = 8, /* const void * */
    DSC_LT_PREF_WORKSPACE = 1,    /* uint64_t */
    DSC_LT_PREF_REDUCTIONS = 3,   /* uint32_t, a mask */
    DSC_LT_PREF_ALIGN_A = 5,      /* uint32_t */
    DSC_LT_PREF_ALIGN_B = 6,
    DSC_LT_PREF_ALIGN_C = 7,
    DSC_LT_PREF_ALIGN_D = 8,
    DSC_LT_REDUCE_COMPUTE_TYPE = 2, /* of the mask; without a reduction: always allowed */
    DSC_LT_ALGO_ID = 0,             /* int32_t */
    DSC_LT_ALGO_TILE = 1,           /* uint32_t */
    DSC_LT_ALGO_SPLIT_K = 2,        /* int32_t */
    DSC_LT_ALGO_STAGES = 6          /* uint32_t */
};

/* X(type, member, symbol, parameters) */
#define DSC_LT_LIST(X)                                                                             \
    X(size_t, version, cublasLtGetVersion, (void))                                                 \
    X(const char *, status_text, cublasLtGetStatusString, (dsc_lt_status status))                  \
    X(dsc_lt_status, create, cublasLtCreate, (dsc_lt_handle * handle_out))                         \
    X(dsc_lt_status, destroy, cublasLtDestroy, (dsc_lt_handle handle))                             \
    X(dsc_lt_status, desc_create, cublasLtMatmulDescCreate,                                        \
      (dsc_lt_desc * desc_out, int compute_type, int scale_type))                                  \
    X(dsc_lt_status, desc_destroy, cublasLtMatmulDescDestroy, (dsc_lt_desc desc))                  \
    X(dsc_lt_status, desc_set, cublasLtMatmulDescSetAttribute,                                     \
      (dsc_lt_desc desc, int which, const void *value, size_t bytes))                              \
    X(dsc_lt_status, layout_create, cublasLtMatrixLayoutCreate,                                    \
      (dsc_lt_layout * layout_out, int type, uint64_t rows, uint64_t columns, int64_t ld))         \
    X(dsc_lt_status, layout_destroy, cublasLtMatrixLayoutDestroy, (dsc_lt_layout layout))          \
    X(dsc_lt_status, pref_create, cublasLtMatmulPreferenceCreate, (dsc_lt_pref * pref_out))        \
    X(dsc_lt_status, pref_destroy, cublasLtMatmulPreferenceDestroy, (dsc_lt_pref pref))            \
    X(dsc_lt_status, pref_set, cublasLtMatmulPreferenceSetAttribute,                               \
      (dsc_lt_pref pref, int which, const void *value, size_t bytes))                              \
    X(dsc_lt_status, heuristic, cublasLtMatmulAlgoGetHeuristic,                                    \
      (dsc_lt_handle handle, dsc_lt_desc desc, dsc_lt_layout a, dsc_lt_layout b, dsc_lt_layout c,  \
       dsc_lt_layout d, dsc_lt_pref pref, int n, dsc_lt_result *results, int *n_out))              \
    X(dsc_lt_status, algo_get, cublasLtMatmulAlgoConfigGetAttribute,                               \
      (const dsc_lt_algo *algo, int which, void *value_out, size_t bytes, size_t *written_out))    \
    X(dsc_lt_status, matmul, cublasLtMatmul,                                                       \
      (dsc_lt_handle handle, dsc_lt_desc desc, const void *alpha, const void *a,                   \
       dsc_lt_layout a_layout, const void *b, dsc_lt_layout b_layout, const void *beta,            \
       const void *c, dsc_lt_layout c_layout, void *d, dsc_lt_layout d_layout,                     \
       const dsc_lt_algo *algo, void *work, size_t work_bytes, dsc_cu_stream stream))

/* The library, loaded. */
typedef struct dsc_lt_api {
#define X(type, member, symbol, params) type(*member) params;
    DSC_LT_LIST(X)
#undef X
} dsc_lt_api;

#endif
