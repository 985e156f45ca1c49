/* SPDX-License-Identifier: Apache-2.0 */
/* compare, where and band: masks, and what they choose. The reference's bits: nothing is computed.
 */
#include "accel/cpu/simd/simd_kernel.h"
#include "base/half.h"

/* ---- compare --------------------------------------------------------------------------------- */
typedef struct compare_job {
    const void *a, *b; /* b NULL: value */
    uint8_t *out;
    ds_dtype type;
    int64_t kind;
    float value;
} compare_job;

/* 1 or 0 in each lane. */
DSI_INLINE vi compared(int64_t kind, vf a, vf b)
{
    const vi yes = vi_set(1);
    const vi no = vi_set(0);
    switch (kind) {
    case DSI_COMPARE_LT:
        return vi_select(vf_gt(b, a), yes, no);
    case DSI_COMPARE_LE:
        return vi_select(vf_ge(b, a), yes, no);
    case DSI_COMPARE_EQ:
        return vi_select(vf_eq(a, b), yes, no);
    case DSI_COMPARE_NE:
        return vi_select(vf_eq(a, b), no, yes);
    case DSI_COMPARE_GT:
        return vi_select(vf_gt(a, b), yes, no);
    default:
        return vi_select(vf_ge(a, b), yes, no);
    }
}

DSI_INLINE void compare_of(const compare_job *job, size_t begin, size_t end, ds_dtype type)
{
    const vf value = vf_set(job->value);
    for (size_t i = begin; i < end; i += VF_WIDTH) {
        const size_t n = end - i < VF_WIDTH ? end - i : VF_WIDTH;
        const vf a = vf_get_upto(job->a, type, i, n);
        const vf b = job->b != NULL ? vf_get_upto(job->b, type, i, n) : value;
        int32_t lanes[VF_WIDTH];
        vi_store(lanes, compared(job->kind, a, b));
        for (size_t k = 0; k < n; ++k) {
            job->out[i + k] = (uint8_t)lanes[k];
        }
    }
}

static void compare_range(const void *opaque, size_t begin, size_t end)
{
    const compare_job *job = opaque;
    DSI_BY_TYPE(job->type, compare_of(job, begin, end, T))
}

static bool compare_supports(const ds_kernel_sig *sig)
{
    return is_act_type(sig->in[0].dtype);
}

static ds_status compare_run(const ds_kernel_call *call)
{
    const dsi_compare_attrs *t = call->sig->attrs;
    const ds_tensor *b = input_at(call, 1);
    const compare_job job = {call->in[0].data,  b != NULL ? b->data : NULL,
                             call->out[0].data, call->in[0].meta.dtype,
                             t->kind,           (float)t->value};
    for_ranges(call->ctx, tensor_count(&call->out[0]), ELEMENT_GRAIN, compare_range, &job);
    return DS_OK;
}

DSI_SIMD_KERNEL(compare, compare_supports, NULL, compare_run);

/* ---- where: rows of a, each against a row of the mask ---------------------------------------- */
typedef struct where_job {
    const ds_tensor *mask, *a, *b; /* b NULL: other */
    void *out;
    size_t C;
    bool repeats; /* a row of the mask is one element */
    bool inverse;
    float other;
} where_job;

/* The mask's n elements from `at` on, or one of them n times, as lanes. */
DSI_INLINE vi mask_lanes(const where_job *job, size_t at, size_t n)
{
    int32_t lanes[VF_WIDTH] = {0};
    const bool wide = job->mask->meta.dtype == DS_DTYPE_I32;
    const size_t step = job->repeats ? 0 : 1;
    for (size_t k = 0; k < n; ++k) {
        const size_t from = at + k * step;
        lanes[k] = wide ? ((const int32_t *)job->mask->data)[from]
                        : ((const uint8_t *)job->mask->data)[from];
    }
    return vi_load(lanes);
}

DSI_INLINE void where_row(const where_job *job, size_t begin, size_t mask_at, ds_dtype type)
{
    const vf other = vf_set(job->other);
    const vi zero = vi_set(0);
    for (size_t i = 0; i < job->C; i += VF_WIDTH) {
        const size_t n = job->C - i < VF_WIDTH ? job->C - i : VF_WIDTH;
        const vi lanes = mask_lanes(job, mask_at + (job->repeats ? 0 : i), n);
        const vm set = vm_or(vi_gt(lanes, zero), vi_gt(zero, lanes));
        const vf a = vf_get_upto(job->a->data, type, begin + i, n);
        const vf b = job->b != NULL ? vf_get_upto(job->b->data, type, begin + i, n) : other;
        vf_put_upto(job->out, type, begin + i,
                    job->inverse ? vf_select(set, b, a) : vf_select(set, a, b), n);
    }
}

/* Where the mask's row for row `row` of a begins: a dim of 1 repeats. */
static size_t mask_row(ds_shape mask, ds_shape a, size_t row)
{
    size_t at = 0;
    size_t step = mask.n_dims > 0 ? (size_t)mask.dims[mask.n_dims - 1] : 1;
    for (uint32_t d = 2; d <= a.n_dims && d <= mask.n_dims; ++d) {
        const size_t n = (size_t)a.dims[a.n_dims - d];
        const size_t m = (size_t)mask.dims[mask.n_dims - d];
        at += m == 1 ? 0 : row % n * step;
        step *= m;
        row /= n;
    }
    return at;
}

static void where_block(const void *opaque, size_t first, size_t last, size_t block)
{
    const where_job *job = opaque;
    const ds_meta *a = &job->a->meta;
    (void)block;
    for (size_t row = first; row < last; ++row) {
        const size_t at = mask_row(job->mask->meta.shape, a->shape, row);
        DSI_BY_TYPE(a->dtype, where_row(job, row * job->C, at, T))
    }
}

static bool where_supports(const ds_kernel_sig *sig)
{
    return is_act_type(sig->in[1].dtype);
}

static ds_status where_run(const ds_kernel_call *call)
{
    const dsi_where_attrs *t = call->sig->attrs;
    const ds_tensor *mask = &call->in[0];
    const ds_tensor *a = &call->in[1];
    const ds_shape shape = a->meta.shape;
    const size_t C = shape.n_dims > 0 ? (size_t)shape.dims[shape.n_dims - 1] : 1;
    const size_t n_rows = C > 0 ? tensor_count(a) / C : 0;
    const where_job job = {.mask = mask,
                           .a = a,
                           .b = input_at(call, 2),
                           .out = call->out[0].data,
                           .C = C,
                           .repeats = mask->meta.shape.n_dims == 0 ||
                                      mask->meta.shape.dims[mask->meta.shape.n_dims - 1] == 1,
                           .inverse = t->inverse != 0,
                           .other = (float)t->other};
    for_rows(call->ctx, n_rows, row_blocks(n_rows, C, ELEMENT_GRAIN, 1024), where_block, &job);
    return DS_OK;
}

DSI_SIMD_KERNEL(where, where_supports, NULL, where_run);

/* ---- band: each row is a run of x between two runs of one number ----------------------------- */
typedef struct band_job {
    const char *x;
    char *out;
    size_t bytes; /* of an element */
    int64_t rows, columns, lower, upper;
    uint32_t other; /* the number's bits, as many as an element has */
} band_job;

static void put_number(const band_job *job, char *row, int64_t begin, int64_t end)
{
    for (int64_t i = begin; i < end; ++i) {
        memcpy(row + (size_t)i * job->bytes, &job->other, job->bytes);
    }
}

static int64_t between(int64_t x, int64_t low, int64_t high)
{
    return x < low ? low : x > high ? high : x;
}

static void band_block(const void *opaque, size_t first, size_t last, size_t block)
{
    const band_job *job = opaque;
    const size_t row_bytes = (size_t)job->columns * job->bytes;
    (void)block;
    for (size_t row = first; row < last; ++row) {
        const int64_t t = (int64_t)row % job->rows;
        const int64_t begin = between(t + job->lower, 0, job->columns);
        const int64_t end = between(t + job->upper + 1, begin, job->columns);
        char *out = job->out + row * row_bytes;
        const size_t skipped = (size_t)begin * job->bytes;
        if (job->x != job->out) {
            memcpy(out + skipped, job->x + row * row_bytes + skipped,
                   (size_t)(end - begin) * job->bytes);
        }
        put_number(job, out, 0, begin);
        put_number(job, out, end, job->columns);
    }
}

/* The bits of an element; the copy takes the first bytes of a little-endian word. */
static uint32_t bits_of(ds_dtype type, double x)
{
    const float f = (float)x;
    uint32_t bits;
    switch (type) {
    case DS_DTYPE_BF16:
        return dsi_f32_to_bf16(f);
    case DS_DTYPE_F16:
        return dsi_f32_to_f16(f);
    case DS_DTYPE_F32:
        memcpy(&bits, &f, sizeof bits);
        return bits;
    default:
        return (uint32_t)(int32_t)x;
    }
}

static bool band_supports(const ds_kernel_sig *sig)
{
    return sig->in[0].dtype != DS_DTYPE_F64;
}

static ds_status band_run(const ds_kernel_call *call)
{
    const dsi_band_attrs *t = call->sig->attrs;
    const ds_tensor *x = &call->in[0];
    const int64_t columns = ds_shape_last(x->meta.shape);
    const int64_t rows = x->meta.shape.dims[x->meta.shape.n_dims - 2];
    const size_t n_rows = (size_t)ds_shape_rows(x->meta.shape);
    const band_job job = {.x = x->data,
                          .out = call->out[0].data,
                          .bytes = ds_dtype_bytes(x->meta.dtype),
                          .rows = rows,
                          .columns = columns,
                          .lower = between(t->lower, -rows, columns),
                          .upper = between(t->upper, -rows - 1, columns),
                          .other = bits_of(x->meta.dtype, t->other)};
    for_rows(call->ctx, n_rows, row_blocks(n_rows, (size_t)columns, ELEMENT_GRAIN, 1024),
             band_block, &job);
    return DS_OK;
}

DSI_SIMD_KERNEL(band, band_supports, NULL, band_run);
