/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels of custom operators for the accelerator `cuda`, as CUDA source.
 *
 * A ds_op lists them in `cuda`, beside its kernels in C, which every other accelerator has. When an
 * engine or generator whose plan has such a step is created on a device, NVRTC compiles the source
 * for that device's architecture, once for all ranks of a node: what it made is kept in a folder
 * (DS_CUDA_CACHE, default deepspeed_native/cuda in $XDG_CACHE_HOME or ~/.cache; "none": nowhere).
 * An error of the compiler is an error of that creation; the compiler's log goes to the context's.
 *
 * The source is CUDA C++17. It may include "deepspeed_cuda.h", which is the library's and has:
 * int8_t to uint64_t, size_t; ds_index() and ds_stride(), the thread's number and how many there
 * are in a grid of one dimension; ds_get(t, dtype, i) and ds_set(t, dtype, i, value), elements of
 * f32, bf16 and f16 as float, rounded to nearest even. It includes nothing else: neither NVRTC nor
 * the cache has other files. Macros have the element types: DS_IN_0, DS_IN_1, … of inputs,
 * DS_OUT_0, … of outputs, each a constant DS_F32, DS_BF16, …, named as ds_dtype, 0 where absent.
 * Products and sums are not contracted, but where fmaf is written or an option says so.
 *
 * Thread rule: const tables, used by the library from the thread that creates and runs the engine.
 * Source of what NVRTC takes: NVRTC documentation, CUDA 13.0.
 */
#ifndef DEEPSPEED_CUDA_KERNEL_H
#define DEEPSPEED_CUDA_KERNEL_H

#include <deepspeed/op.h>

#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    DS_CUDA_ARGS_BYTES = 512, /* of a function's arguments */
    DS_CUDA_FUNCTIONS = 8     /* most of one kernel */
};

/* One launch of a function. */
typedef struct ds_cuda_launch {
    uint32_t grid[3], block[3]; /* blocks, threads of a block; come as 1. A grid of 0 blocks: the
                                   function is not launched */
    size_t args_bytes;          /* comes as 0 */
    uint8_t args[DS_CUDA_ARGS_BYTES]; /* one after the other, each at a multiple of its
                                               alignment: ds_cuda_arg, or one struct */
} ds_cuda_launch;

typedef struct ds_cuda_kernel {
    uint32_t version;             /* DS_OP_VERSION */
    const char *name;             /* unique within the operator: plans and messages have it */
    const char *source;           /* either the text itself, */
    const char *file;             /* or the file that has it, read when a device first needs it */
    const char *const *functions; /* extern "C" __global__, launched in this order; NULL-terminated
                                   */
    /* NULL, or NULL-terminated: -DNAME=…, --use_fast_math, --fmad=, --ftz=, --prec-div=,
     * --prec-sqrt=, --maxrregcount=, --extra-device-vectorization, -lineinfo, -w. Others are
     * refused. */
    const char *const *options;
    bool (*supports)(const ds_kernel_sig *sig);     /* NULL: every signature that infer accepts */
    size_t (*work_bytes)(const ds_kernel_sig *sig); /* NULL: 0. Must not depend on data */
    /* Shape and arguments of functions[function] for one execution. Data of the call are addresses
     * of the device, which the host cannot read; work lies there, too. No allocation, no clock, no
     * global state. A captured step is asked once and launched again with what was said. */
    ds_status (*launch)(const ds_kernel_call *call, uint32_t function, ds_cuda_launch *launch_out);
} ds_cuda_kernel;

/* Adds an argument: a pointer or a number, of 1, 2, 4 or 8 bytes. What has no room makes the launch
 * an error. */
static inline void ds_cuda_arg(ds_cuda_launch *launch, const void *value, size_t bytes)
{
    const size_t at = (launch->args_bytes + bytes - 1) / bytes * bytes;
    if (launch->args_bytes <= DS_CUDA_ARGS_BYTES && at + bytes <= DS_CUDA_ARGS_BYTES) {
        memcpy(launch->args + at, value, bytes);
    }
    launch->args_bytes = launch->args_bytes > DS_CUDA_ARGS_BYTES ? launch->args_bytes : at + bytes;
}

/* A grid of one dimension for n items, which ds_index and ds_stride walk; none for n = 0. */
static inline void ds_cuda_over(ds_cuda_launch *launch, int64_t n)
{
    const int64_t blocks = (n + 255) / 256;
    launch->grid[0] = (uint32_t)(blocks < 4096 ? blocks : 4096);
    launch->block[0] = 256;
}

#ifdef __cplusplus
}
#endif
#endif
