/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels of fake_quant and fake_quant_rows. The arithmetic is base/quantize.h's, whose loops are
 * written to be turned into vector code: there are no others. */
#include "accel/cpu/ref/ref_real.h"
#include "base/quantize.h"
#include "base/rng.h"
#include "op/ops.h"

#include <string.h>

/* The blocks of a weight: each inside one group, in the order of the flat (O,I) weight. */
typedef struct blocks {
    int64_t groups, in_group; /* elements of a group */
    int64_t each;             /* blocks of a group */
} blocks;

static blocks blocks_of(const ds_kernel_sig *sig)
{
    const dsi_fake_quant_attrs *a = sig->attrs;
    const int64_t in_group = ds_shape_count(sig->in[0].shape) / a->groups;
    return (blocks){a->groups, in_group, (in_group + DSI_QUANT_BLOCK - 1) / DSI_QUANT_BLOCK};
}

static int64_t block_at(const blocks *b, int64_t block, size_t *n_out)
{
    const int64_t first = block % b->each * DSI_QUANT_BLOCK;
    const int64_t left = b->in_group - first;
    *n_out = (size_t)(left < DSI_QUANT_BLOCK ? left : DSI_QUANT_BLOCK);
    return block / b->each * b->in_group + first;
}

/* Where element i of the flat (O,I) weight is stored. */
static int64_t stored(const ds_kernel_call *call, int64_t i)
{
    const dsi_fake_quant_attrs *a = call->sig->attrs;
    const ds_shape s = call->in[0].meta.shape;
    return a->transposed == 0 ? i : i % s.dims[0] * s.dims[1] + i / s.dims[0];
}

static void load(const ds_kernel_call *call, int64_t at, size_t n, float *x)
{
    for (size_t i = 0; i < n; ++i) {
        x[i] = (float)ref_get(&call->in[0], stored(call, at + (int64_t)i));
    }
}

/* Workspace: a part for each block, then a scale for each group. */
static dsi_quant_part *part_of(const ds_kernel_call *call, int64_t block)
{
    return (dsi_quant_part *)call->work + block;
}

static dsi_quant_scale *scale_of(const ds_kernel_call *call, const blocks *b, int64_t group)
{
    return (dsi_quant_scale *)part_of(call, b->groups * b->each) + group;
}

static size_t fake_quant_work(const ds_kernel_sig *sig)
{
    const blocks b = blocks_of(sig);
    return (size_t)(b.groups * b.each) * sizeof(dsi_quant_part) +
           (size_t)b.groups * sizeof(dsi_quant_scale);
}

static void measure_range(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const blocks b = blocks_of(call->sig);
    float x[DSI_QUANT_BLOCK];
    (void)slot;
    for (int64_t i = begin; i < end; ++i) {
        size_t n;
        const int64_t at = block_at(&b, i, &n);
        load(call, at, n, x);
        *part_of(call, i) = dsi_quant_measure(x, n);
    }
}

static void measure_kept_range(const ds_kernel_call *call, int64_t begin, int64_t end,
                               uint32_t slot)
{
    const blocks b = blocks_of(call->sig);
    float x[DSI_QUANT_BLOCK];
    (void)slot;
    for (int64_t i = begin; i < end; ++i) {
        size_t n;
        const int64_t at = block_at(&b, i, &n);
        load(call, at, n, x);
        *part_of(call, i) = dsi_quant_measure_kept(x, n, scale_of(call, &b, i / b.each)->threshold);
    }
}

static int bits_of(const ds_kernel_call *call)
{
    return (int)((const float *)call->in[1].data)[DSI_QUANT_BITS];
}

/* Scales of all groups from their blocks' parts; with `kept` the kept ones alone are new. */
static void make_scales(const ds_kernel_call *call, bool kept)
{
    const dsi_fake_quant_attrs *a = call->sig->attrs;
    const blocks b = blocks_of(call->sig);
    for (int64_t g = 0; g < b.groups; ++g) {
        dsi_quant_scale *scale = scale_of(call, &b, g);
        dsi_quant_part all = dsi_quant_nothing();
        for (int64_t i = 0; i < b.each; ++i) {
            dsi_quant_join(&all, part_of(call, g * b.each + i));
        }
        if (kept) {
            scale->level = all.n_kept > 0.0 ? (float)(all.kept / all.n_kept) : 0.0f;
        } else {
            *scale =
                dsi_quant_scale_of(&all, (size_t)b.in_group, bits_of(call), a->asymmetric != 0);
        }
    }
}

static void draw(const ds_kernel_call *call, int64_t at, size_t n, float *noise)
{
    const dsi_fake_quant_attrs *a = call->sig->attrs;
    const int64_t *key = call->in[2].data;
    for (size_t i = 0; i < n; ++i) {
        noise[i] = dsi_rng_unit(dsi_rng_u32((uint64_t)key[0], (uint32_t)a->site, (uint32_t)key[1],
                                            (uint64_t)at + i)) -
                   0.5f;
    }
}

static void apply_range(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const dsi_fake_quant_attrs *a = call->sig->attrs;
    const blocks b = blocks_of(call->sig);
    const float mix = ((const float *)call->in[1].data)[DSI_QUANT_MIX];
    const bool noisy = a->stochastic != 0 && bits_of(call) > 2;
    float x[DSI_QUANT_BLOCK], y[DSI_QUANT_BLOCK], noise[DSI_QUANT_BLOCK];
    (void)slot;
    for (int64_t block = begin; block < end; ++block) {
        size_t n;
        const int64_t at = block_at(&b, block, &n);
        load(call, at, n, x);
        if (noisy) {
            draw(call, at, n, noise);
        }
        dsi_quant_apply(scale_of(call, &b, block / b.each), x, noisy ? noise : NULL, y, n);
        for (size_t i = 0; i < n; ++i) {
            const float value = mix != 0.0f ? mix * x[i] + (1.0f - mix) * y[i] : y[i];
            ref_set(&call->out[0], stored(call, at + (int64_t)i), value);
        }
    }
}

static void copy_range(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const size_t size = ds_dtype_bytes(call->in[0].meta.dtype);
    (void)slot;
    memcpy((char *)call->out[0].data + (size_t)begin * size,
           (const char *)call->in[0].data + (size_t)begin * size, (size_t)(end - begin) * size);
}

static ds_status fake_quant_run(const ds_kernel_call *call)
{
    const blocks b = blocks_of(call->sig);
    const int64_t n_blocks = b.groups * b.each;
    if (((const float *)call->in[1].data)[DSI_QUANT_ON] == 0.0f) {
        dsi_ref_for(call, ds_shape_count(call->in[0].meta.shape), copy_range);
        return DS_OK;
    }
    dsi_ref_for(call, n_blocks, measure_range);
    make_scales(call, false);
    if (bits_of(call) == 2) {
        dsi_ref_for(call, n_blocks, measure_kept_range);
        make_scales(call, true);
    }
    dsi_ref_for(call, n_blocks, apply_range);
    return DS_OK;
}

/* ---- rows ------------------------------------------------------------------------------------ */

static void load_row(const ds_tensor *x, int64_t at, size_t n, float *out)
{
    for (size_t i = 0; i < n; ++i) {
        out[i] = (float)ref_get(x, at + (int64_t)i);
    }
}

static void rows_range(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const dsi_fake_quant_rows_attrs *a = call->sig->attrs;
    const int64_t c = ds_shape_last(call->in[0].meta.shape);
    float x[DSI_QUANT_BLOCK];
    (void)slot;
    for (int64_t row = begin; row < end; ++row) {
        dsi_quant_part all = dsi_quant_nothing();
        for (int64_t at = 0; at < c; at += DSI_QUANT_BLOCK) {
            const size_t n = (size_t)(c - at < DSI_QUANT_BLOCK ? c - at : DSI_QUANT_BLOCK);
            load_row(&call->in[0], row * c + at, n, x);
            const dsi_quant_part part = dsi_quant_measure(x, n);
            dsi_quant_join(&all, &part);
        }
        const dsi_quant_scale scale =
            dsi_quant_scale_of(&all, (size_t)c, (int)a->bits, a->asymmetric != 0);
        for (int64_t at = 0; at < c; at += DSI_QUANT_BLOCK) {
            const size_t n = (size_t)(c - at < DSI_QUANT_BLOCK ? c - at : DSI_QUANT_BLOCK);
            load_row(&call->in[0], row * c + at, n, x);
            dsi_quant_apply(&scale, x, NULL, x, n);
            for (size_t i = 0; i < n; ++i) {
                ref_set(&call->out[0], row * c + at + (int64_t)i, x[i]);
            }
        }
    }
}

static ds_status fake_quant_rows_run(const ds_kernel_call *call)
{
    if (*(const float *)call->in[1].data == 0.0f) {
        dsi_ref_for(call, ds_shape_count(call->in[0].meta.shape), copy_range);
    } else {
        dsi_ref_for(call, ds_shape_rows(call->in[0].meta.shape), rows_range);
    }
    return DS_OK;
}

REF_KERNEL(fake_quant, fake_quant_run, fake_quant_work);
REF_KERNEL(fake_quant_rows, fake_quant_rows_run, NULL);
const ds_kernel *const DSI_REF(quant)[] = {&fake_quant_kernel, &fake_quant_rows_kernel, NULL};
