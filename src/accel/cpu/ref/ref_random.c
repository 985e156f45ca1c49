/* SPDX-License-Identifier: Apache-2.0 */
/* Reference kernels of dropout and noise: items are elements. */
#include "accel/cpu/ref/ref_real.h"
#include "base/rng.h"
#include "op/ops.h"

/* Where the elements of a call stand among those of all samples. */
typedef struct draw {
    const int64_t *rng;
    int64_t sample;         /* elements of a sample here */
    int64_t all;            /* of a whole one */
    int64_t row;            /* elements of a row of dim 1, where … */
    const int32_t *rows;    /* … these rows of it are here; NULL: all of them */
    int64_t width;          /* columns here, where … */
    const int32_t *columns; /* … these of n_columns are here; NULL: all of them */
    int64_t n_columns;
    uint32_t site;
} draw;

static draw draw_of(const ds_kernel_call *call, int64_t site, int64_t n_rows)
{
    const ds_shape shape = call->in[0].meta.shape;
    const int64_t sample = shape.dims[0] > 0 ? ds_shape_count(shape) / shape.dims[0] : 0;
    const bool has_rows = n_rows > 0 && sample > 0;
    const int64_t row = has_rows ? sample / shape.dims[1] : 0;
    return (draw){.rng = call->in[1].data,
                  .sample = sample,
                  .all = has_rows ? n_rows * row : sample,
                  .row = row,
                  .rows = has_rows ? call->in[2].data : NULL,
                  .site = (uint32_t)site};
}

/* Element `within` of a sample with the columns that are here, in one with all of them. */
static int64_t with_columns(const draw *d, int64_t within)
{
    return d->columns == NULL ? within
                              : within / d->width * d->n_columns + d->columns[within % d->width];
}

/* The random word of element i. */
static uint32_t word_of(const draw *d, int64_t i)
{
    const int64_t at = i % d->sample;
    const int64_t within = d->rows != NULL ? d->rows[at / d->row] * d->row + at % d->row : at;
    const int64_t all = d->columns == NULL ? d->all : d->all / d->width * d->n_columns;
    const int64_t element = (d->rng[2] + i / d->sample) * all + with_columns(d, within);
    return dsi_rng_u32((uint64_t)d->rng[0], d->site, (uint32_t)d->rng[1], (uint64_t)element);
}

static void dropout_range(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const dsi_dropout_attrs *a = call->sig->attrs;
    draw d = draw_of(call, a->site, a->n_rows);
    if (a->n_columns > 0) {
        d.width = ds_shape_last(call->in[0].meta.shape);
        d.columns = call->in[3].data;
        d.n_columns = a->n_columns;
    }
    const real factor = R(1.0) / (R(1.0) - (real)a->p);
    (void)slot;
    for (int64_t i = begin; i < end; ++i) {
        const bool keep = dsi_rng_unit(word_of(&d, i)) >= (float)a->p;
        ref_set(&call->out[0], i, keep ? ref_get(&call->in[0], i) * factor : R(0.0));
    }
}

static ds_status dropout_run(const ds_kernel_call *call)
{
    dsi_ref_for(call, ds_shape_count(call->in[0].meta.shape), dropout_range);
    return DS_OK;
}

/* In the middle of each of 2^23 parts of (0,1), so that 1 - u is one of them too. */
static real uniform(uint32_t word)
{
    return ((real)(word >> 9) + R(0.5)) * R(0x1p-23);
}

static real noisy(const dsi_noise_attrs *a, real x, real u)
{
    switch (a->kind) {
    case DSI_NOISE_FACTOR:
        return x * (R(1.0) + (real)a->amount * (R(2.0) * u - R(1.0)));
    case DSI_NOISE_GUMBEL:
        return x - r_log(-r_log(u));
    default:
        return u;
    }
}

static void noise_range(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const dsi_noise_attrs *a = call->sig->attrs;
    const draw d = draw_of(call, a->site, a->n_rows);
    (void)slot;
    for (int64_t i = begin; i < end; ++i) {
        ref_set(&call->out[0], i, noisy(a, ref_get(&call->in[0], i), uniform(word_of(&d, i))));
    }
}

static ds_status noise_run(const ds_kernel_call *call)
{
    dsi_ref_for(call, ds_shape_count(call->in[0].meta.shape), noise_range);
    return DS_OK;
}

static ds_status rng_ahead_run(const ds_kernel_call *call)
{
    enum { SEED, STEP, SAMPLE, N = 4 };
    const int64_t *rng = call->in[0].data;
    int64_t *out = call->out[0].data;
    for (int i = 0; i < N; ++i) {
        out[i] = rng[i];
    }
    out[SAMPLE] += ((const dsi_rng_ahead_attrs *)call->sig->attrs)->samples;
    return DS_OK;
}

REF_KERNEL(dropout, dropout_run, NULL);
REF_KERNEL(noise, noise_run, NULL);
REF_KERNEL(rng_ahead, rng_ahead_run, NULL);
const ds_kernel *const DSI_REF(random)[] = {&dropout_kernel, &noise_kernel, &rng_ahead_kernel,
                                            NULL};
