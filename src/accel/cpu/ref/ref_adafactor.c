/* SPDX-License-Identifier: Apache-2.0 */
/* Reference kernels of Adafactor: docs/internals/optim.md, operation by operation. Means are sums
 * in fp64 in the order of the elements, so that they are the same however the work is split. */
#include "accel/cpu/ref/ref_real.h"
#include "base/exact_bins.h"
#include "op/ops.h"

enum { IN_MOMENT, IN_GRAD, IN_HYPER, IN_FACTOR };
enum { OF_GRAD, OF_FACTOR, OF_ROWS, OF_COLUMNS };
enum {
    IN_PARAM,
    IN_DIRECTION,
    UPDATE_HYPER,
    IN_DIRECTION_SQUARES,
    IN_MASTER,
    IN_STATE,
    IN_SQUARES
};
enum { STRIP = 64 };

static float scalar(const ds_tensor *t)
{
    return *(const float *)t->data;
}

static float moment(const ds_kernel_call *call, int64_t i, float mean)
{
    const float b2 = ((const float *)call->in[IN_HYPER].data)[DSI_HYPER_BETA2];
    return fmaf(b2, ref_get(&call->in[IN_MOMENT], i), (1.0f - b2) * mean);
}

static float square(const ds_kernel_call *call, int64_t i, float eps)
{
    const float g = ref_get(&call->in[IN_GRAD], i) * scalar(&call->in[IN_FACTOR]);
    return fmaf(g, g, eps);
}

static void rows_range(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const dsi_adafactor_attrs *a = call->sig->attrs;
    const ds_shape shape = call->in[IN_GRAD].meta.shape;
    const int64_t n = shape.n_dims > 1 ? ds_shape_last(shape) : 1;
    (void)slot;
    for (int64_t r = begin; r < end; ++r) {
        double sum = 0.0;
        for (int64_t i = 0; i < n; ++i) {
            sum += (double)square(call, r * n + i, (float)a->eps);
        }
        ref_set(&call->out[0], r, moment(call, r, (float)(sum / (double)n)));
    }
}

/* Strips of columns begin … end - 1, of all matrices of a stack. */
static void columns_range(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const dsi_adafactor_attrs *a = call->sig->attrs;
    const ds_shape shape = call->in[IN_GRAD].meta.shape;
    const int64_t rows = shape.dims[shape.n_dims - 2], columns = shape.dims[shape.n_dims - 1];
    const int64_t strips = (columns + STRIP - 1) / STRIP;
    (void)slot;
    for (int64_t s = begin; s < end; ++s) {
        const int64_t matrix = s / strips, first = s % strips * STRIP;
        const int64_t n = columns - first < STRIP ? columns - first : STRIP;
        double sums[STRIP] = {0.0};
        for (int64_t r = 0; r < rows; ++r) {
            for (int64_t i = 0; i < n; ++i) {
                sums[i] +=
                    (double)square(call, (matrix * rows + r) * columns + first + i, (float)a->eps);
            }
        }
        for (int64_t i = 0; i < n; ++i) {
            const int64_t at = matrix * columns + first + i;
            ref_set(&call->out[0], at, moment(call, at, (float)(sums[i] / (double)rows)));
        }
    }
}

static float mean_of_rows(const ds_tensor *of, int64_t first, int64_t n)
{
    double sum = 0.0;
    for (int64_t i = 0; i < n; ++i) {
        sum += (double)ref_get(of, first + i);
    }
    return (float)(sum / (double)n);
}

/* Rows begin … end - 1 of all matrices; of a vector its elements. */
static void direction_range(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const ds_shape shape = call->in[OF_GRAD].meta.shape;
    const bool factored = shape.n_dims > 1;
    const int64_t n = factored ? ds_shape_last(shape) : 1;
    const int64_t rows = factored ? shape.dims[shape.n_dims - 2] : 1;
    const float factor = scalar(&call->in[OF_FACTOR]);
    float mean = 0.0f;
    (void)slot;
    for (int64_t r = begin; r < end; ++r) {
        const float own = ref_get(&call->in[OF_ROWS], r);
        if (factored && (r == begin || r % rows == 0)) {
            mean = mean_of_rows(&call->in[OF_ROWS], r / rows * rows, rows);
        }
        const float of_row = 1.0f / sqrtf(factored ? own / mean : own);
        for (int64_t i = 0; i < n; ++i) {
            const float g = ref_get(&call->in[OF_GRAD], r * n + i) * factor;
            const float both =
                factored ? of_row * (1.0f / sqrtf(ref_get(&call->in[OF_COLUMNS], r / rows * n + i)))
                         : of_row;
            ref_set(&call->out[0], r * n + i, both * g);
        }
    }
}

/* The root of the mean of squares whose exact sum is in bins. */
static float root_mean(const ds_kernel_call *call, uint32_t in, int64_t n)
{
    return (float)sqrt(dsi_exact_bins_total(call->in[in].data) / (double)n);
}

static void update_range(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const dsi_adafactor_attrs *a = call->sig->attrs;
    const float *hyper = call->in[UPDATE_HYPER].data;
    const float clip = root_mean(call, IN_DIRECTION_SQUARES, a->count) / (float)a->clip_threshold;
    const float size = root_mean(call, IN_SQUARES, a->count), least = (float)a->scale_eps;
    const float scale = a->scales == 0 ? 1.0f : size > least ? size : least;
    const float lr = scale * hyper[DSI_HYPER_LR];
    const float step = lr / (clip > 1.0f ? clip : 1.0f);
    const float decay = 1.0f - lr * hyper[DSI_HYPER_WEIGHT_DECAY];
    const float b1 = hyper[DSI_HYPER_BETA1];
    (void)slot;
    for (int64_t i = begin; i < end; ++i) {
        const float p = ref_get(&call->in[ref_has(call, IN_MASTER) ? IN_MASTER : IN_PARAM], i);
        float u = ref_get(&call->in[IN_DIRECTION], i) * step;
        if (ref_has(call, IN_STATE)) {
            u = fmaf(b1, ref_get(&call->in[IN_STATE], i), (1.0f - b1) * u);
            ref_set(&call->out[2], i, u);
        }
        const float next = fmaf(p, decay, -u);
        ref_set(&call->out[0], i, next);
        if (ref_out(call, 1) != NULL) {
            ref_set(&call->out[1], i, next);
        }
    }
}

static int64_t rows_of(ds_shape shape)
{
    return shape.n_dims > 1 ? ds_shape_rows(shape) : ds_shape_count(shape);
}

static ds_status adafactor_rows_run(const ds_kernel_call *call)
{
    dsi_ref_for(call, rows_of(call->in[IN_GRAD].meta.shape), rows_range);
    return DS_OK;
}

static ds_status adafactor_columns_run(const ds_kernel_call *call)
{
    const ds_shape shape = call->in[IN_GRAD].meta.shape;
    const int64_t columns = ds_shape_last(shape);
    const int64_t matrices = ds_shape_rows(shape) / shape.dims[shape.n_dims - 2];
    dsi_ref_for(call, matrices * ((columns + STRIP - 1) / STRIP), columns_range);
    return DS_OK;
}

static ds_status adafactor_direction_run(const ds_kernel_call *call)
{
    dsi_ref_for(call, rows_of(call->in[OF_GRAD].meta.shape), direction_range);
    return DS_OK;
}

static ds_status adafactor_run(const ds_kernel_call *call)
{
    dsi_ref_for(call, ds_shape_count(call->in[IN_PARAM].meta.shape), update_range);
    return DS_OK;
}

#define ADAFACTOR_KERNEL(op_name)                                                                  \
    static const ds_kernel op_name##_kernel = {.version = DS_OP_VERSION,                           \
                                               .name = "ref",                                      \
                                               .op = #op_name,                                     \
                                               .needs = DS_ISA_REF,                                \
                                               .run = op_name##_run}

ADAFACTOR_KERNEL(adafactor_rows);
ADAFACTOR_KERNEL(adafactor_columns);
ADAFACTOR_KERNEL(adafactor_direction);
ADAFACTOR_KERNEL(adafactor);

const ds_kernel *const DSI_REF(adafactor)[] = {&adafactor_rows_kernel, &adafactor_columns_kernel,
                                               &adafactor_direction_kernel, &adafactor_kernel,
                                               NULL};
