/* SPDX-License-Identifier: Apache-2.0 */
/* One operator with operands of a training step, timed. See measure.h. */
#include "cost/measure.h"

#include "accel/cpu/cpu_features.h"
#include "accel/cpu/registry.h"
#include "base/clock.h"
#include "base/half.h"
#include "op/ops.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_RUNS = 24, LEAST_RUNS = 3, ALIGN = 64 };

typedef union any_attrs {
    dsi_linear_attrs linear;
    dsi_linear_dw_attrs linear_dw;
    dsi_attention_attrs attention;
    dsi_linear_ce_attrs ce;
    dsi_ce_backward_attrs ce_backward;
    dsi_norm_attrs norm;
    dsi_norm_backward_attrs norm_backward;
    dsi_act_attrs act;
    dsi_embedding_dw_attrs embedding_dw;
    dsi_optim_attrs optim;
    dsi_cast_attrs cast;
    dsi_rope_attrs rope;
} any_attrs;

/* A signature under construction, then with memory. */
struct dsi_measure_trial {
    ds_ctx *ctx;
    const ds_op *op;
    any_attrs attrs;
    uint32_t n_in;
    ds_meta in[DS_MAX_IN], out[DS_MAX_OUT];
    int64_t ids; /* integers of operands are below */
    void *memory;
    ds_tensor in_data[DS_MAX_IN], out_data[DS_MAX_OUT];
    ds_kernel_sig sig;
    const ds_kernel *kernel;
    ds_kernel_call call;
    dsi_work work;
};

static ds_meta meta(ds_dtype dtype, ds_shape shape)
{
    return (ds_meta){dtype, shape};
}

static void operand(dsi_measure_trial *t, ds_meta m)
{
    t->in[t->n_in++] = m;
}

static void absent(dsi_measure_trial *t)
{
    operand(t, (ds_meta){0});
}

/* Rows as (batch, 1024, columns) would be: two dimensions suffice for these operators. */
static void make_linear(dsi_measure_trial *t, const dsi_measure_point *p, ds_dtype act)
{
    const bool transposed = (p->variant & 1) != 0;
    const bool full = (p->variant & 2) != 0; /* bias, and an activation whose input is saved */
    t->op = &dsi_op_linear;
    t->attrs.linear = (dsi_linear_attrs){.transposed = transposed,
                                         .activation = full ? DSI_ACT_GELU_TANH : DSI_ACT_NONE,
                                         .save_pre = full};
    operand(t, meta(act, ds_shape_2d(p->m, p->k)));
    operand(t, meta(act, transposed ? ds_shape_2d(p->k, p->n) : ds_shape_2d(p->n, p->k)));
    if (full) {
        operand(t, meta(act, ds_shape_1d(p->n)));
    }
}

static void make_linear_dw(dsi_measure_trial *t, const dsi_measure_point *p, ds_dtype act)
{
    t->op = &dsi_op_linear_dw;
    t->attrs.linear_dw =
        (dsi_linear_dw_attrs){.transposed = p->variant & 1, .with_bias = (p->variant & 2) != 0};
    operand(t, meta(act, ds_shape_2d(p->k, p->m)));
    operand(t, meta(act, ds_shape_2d(p->k, p->n)));
}

/* variant: heads. m: queries of all heads. */
static void make_attention(dsi_measure_trial *t, const dsi_measure_point *p, ds_dtype act)
{
    const int64_t heads = p->variant;
    const int64_t batch = p->m / (heads * p->n);
    const ds_meta packed = meta(act, ds_shape_3d(batch, p->n, 3 * heads * p->k));
    const ds_meta y = meta(act, ds_shape_3d(batch, p->n, heads * p->k));
    t->attrs.attention = (dsi_attention_attrs){.n_heads = heads,
                                               .n_kv_heads = heads,
                                               .head_dim = p->k,
                                               .packed = 1,
                                               .causal = 1,
                                               .scale = 0.125};
    if (p->op_class == DS_CLASS_ATTENTION) {
        t->op = &dsi_op_attention;
        operand(t, packed);
        return;
    }
    t->op = &dsi_op_attention_backward;
    operand(t, y);
    operand(t, packed);
    absent(t);
    absent(t);
    operand(t, y);
    operand(t, meta(DS_DTYPE_F32, ds_shape_3d(batch, heads, p->n)));
}

static void make_loss(dsi_measure_trial *t, const dsi_measure_point *p, ds_dtype act)
{
    const ds_meta x = meta(act, ds_shape_2d(p->m, p->k));
    const ds_meta w = meta(act, ds_shape_2d(p->n, p->k));
    const ds_meta targets = meta(DS_DTYPE_I32, ds_shape_1d(p->m));
    t->ids = p->n;
    if (p->op_class == DS_CLASS_LOSS) {
        t->op = &dsi_op_linear_cross_entropy;
        t->attrs.ce = (dsi_linear_ce_attrs){.ce.ignore_index = -100};
        operand(t, x);
        operand(t, w);
        operand(t, targets);
        return;
    }
    t->op = &dsi_op_linear_cross_entropy_backward;
    t->attrs.ce_backward = (dsi_ce_backward_attrs){.ce = {.ignore_index = -100}};
    operand(t, meta(DS_DTYPE_F32, ds_shape_of(0, NULL)));
    operand(t, x);
    operand(t, w);
    operand(t, targets);
    operand(t, meta(DS_DTYPE_F32, ds_shape_1d(p->m)));
    operand(t, meta(DS_DTYPE_F32, ds_shape_of(0, NULL)));
}

/* variant 0: layer norm, 1: RMS norm; rows m of n. */
static void make_norm(dsi_measure_trial *t, const dsi_measure_point *p, ds_dtype act)
{
    const bool rms = p->variant == 1;
    const bool backward = p->op_class == DS_CLASS_NORM_BACKWARD;
    const ds_meta x = meta(act, ds_shape_2d(p->m, p->n));
    const ds_meta stat = meta(DS_DTYPE_F32, ds_shape_1d(p->m));
    t->attrs.norm = (dsi_norm_attrs){.eps = 1e-5};
    if (backward) {
        operand(t, x);
    }
    operand(t, x);
    operand(t, meta(act, ds_shape_1d(p->n)));
    if (!backward) {
        t->op = rms ? &dsi_op_rms_norm : &dsi_op_layer_norm;
        if (!rms) {
            operand(t, meta(act, ds_shape_1d(p->n)));
        }
        return;
    }
    t->op = rms ? &dsi_op_rms_norm_backward : &dsi_op_layer_norm_backward;
    t->attrs.norm_backward = (dsi_norm_backward_attrs){.has_bias = !rms};
    operand(t, stat);
    if (!rms) {
        operand(t, stat);
    }
    operand(t, x);
}

/* variant 0: gradient of GELU, 1: SwiGLU, 2: its gradient, 3: a sum. */
static void make_elementwise(dsi_measure_trial *t, const dsi_measure_point *p, ds_dtype act)
{
    static const ds_op *const ops[] = {&dsi_op_activation_backward, &dsi_op_glu,
                                       &dsi_op_glu_backward, &dsi_op_add};
    const ds_meta x = meta(act, ds_shape_2d(p->m, p->n));
    t->op = ops[p->variant & 3];
    t->attrs.act = (dsi_act_attrs){.kind = p->variant == 0 ? DSI_ACT_GELU_TANH : DSI_ACT_SILU};
    for (int i = 0; i < (p->variant == 2 ? 3 : 2); ++i) {
        operand(t, x);
    }
}

/* m ids of a table of k rows, n columns. */
static void make_embedding(dsi_measure_trial *t, const dsi_measure_point *p, ds_dtype act)
{
    t->ids = p->k;
    if (p->op_class == DS_CLASS_EMBEDDING) {
        t->op = &dsi_op_embedding;
        operand(t, meta(act, ds_shape_2d(p->k, p->n)));
        operand(t, meta(DS_DTYPE_I32, ds_shape_1d(p->m)));
        return;
    }
    t->op = &dsi_op_embedding_dw;
    t->attrs.embedding_dw = (dsi_embedding_dw_attrs){.n_rows = p->k};
    operand(t, meta(DS_DTYPE_I32, ds_shape_1d(p->m)));
    operand(t, meta(act, ds_shape_2d(p->m, p->n)));
}

/* m elements. variant of REDUCE 0: largest magnitude, 1: sum of squares. Adam's moments are f32,
 * and so is its master beside 16-bit parameters. */
static void make_update(dsi_measure_trial *t, const dsi_measure_point *p, ds_dtype act)
{
    const ds_meta x = meta(act, ds_shape_1d(p->m));
    const ds_meta wide = meta(DS_DTYPE_F32, ds_shape_1d(p->m));
    const ds_meta one = meta(DS_DTYPE_F32, ds_shape_of(0, NULL));
    if (p->op_class == DS_CLASS_REDUCE) {
        t->op = p->variant == 0 ? &dsi_op_abs_max : &dsi_op_sum_squares;
        operand(t, x);
        if (p->variant != 0) {
            operand(t, one);
        }
        return;
    }
    t->op = &dsi_op_adam;
    t->attrs.optim = (dsi_optim_attrs){.eps = 1e-8, .adamw = 1};
    operand(t, x);
    operand(t, x);
    operand(t, meta(DS_DTYPE_F32, ds_shape_1d(DSI_HYPER_COUNT)));
    operand(t, one);
    if (act == DS_DTYPE_F32) {
        absent(t);
    } else {
        operand(t, wide);
    }
    operand(t, wide);
    operand(t, wide);
}

static void make_copy(dsi_measure_trial *t, const dsi_measure_point *p, ds_dtype act)
{
    t->op = &dsi_op_cast;
    t->attrs.cast = (dsi_cast_attrs){.dtype = act == DS_DTYPE_F32 ? DS_DTYPE_BF16 : DS_DTYPE_F32};
    operand(t, meta(act, ds_shape_1d(p->m)));
}

static void make_trial(dsi_measure_trial *t, const dsi_measure_point *p, ds_dtype act)
{
    switch (p->op_class) {
    case DS_CLASS_LINEAR:
        make_linear(t, p, act);
        break;
    case DS_CLASS_LINEAR_DW:
        make_linear_dw(t, p, act);
        break;
    case DS_CLASS_LOSS:
    case DS_CLASS_LOSS_BACKWARD:
        make_loss(t, p, act);
        break;
    case DS_CLASS_ATTENTION:
    case DS_CLASS_ATTENTION_BACKWARD:
        make_attention(t, p, act);
        break;
    case DS_CLASS_NORM:
    case DS_CLASS_NORM_BACKWARD:
        make_norm(t, p, act);
        break;
    case DS_CLASS_EMBEDDING:
    case DS_CLASS_EMBEDDING_BACKWARD:
        make_embedding(t, p, act);
        break;
    case DS_CLASS_REDUCE:
    case DS_CLASS_OPTIMIZER:
        make_update(t, p, act);
        break;
    case DS_CLASS_COPY:
        make_copy(t, p, act);
        break;
    default:
        make_elementwise(t, p, act);
        break;
    }
}

/* ---- memory ---- */

/* Never zero, magnitudes near 1: tile products are faster on zeros. */
static float value_at(size_t i)
{
    const uint64_t x = (i + 1) * 0x9E3779B97F4A7C15u;
    const float unit = (float)(x >> 40) * 0x1p-24f;
    return (x & 1) != 0 ? unit + 0.25f : -unit - 0.25f;
}

static void fill(ds_tensor tensor, int64_t ids)
{
    const size_t n = (size_t)ds_shape_count(tensor.meta.shape);
    const ds_dtype dtype = tensor.meta.dtype;
    for (size_t i = 0; i < n; ++i) {
        if (dtype == DS_DTYPE_I32) {
            ((int32_t *)tensor.data)[i] = (int32_t)((i * 7919u) % (uint64_t)(ids > 0 ? ids : 1));
        } else if (dtype == DS_DTYPE_F32) {
            ((float *)tensor.data)[i] = value_at(i);
        } else if (dtype == DS_DTYPE_BF16) {
            ((uint16_t *)tensor.data)[i] = dsi_f32_to_bf16(value_at(i));
        } else if (dtype == DS_DTYPE_F16) {
            ((uint16_t *)tensor.data)[i] = dsi_f32_to_f16(value_at(i));
        }
    }
}

static size_t rounded(size_t bytes)
{
    return (bytes + 2 * ALIGN - 1) / ALIGN * ALIGN;
}

/* Operands one after the other, then the workspace; written cells are inputs. */
static ds_status place(dsi_measure_trial *t, size_t work_bytes, void **work)
{
    ds_tensor *in = t->in_data;
    ds_tensor *out = t->out_data;
    size_t total = rounded(work_bytes);
    for (uint32_t i = 0; i < t->n_in; ++i) {
        total += rounded(ds_meta_bytes(t->in[i]));
    }
    for (uint32_t i = 0; i < t->op->n_out; ++i) {
        total += rounded(ds_meta_bytes(t->out[i]));
    }
    unsigned char *at = aligned_alloc(ALIGN, total);
    if (at == NULL) {
        return ds_fail(t->ctx, DS_ERR_NOMEM, "no memory for %zu bytes to measure %s", total,
                       t->op->name);
    }
    memset(at, 0, total);
    t->memory = at;
    for (uint32_t i = 0; i < t->n_in; ++i) {
        const bool given = t->in[i].dtype != DS_DTYPE_NONE;
        in[i] = (ds_tensor){given ? at : NULL, t->in[i]};
        at += rounded(ds_meta_bytes(t->in[i]));
        fill(in[i], t->ids);
    }
    for (uint32_t i = 0; i < t->op->n_out; ++i) {
        const int8_t cell = t->op->writes != NULL ? t->op->writes[i] : -1;
        const bool given = t->out[i].dtype != DS_DTYPE_NONE;
        out[i] = (ds_tensor){cell >= 0 ? in[cell].data : given ? at : NULL, t->out[i]};
        at += rounded(ds_meta_bytes(t->out[i]));
    }
    *work = at;
    return DS_OK;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a;
    const double y = *(const double *)b;
    return (x > y) - (x < y);
}

static void cost_of(dsi_measure_trial *t)
{
    ds_meta out[DS_MAX_OUT];
    ds_cost cost = {0};
    memcpy(out, t->out, sizeof out);
    const ds_infer call = {.op = t->op,
                           .attrs = &t->attrs,
                           .n_in = t->n_in,
                           .in = t->in,
                           .n_out = t->op->n_out,
                           .out = out};
    if (t->op->cost != NULL) {
        t->op->cost(&call, &cost);
    } else {
        for (uint32_t i = 0; i < t->n_in + t->op->n_out; ++i) {
            cost.bytes += (double)ds_meta_bytes(i < t->n_in ? t->in[i] : t->out[i - t->n_in]);
        }
    }
    t->work = dsi_work_of(&t->sig, &cost);
}

static ds_status prepare(dsi_measure_trial *t)
{
    void *work = NULL;
    ds_infer infer = {.ctx = t->ctx,
                      .op = t->op,
                      .attrs = &t->attrs,
                      .n_in = t->n_in,
                      .in = t->in,
                      .n_out = t->op->n_out,
                      .out = t->out};
    DS_TRY(t->op->infer(&infer));
    t->sig = (ds_kernel_sig){.op = t->op,
                             .attrs = &t->attrs,
                             .n_in = t->n_in,
                             .n_out = t->op->n_out,
                             .in = t->in,
                             .out = t->out,
                             .n_threads = ds_ctx_n_threads(t->ctx)};
    t->kernel = dsi_cpu_kernel_choose(&t->sig, dsi_cpu_isa());
    if (t->kernel == NULL) {
        return ds_fail(t->ctx, DS_ERR_UNSUPPORTED, "no kernel of %s to measure", t->op->name);
    }
    cost_of(t);
    DS_TRY(place(t, t->kernel->work_bytes != NULL ? t->kernel->work_bytes(&t->sig) : 0, &work));
    t->call = (ds_kernel_call){t->ctx, &t->sig, t->in_data, t->out_data, work};
    return t->kernel->run(&t->call); /* warms up */
}

ds_status dsi_measure_open(ds_ctx *ctx, const dsi_measure_point *point, ds_dtype dtype,
                           dsi_measure_trial **trial_out)
{
    dsi_measure_trial *t = calloc(1, sizeof *t);
    if (t == NULL) {
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory to measure");
    }
    t->ctx = ctx;
    make_trial(t, point, dtype);
    const ds_status status = prepare(t);
    if (status < 0) {
        dsi_measure_close(&t);
        return status;
    }
    *trial_out = t;
    return DS_OK;
}

void dsi_measure_close(dsi_measure_trial **trial)
{
    if (*trial != NULL) {
        free((*trial)->memory);
        free(*trial);
        *trial = NULL;
    }
}

const dsi_work *dsi_measure_work(const dsi_measure_trial *trial)
{
    return &trial->work;
}

ds_status dsi_measure_run(dsi_measure_trial *trial, double *seconds_out)
{
    const double start = dsi_clock_seconds();
    DS_TRY(trial->kernel->run(&trial->call));
    *seconds_out = dsi_clock_seconds() - start;
    return DS_OK;
}

ds_status dsi_measure_median(dsi_measure_trial *trial, double seconds,
                             dsi_measure_sample *sample_out)
{
    double runs[MOST_RUNS];
    uint32_t n = 0;
    double spent = 0.0;
    while (n < LEAST_RUNS || (n < MOST_RUNS && spent < seconds)) {
        DS_TRY(dsi_measure_run(trial, &runs[n]));
        spent += runs[n++];
    }
    qsort(runs, n, sizeof runs[0], by_value);
    *sample_out = (dsi_measure_sample){.work = trial->work, .seconds = runs[n / 2]};
    return DS_OK;
}
