/* SPDX-License-Identifier: Apache-2.0 */
/* What the kernels of this folder share: their list, the split of work, dispatch by element type.
 *
 * A kernel is a const ds_kernel named by DSI_SIMD_KERNEL and one line in DSI_SIMD_KERNELS;
 * simd_list.c makes the family that accel/cpu/registry.c knows.
 */
#ifndef DSI_ACCEL_CPU_SIMD_KERNEL_H
#define DSI_ACCEL_CPU_SIMD_KERNEL_H

#include "accel/cpu/simd/simd.h"
#include "op/ops.h"

#include <deepspeed/op.h>

/* Operators that have a kernel here. */
#define DSI_SIMD_KERNELS(X)                                                                        \
    X(add)                                                                                         \
    X(sub)                                                                                         \
    X(mul)                                                                                         \
    X(div)                                                                                         \
    X(scale)                                                                                       \
    X(neg)                                                                                         \
    X(exp)                                                                                         \
    X(log)                                                                                         \
    X(sqrt)                                                                                        \
    X(tanh)                                                                                        \
    X(sigmoid)                                                                                     \
    X(relu)                                                                                        \
    X(square)                                                                                      \
    X(relu_backward)                                                                               \
    X(attention)                                                                                   \
    X(attention_backward)                                                                          \
    X(causal_conv)                                                                                 \
    X(causal_conv_backward)                                                                        \
    X(delta_rule)                                                                                  \
    X(delta_rule_backward)                                                                         \
    X(delta_rule_step)                                                                             \
    X(paged_delta_rule)                                                                            \
    X(paged_attention)                                                                             \
    X(slot_adapter)                                                                                \
    X(adam)                                                                                        \
    X(sgd)                                                                                         \
    X(lion)                                                                                        \
    X(ademamix)                                                                                    \
    X(adagrad)                                                                                     \
    X(lamb_moments)                                                                                \
    X(lamb_sums)                                                                                   \
    X(lamb)                                                                                        \
    X(layer_norm)                                                                                  \
    X(layer_norm_backward)                                                                         \
    X(rms_norm)                                                                                    \
    X(rms_norm_backward)                                                                           \
    X(activation)                                                                                  \
    X(activation_backward)                                                                         \
    X(glu)                                                                                         \
    X(glu_backward)                                                                                \
    X(softmax)                                                                                     \
    X(softmax_backward)                                                                            \
    X(dropout)                                                                                     \
    X(rope)                                                                                        \
    X(embedding)                                                                                   \
    X(embedding_dw)                                                                                \
    X(embedding_part)                                                                              \
    X(embedding_part_dw)                                                                           \
    X(spread_rows)                                                                                 \
    X(combine_rows)                                                                                \
    X(combine_rows_dw)                                                                             \
    X(sum_all)                                                                                     \
    X(mean_all)                                                                                    \
    X(sum_last)                                                                                    \
    X(sum_rows)                                                                                    \
    X(fill)                                                                                        \
    X(expand_last)                                                                                 \
    X(expand_rows)                                                                                 \
    X(max_last)                                                                                    \
    X(max_last_backward)                                                                           \
    X(compare)                                                                                     \
    X(where)                                                                                       \
    X(band)                                                                                        \
    X(cast)                                                                                        \
    X(store)                                                                                       \
    X(accumulate)                                                                                  \
    X(postpone)                                                                                    \
    X(quantize_blocks)                                                                             \
    X(quantize_with_error)                                                                         \
    X(dequantize_blocks)                                                                           \
    X(dequantize_sum)                                                                              \
    X(permute)                                                                                     \
    X(slice)                                                                                       \
    X(pad)                                                                                         \
    X(concat)                                                                                      \
    X(abs_max)                                                                                     \
    X(sum_squares)                                                                                 \
    X(cross_entropy)                                                                               \
    X(cross_entropy_backward)                                                                      \
    X(distillation)                                                                                \
    X(distillation_backward)

#define DSI_SIMD_KERNEL(op_name, supports_fn, work_fn, run_fn)                                     \
    extern const ds_kernel DSI_NAME(dsi_simd_##op_name);                                           \
    const ds_kernel DSI_NAME(dsi_simd_##op_name) = {                                               \
        DS_OP_VERSION, DSI_ISA_TEXT, #op_name, DSI_SIMD_ISA, supports_fn, work_fn, run_fn}

/* Runs `call` with the constant T equal to `type`, one of the three float types of activations. */
#define DSI_BY_TYPE(type, call)                                                                    \
    switch (type) {                                                                                \
    case DS_DTYPE_BF16: {                                                                          \
        const ds_dtype T = DS_DTYPE_BF16;                                                          \
        call;                                                                                      \
        break;                                                                                     \
    }                                                                                              \
    case DS_DTYPE_F16: {                                                                           \
        const ds_dtype T = DS_DTYPE_F16;                                                           \
        call;                                                                                      \
        break;                                                                                     \
    }                                                                                              \
    default: {                                                                                     \
        const ds_dtype T = DS_DTYPE_F32;                                                           \
        call;                                                                                      \
        break;                                                                                     \
    }                                                                                              \
    }

static inline bool is_act_type(ds_dtype type)
{
    return type == DS_DTYPE_F32 || type == DS_DTYPE_BF16 || type == DS_DTYPE_F16;
}

/* Every operand that is there is f32, bf16 or f16. */
static inline bool all_act_types(const ds_kernel_sig *sig)
{
    for (uint32_t i = 0; i < sig->n_in; ++i) {
        if (sig->in[i].dtype != DS_DTYPE_NONE && !is_act_type(sig->in[i].dtype)) {
            return false;
        }
    }
    for (uint32_t i = 0; i < sig->n_out; ++i) {
        if (sig->out[i].dtype != DS_DTYPE_NONE && !is_act_type(sig->out[i].dtype)) {
            return false;
        }
    }
    return true;
}

static inline size_t meta_count(const ds_meta *meta)
{
    return (size_t)ds_shape_count(meta->shape);
}

static inline size_t tensor_count(const ds_tensor *tensor)
{
    return (size_t)ds_shape_count(tensor->meta.shape);
}

/* Input i, or NULL when it is absent. */
static inline const ds_tensor *input_at(const ds_kernel_call *call, uint32_t i)
{
    return i < call->sig->n_in && call->in[i].meta.dtype != DS_DTYPE_NONE ? &call->in[i] : NULL;
}

/* A loop over [0,n) in chunks whose bounds depend on n and grain only. Chunks are multiples of 64
 * elements, so that two tasks never write one cache line of an aligned array. */
typedef void (*range_fn)(const void *job, size_t begin, size_t end);

typedef struct range_loop {
    range_fn fn;
    const void *job;
    size_t n, chunk;
} range_loop;

static inline void range_task(void *arg, uint32_t task, uint32_t thread)
{
    const range_loop *loop = arg;
    const size_t begin = (size_t)task * loop->chunk;
    const size_t end = loop->n - begin < loop->chunk ? loop->n : begin + loop->chunk;
    (void)thread;
    loop->fn(loop->job, begin, end);
}

static inline size_t range_chunk(size_t n, size_t grain)
{
    enum { MOST_TASKS = 4096 };
    const size_t least = (n + MOST_TASKS - 1) / MOST_TASKS;
    const size_t chunk = least > grain ? least : grain;
    return (chunk + 63) / 64 * 64;
}

static inline void for_ranges(ds_ctx *ctx, size_t n, size_t grain, range_fn fn, const void *job)
{
    if (n == 0) {
        return;
    }
    range_loop loop = {fn, job, n, range_chunk(n, grain)};
    ds_parallel(ctx, range_task, &loop, (uint32_t)((n + loop.chunk - 1) / loop.chunk));
}

/* A loop over rows [0,n_rows) in n_blocks nearly equal runs. */
typedef void (*rows_fn)(const void *job, size_t first, size_t last, size_t block);

typedef struct rows_loop {
    rows_fn fn;
    const void *job;
    size_t n_rows, n_blocks;
} rows_loop;

static inline void rows_task(void *arg, uint32_t task, uint32_t thread)
{
    const rows_loop *loop = arg;
    const size_t each = loop->n_rows / loop->n_blocks;
    const size_t longer = loop->n_rows % loop->n_blocks; /* the first ones have one more */
    const size_t first = task * each + (task < longer ? task : longer);
    (void)thread;
    loop->fn(loop->job, first, first + each + (task < longer ? 1 : 0), task);
}

static inline void for_rows(ds_ctx *ctx, size_t n_rows, size_t n_blocks, rows_fn fn,
                            const void *job)
{
    if (n_rows == 0) {
        return;
    }
    rows_loop loop = {fn, job, n_rows, n_blocks};
    ds_parallel(ctx, rows_task, &loop, (uint32_t)n_blocks);
}

/* Number of runs so that one covers about `elements` elements; 1..n_rows, at most `most`. */
static inline size_t row_blocks(size_t n_rows, size_t row_elements, size_t elements, size_t most)
{
    const size_t rows_each = row_elements >= elements ? 1 : elements / (row_elements + 1) + 1;
    const size_t blocks = (n_rows + rows_each - 1) / rows_each;
    const size_t limited = blocks < most ? blocks : most;
    return limited > 0 ? limited : 1;
}

enum { ELEMENT_GRAIN = 16384 }; /* of a loop whose operands stream */

#endif
