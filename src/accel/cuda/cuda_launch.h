/* SPDX-License-Identifier: Apache-2.0 */
/* How the glue (cuda_*.c) starts a kernel of kernels/: the same on a device and on the host layer.
 */
#ifndef DSC_LAUNCH_H
#define DSC_LAUNCH_H

#include "accel/cuda/kernel_list.h"
#include "op/ops.h"
#include <deepspeed/accel.h>

#ifndef DSC_MOST_BLOCKS /* so few for tests that a block has several items */
#define DSC_MOST_BLOCKS 4096
#endif

enum { DSC_BLOCK = 256 };

typedef struct dsc_shape {
    uint32_t grid[3], block[3];
} dsc_shape;

/* Blocks of a grid at most in y and in z (CUDA C++ Programming Guide, compute capabilities). */
enum { DSC_MOST_YZ = 65535 };

/* Whether n items, `tile` to a block, may be y of a grid: for supports. */
static inline bool dsc_fits_y(int64_t n, int64_t tile)
{
    return (n + tile - 1) / tile <= DSC_MOST_YZ;
}

/* Queues kernel fn on what runs the call. args: its struct, copied. */
ds_status dsc_launch(const ds_kernel_call *call, dsc_fn fn, const dsc_shape *shape,
                     const void *args, size_t args_bytes);

/* Where kernels of the call say that an operand is not what it must be (kernels/fault.h). */
struct dsc_fault *dsc_fault_of(const ds_kernel_call *call);

/* A grid of one dimension: a thread an item, in strides when there are many; or a block an item,
 * of warps enough for `width` threads, at most DSC_BLOCK. */
dsc_shape dsc_over_items(int64_t n);
dsc_shape dsc_block_an_item(int64_t n, int64_t width);
/* Of an exact sum over n elements (kernels/bin_layout.h): its blocks leave a part each. */
dsc_shape dsc_sum_blocks(int64_t n);

/* The kernel that DSC_KERNEL_ACT made for a dtype; first: the one of f32. */
dsc_fn dsc_of_dtype(dsc_fn first, ds_dtype dtype);
/* Whether it made one. */
bool dsc_is_act(ds_dtype dtype);

static inline const void *dsc_in(const ds_kernel_call *call, uint32_t i)
{
    return i < call->sig->n_in ? call->in[i].data : NULL;
}

static inline void *dsc_out(const ds_kernel_call *call, uint32_t i)
{
    return i < call->sig->n_out ? call->out[i].data : NULL;
}

/* A row of a list of the glue's. */
#define DSC_ROW(op_name, supports_fn, run_fn)                                                      \
    static const ds_kernel op_name##_kernel = {.version = DS_OP_VERSION,                           \
                                               .name = "cuda",                                     \
                                               .op = #op_name,                                     \
                                               .supports = (supports_fn),                          \
                                               .run = (run_fn)}

#define DSC_ROW_WORK(op_name, supports_fn, work_fn, run_fn)                                        \
    static const ds_kernel op_name##_kernel = {.version = DS_OP_VERSION,                           \
                                               .name = "cuda",                                     \
                                               .op = #op_name,                                     \
                                               .supports = (supports_fn),                          \
                                               .work_bytes = (work_fn),                            \
                                               .run = (run_fn)}

/* y = x·w of one matrix product in cuda_linear.c, with the kernel that linear gets: x (rows,n_in),
 * w (n_out,n_in), or (n_in,n_out) when transposed. */
typedef struct dsc_product {
    const void *x, *w;
    void *y;
    int64_t rows, n_in, n_out;
    ds_dtype dtype, y_dtype; /* of x and w; of y */
    bool transposed;
} dsc_product;
ds_status dsc_multiply(const ds_kernel_call *call, const dsc_product *p);
/* dw (+)= xᵀ·dy over rows: dw f32 (n_out,n_in), or (n_in,n_out) when transposed. */
ds_status dsc_multiply_rows(const ds_kernel_call *call, const void *x, const void *dy,
                            ds_dtype dtype, int64_t rows, int64_t n_in, int64_t n_out,
                            bool transposed, const float *dw_in, float *dw);

/* Output o becomes the content of `from`, of its dtype; nothing where that is its own. */
ds_status dsc_copy_whole(const ds_kernel_call *call, uint32_t o, const ds_tensor *from);

/* What linear_dw has beside its product: the bias's gradient, where one is asked for. */
ds_status dsc_sum_columns(const ds_kernel_call *call);

/* The kernel for a step, or NULL; of several, number `index`. */
const ds_kernel *dsc_kernel_at(const ds_kernel_sig *sig, uint32_t index);

/* The glue's lists, NULL-terminated. */
#define DSC_GLUE_LIST(X)                                                                           \
    X(norm)                                                                                        \
    X(elementwise)                                                                                 \
    X(activation)                                                                                  \
    X(linear)                                                                                      \
    X(quantized)                                                                                   \
    X(optimizer)                                                                                   \
    X(eight_bit)                                                                                   \
    X(signs)                                                                                       \
    X(collective_blocks)                                                                           \
    X(fake_quant)                                                                                  \
    X(prune)                                                                                       \
    X(frozen)                                                                                      \
    X(adafactor)                                                                                   \
    X(lamb)                                                                                        \
    X(columns)                                                                                     \
    X(muon)                                                                                        \
    X(rows)                                                                                        \
    X(reduce)                                                                                      \
    X(select)                                                                                      \
    X(route)                                                                                       \
    X(experts)                                                                                     \
    X(attention)                                                                                   \
    X(attention_part)                                                                              \
    X(paged)                                                                                       \
    X(relative)                                                                                    \
    X(recurrence)                                                                                  \
    X(sinks)                                                                                       \
    X(cross_entropy)                                                                               \
    X(logits)                                                                                      \
    X(preference)                                                                                  \
    X(embedding)                                                                                   \
    X(gradnorm)                                                                                    \
    X(move)
#define X(name) extern const ds_kernel *const dsc_##name##_kernels[];
DSC_GLUE_LIST(X)
#undef X

#endif
