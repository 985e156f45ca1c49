/* SPDX-License-Identifier: Apache-2.0 */
/* What is used of NVRTC (libnvrtc), as tables of names and types, as driver_api.h has them. Source:
 * NVRTC documentation, CUDA 13.0; CUDA 12's is the same. test_cuda_driver compares these
 * declarations with NVIDIA's, where its header is installed.
 *
 * Called by nvrtc.c, and by the stand-in of the tests (test/accel/standin_nvrtc), which implements
 * it. A program is made of a source and of headers by their names, compiled once, asked for its log
 * (always) and its machine code (after a success), and destroyed.
 */
#ifndef DSC_NVRTC_API_H
#define DSC_NVRTC_API_H

#include <stddef.h>

typedef int dsc_nvrtc_result;                    /* nvrtcResult */
typedef struct _nvrtcProgram *dsc_nvrtc_program; /* nvrtcProgram */

enum {
    DSC_NVRTC_SUCCESS = 0,
    DSC_NVRTC_OUT_OF_MEMORY = 1,
    DSC_NVRTC_PROGRAM_CREATION_FAILURE = 2,
    DSC_NVRTC_INVALID_INPUT = 3,
    DSC_NVRTC_INVALID_PROGRAM = 4,
    DSC_NVRTC_INVALID_OPTION = 5,
    DSC_NVRTC_COMPILATION = 6,
    DSC_NVRTC_BUILTIN_OPERATION_FAILURE = 7,
    DSC_NVRTC_INTERNAL_ERROR = 11
};

/* X(type, member, symbol, parameters). Sizes of texts count their end. */
#define DSC_NVRTC_LIST(X)                                                                          \
    X(const char *, text, nvrtcGetErrorString, (dsc_nvrtc_result result))                          \
    X(dsc_nvrtc_result, version, nvrtcVersion, (int *major_out, int *minor_out))                   \
    X(dsc_nvrtc_result, n_archs, nvrtcGetNumSupportedArchs, (int *n_out))                          \
    X(dsc_nvrtc_result, archs, nvrtcGetSupportedArchs, (int *archs_out))                           \
    X(dsc_nvrtc_result, create, nvrtcCreateProgram,                                                \
      (dsc_nvrtc_program * program_out, const char *source, const char *name, int n_headers,       \
       const char *const *headers, const char *const *include_names))                              \
    X(dsc_nvrtc_result, destroy, nvrtcDestroyProgram, (dsc_nvrtc_program * program))               \
    X(dsc_nvrtc_result, compile, nvrtcCompileProgram,                                              \
      (dsc_nvrtc_program program, int n_options, const char *const *options))                      \
    X(dsc_nvrtc_result, log_bytes, nvrtcGetProgramLogSize,                                         \
      (dsc_nvrtc_program program, size_t * bytes_out))                                             \
    X(dsc_nvrtc_result, log, nvrtcGetProgramLog, (dsc_nvrtc_program program, char *log_out))       \
    X(dsc_nvrtc_result, code_bytes, nvrtcGetCUBINSize,                                             \
      (dsc_nvrtc_program program, size_t * bytes_out))                                             \
    X(dsc_nvrtc_result, code, nvrtcGetCUBIN, (dsc_nvrtc_program program, char *code_out))

/* The library, loaded. */
typedef struct dsc_nvrtc_api {
#define X(type, member, symbol, params) type(*member) params;
    DSC_NVRTC_LIST(X)
#undef X
} dsc_nvrtc_api;

#endif
