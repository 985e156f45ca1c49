/* SPDX-License-Identifier: Apache-2.0 */
/* Forms of one computation agree bit for bit in fp32 on the reference kernels: fused and unfused,
 * packed and split, masked and separate, whole and by samples; kept logits do so on every kernel.
 * labels: slow */
#include "accel/cpu/cpu_features.h"
#include "accel/cpu/registry.h"
#include "base/rng.h"
#include "common/check.h"
#include "ir/graph.h"
#include "op/harness.h"
#include "op/isa.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_TENSORS = 64 };

typedef struct fixture {
    ds_ctx *ctx;
    ds_isa isa; /* of the kernels that run; REF: reference kernels */
    void *memory[MOST_TENSORS];
    uint32_t n;
} fixture;

static ds_tensor new_tensor(fixture *f, ds_dtype dtype, ds_shape shape)
{
    const ds_tensor t = {NULL, {dtype, shape}};
    assert_true(f->n < MOST_TENSORS);
    void *data = calloc(1, ds_meta_bytes(t.meta) + 8);
    assert_non_null(data);
    f->memory[f->n++] = data;
    return (ds_tensor){data, t.meta};
}

static void free_tensors(fixture *f)
{
    while (f->n > 0) {
        free(f->memory[--f->n]);
    }
}

static ds_tensor noise(fixture *f, ds_shape shape, uint32_t site)
{
    const ds_tensor t = new_tensor(f, DS_DTYPE_F32, shape);
    for (int64_t i = 0; i < ds_shape_count(shape); ++i) {
        ((float *)t.data)[i] = dsi_rng_normal(17, site, (uint64_t)i);
    }
    return t;
}

static ds_tensor integers(fixture *f, ds_shape shape, const int32_t *values)
{
    const ds_tensor t = new_tensor(f, DS_DTYPE_I32, shape);
    memcpy(t.data, values, ds_meta_bytes(t.meta));
    return t;
}

static ds_tensor random_state(fixture *f, int64_t sample)
{
    const ds_tensor t = new_tensor(f, DS_DTYPE_I64, ds_shape_1d(4));
    ((int64_t *)t.data)[0] = 99;
    ((int64_t *)t.data)[1] = 4;
    ((int64_t *)t.data)[2] = sample;
    return t;
}

/* Runs the fixture's kernel; outputs are allocated. */
static void run(fixture *f, const ds_op *op, const void *attrs, const ds_tensor *in, uint32_t n_in,
                ds_tensor *out)
{
    ds_meta in_meta[DS_MAX_IN];
    ds_meta out_meta[DS_MAX_OUT];
    for (uint32_t i = 0; i < n_in; ++i) {
        in_meta[i] = in[i].meta;
    }
    CHECK_OK(f->ctx, dsi_graph_infer(f->ctx, op, attrs, in_meta, n_in, out_meta));
    for (uint32_t i = 0; i < op->n_out; ++i) {
        out[i] = (ds_tensor){0};
        if (out_meta[i].dtype != DS_DTYPE_NONE) {
            out[i] = new_tensor(f, out_meta[i].dtype, out_meta[i].shape);
        }
    }
    const ds_kernel_sig sig = {op, attrs, n_in, op->n_out, in_meta, out_meta, 2};
    const ds_kernel *kernel =
        f->isa == DS_ISA_REF ? op_reference(&sig) : dsi_cpu_kernel_choose(&sig, f->isa);
    assert_non_null(kernel);
    const size_t bytes = kernel->work_bytes != NULL ? kernel->work_bytes(&sig) : 0;
    void *work = aligned_alloc(64, (bytes + 64) / 64 * 64);
    assert_non_null(work);
    const ds_kernel_call call = {f->ctx, &sig, in, out, work};
    CHECK_OK(f->ctx, kernel->run(&call));
    free(work);
}

static ds_tensor run1(fixture *f, const ds_op *op, const void *attrs, const ds_tensor *in,
                      uint32_t n_in)
{
    ds_tensor out[DS_MAX_OUT];
    run(f, op, attrs, in, n_in, out);
    return out[0];
}

static ds_tensor add(fixture *f, ds_tensor a, ds_tensor b)
{
    const ds_tensor in[2] = {a, b};
    return run1(f, &dsi_op_add, NULL, in, 2);
}

static void same_bits(ds_tensor a, ds_tensor b)
{
    assert_true(a.data != b.data && ds_meta_bytes(a.meta) == ds_meta_bytes(b.meta));
    assert_memory_equal(a.data, b.data, ds_meta_bytes(a.meta));
}

/* Rows [start, start+n) of the first dim, as a view. */
static ds_tensor rows(ds_tensor t, int64_t start, int64_t n)
{
    const size_t each = ds_meta_bytes(t.meta) / (size_t)t.meta.shape.dims[0];
    t.data = (char *)t.data + (size_t)start * each;
    t.meta.shape.dims[0] = n;
    return t;
}

static const ds_tensor absent;

static void fused_linear_equals_its_parts(void **state)
{
    fixture *f = *state;
    const ds_tensor x = noise(f, ds_shape_2d(7, 33), 1);
    const ds_tensor w = noise(f, ds_shape_2d(33, 40), 2);
    const ds_tensor bias = noise(f, ds_shape_1d(40), 3);
    const ds_tensor residual = noise(f, ds_shape_2d(7, 40), 4);
    const dsi_linear_attrs fused = {
        .transposed = 1, .activation = DSI_ACT_GELU_TANH, .save_pre = 1};
    const dsi_linear_attrs plain = {.transposed = 1};
    const dsi_act_attrs act = {.kind = DSI_ACT_GELU_TANH};
    const ds_tensor in[4] = {x, w, bias, residual};
    ds_tensor out[DS_MAX_OUT];
    run(f, &dsi_op_linear, &fused, in, 4, out);
    const ds_tensor pre = run1(f, &dsi_op_linear, &plain, in, 3);
    same_bits(out[1], pre);
    same_bits(out[0], add(f, run1(f, &dsi_op_activation, &act, &pre, 1), residual));
}

static void accumulating_forms_equal_a_sum(void **state)
{
    fixture *f = *state;
    const ds_tensor x = noise(f, ds_shape_2d(19, 33), 1);
    const ds_tensor dy = noise(f, ds_shape_2d(19, 40), 2);
    const ds_tensor dw_in = noise(f, ds_shape_2d(40, 33), 3);
    const ds_tensor dbias_in = noise(f, ds_shape_1d(40), 4);
    const dsi_linear_dw_attrs attrs = {.with_bias = 1};
    const ds_tensor in[4] = {x, dy, dw_in, dbias_in};
    ds_tensor fused[DS_MAX_OUT];
    ds_tensor plain[DS_MAX_OUT];
    run(f, &dsi_op_linear_dw, &attrs, in, 4, fused);
    run(f, &dsi_op_linear_dw, &attrs, in, 2, plain);
    same_bits(fused[0], add(f, plain[0], dw_in));
    same_bits(fused[1], add(f, plain[1], dbias_in));
}

static void norm_backward_adds_the_residual_gradient(void **state)
{
    fixture *f = *state;
    const ds_tensor x = noise(f, ds_shape_2d(9, 33), 1);
    const ds_tensor w = noise(f, ds_shape_1d(33), 2);
    const ds_tensor dy = noise(f, ds_shape_2d(9, 33), 3);
    const ds_tensor dres = noise(f, ds_shape_2d(9, 33), 4);
    const dsi_norm_attrs eps = {.eps = 1e-5};
    const dsi_norm_backward_attrs no_bias = {0};
    const ds_tensor forward_in[2] = {x, w};
    ds_tensor y[DS_MAX_OUT];
    run(f, &dsi_op_layer_norm, &eps, forward_in, 2, y);
    const ds_tensor layer[6] = {dy, x, w, y[1], y[2], dres};
    same_bits(run1(f, &dsi_op_layer_norm_backward, &no_bias, layer, 6),
              add(f, run1(f, &dsi_op_layer_norm_backward, &no_bias, layer, 5), dres));
    run(f, &dsi_op_rms_norm, &eps, forward_in, 2, y);
    const ds_tensor rms[5] = {dy, x, w, y[1], dres};
    same_bits(run1(f, &dsi_op_rms_norm_backward, &eps, rms, 5),
              add(f, run1(f, &dsi_op_rms_norm_backward, &eps, rms, 4), dres));
}

/* The fused loss equals projection, then loss; so do its gradients. */
static void fused_loss_equals_its_parts(void **state)
{
    fixture *f = *state;
    const int32_t t[6] = {3, 0, -100, 66, 12, 3};
    const dsi_ce_attrs ce = {.ignore_index = -100};
    const dsi_linear_attrs linear = {0};
    const ds_tensor targets = integers(f, ds_shape_1d(6), t);
    const ds_tensor in[3] = {noise(f, ds_shape_2d(6, 33), 1), noise(f, ds_shape_2d(67, 33), 2),
                             targets};
    ds_tensor fused[DS_MAX_OUT];
    ds_tensor parts[DS_MAX_OUT];
    run(f, &dsi_op_linear_cross_entropy, &(const dsi_linear_ce_attrs){.ce = ce}, in, 3, fused);
    const ds_tensor logits = run1(f, &dsi_op_linear, &linear, in, 2);
    const ds_tensor loss_in[2] = {logits, targets};
    run(f, &dsi_op_cross_entropy, &ce, loss_in, 2, parts);
    for (int i = 0; i < 3; ++i) {
        same_bits(fused[i], parts[i]);
    }
    assert_true(*(float *)fused[2].data == 5.0f);
    const ds_tensor one = new_tensor(f, DS_DTYPE_F32, (ds_shape){0});
    *(float *)one.data = 1.5f;
    const ds_tensor back[6] = {one, in[0], in[1], targets, fused[1], fused[2]};
    ds_tensor d[DS_MAX_OUT];
    const dsi_ce_backward_attrs ce_back = {.ce = ce};
    run(f, &dsi_op_linear_cross_entropy_backward, &ce_back, back, 6, d);
    const ds_tensor loss_back[5] = {one, logits, targets, parts[1], parts[2]};
    const ds_tensor dz = run1(f, &dsi_op_cross_entropy_backward, &ce, loss_back, 5);
    const dsi_linear_attrs flipped = {.transposed = 1};
    const ds_tensor dx_in[2] = {dz, in[1]};
    same_bits(d[0], run1(f, &dsi_op_linear, &flipped, dx_in, 2));
    const dsi_linear_dw_attrs dw = {0};
    const ds_tensor dw_in[2] = {in[0], dz};
    same_bits(d[1], run1(f, &dsi_op_linear_dw, &dw, dw_in, 2));
}

/* x, w or targets of the loss in a dtype. */
static ds_tensor noise_as(fixture *f, ds_dtype dtype, ds_shape shape, uint32_t site)
{
    const dsi_cast_attrs cast = {.dtype = dtype};
    const ds_tensor wide = noise(f, shape, site);
    return dtype == DS_DTYPE_F32 ? wide : run1(f, &dsi_op_cast, &cast, &wide, 1);
}

/* Of kept logits, dx and dw have the bits of logits that are made again; so has the loss. */
static void check_kept_logits(fixture *f, ds_dtype dtype, int64_t transposed)
{
    enum { ROWS = 70, WIDTH = 48, VOCAB = 2100 };
    int32_t t[ROWS];
    for (int32_t i = 0; i < ROWS; ++i) {
        t[i] = i % 7 == 3 ? -100 : i * 31 % VOCAB;
    }
    const ds_shape shape = transposed != 0 ? ds_shape_2d(WIDTH, VOCAB) : ds_shape_2d(VOCAB, WIDTH);
    const ds_tensor targets = integers(f, ds_shape_1d(ROWS), t);
    const ds_tensor x = noise_as(f, dtype, ds_shape_2d(ROWS, WIDTH), 1);
    const ds_tensor w = noise_as(f, dtype, shape, 2);
    const ds_tensor start = noise(f, shape, 3);
    const ds_tensor in[3] = {x, w, targets};
    dsi_linear_ce_attrs attrs = {.ce = {.ignore_index = -100, .transposed = transposed}};
    ds_tensor dropped[DS_MAX_OUT];
    ds_tensor kept[DS_MAX_OUT];
    run(f, &dsi_op_linear_cross_entropy, &attrs, in, 3, dropped);
    assert_null(dropped[3].data);
    attrs.keep = 1;
    run(f, &dsi_op_linear_cross_entropy, &attrs, in, 3, kept);
    for (int i = 0; i < 3; ++i) {
        same_bits(kept[i], dropped[i]);
    }
    const ds_tensor one = new_tensor(f, DS_DTYPE_F32, (ds_shape){0});
    *(float *)one.data = 1.5f;
    const dsi_ce_backward_attrs whole = {.ce = attrs.ce};
    const ds_tensor back[7] = {one, x, w, targets, kept[1], kept[2], start};
    const ds_tensor dx[6] = {one, w, kept[3], targets, kept[1], kept[2]};
    const ds_tensor dw[7] = {one, x, kept[3], targets, kept[1], kept[2], start};
    for (uint32_t n = 6; n <= 7; ++n) { /* without and with dw_in */
        ds_tensor d[DS_MAX_OUT];
        run(f, &dsi_op_linear_cross_entropy_backward, &whole, back, n, d);
        same_bits(d[0], run1(f, &dsi_op_linear_cross_entropy_dx, &attrs.ce, dx, 6));
        same_bits(d[1], run1(f, &dsi_op_linear_cross_entropy_dw, &attrs.ce, dw, n));
    }
}

static void kept_logits_give_the_same_bits(void **state)
{
    fixture *f = *state;
    static const ds_dtype types[] = {DS_DTYPE_F32, DS_DTYPE_BF16, DS_DTYPE_F16};
    for (uint32_t level = 0; dsi_cpu_has_level(level); ++level) {
        f->isa = dsi_isa_level(level);
        for (size_t i = 0; i < sizeof types / sizeof types[0]; ++i) {
            check_kept_logits(f, types[i], 0);
            free_tensors(f);
            check_kept_logits(f, types[i], 1);
            free_tensors(f);
        }
    }
}

enum { HEADS = 4, KV = 2, D = 8, T = 12, Q = HEADS * D, C = KV * D };
#define BASE .n_heads = HEADS, .n_kv_heads = KV, .head_dim = D, .causal = 1, .scale = 0.35

static void packed_attention_equals_split(void **state)
{
    fixture *f = *state;
    const dsi_attention_attrs split = {BASE};
    const dsi_attention_attrs packed = {BASE, .packed = 1};
    const dsi_attention_attrs wide = {BASE, .packed = 1, .window = T};
    const ds_tensor all = noise(f, ds_shape_3d(2, T, Q + 2 * C), 1);
    ds_tensor part[3];
    const int64_t start[3] = {0, Q, Q + C};
    const int64_t length[3] = {Q, C, C};
    for (int i = 0; i < 3; ++i) {
        const dsi_slice_attrs cut = {.dim = 2, .start = start[i], .length = length[i]};
        part[i] = run1(f, &dsi_op_slice, &cut, &all, 1);
    }
    const ds_tensor y = run1(f, &dsi_op_attention, &packed, &all, 1);
    same_bits(y, run1(f, &dsi_op_attention, &split, part, 3));
    same_bits(y, run1(f, &dsi_op_attention, &wide, &all, 1));
}

/* Two documents in one row see what they see alone. */
static void documents_do_not_see_each_other(void **state)
{
    fixture *f = *state;
    enum { CUT = 5 };
    const dsi_attention_attrs attrs = {BASE, .packed = 1};
    const ds_tensor all = noise(f, ds_shape_3d(1, T, Q + 2 * C), 1);
    int32_t first[T];
    for (int i = 0; i < T; ++i) {
        first[i] = i < CUT ? 0 : CUT;
    }
    const ds_tensor in[4] = {all, absent, absent, integers(f, ds_shape_2d(1, T), first)};
    ds_tensor y = run1(f, &dsi_op_attention, &attrs, in, 4);
    y.meta.shape = ds_shape_2d(T, Q);
    for (int document = 0; document < 2; ++document) {
        const int64_t start = document == 0 ? 0 : CUT;
        const int64_t n = document == 0 ? CUT : T - CUT;
        ds_tensor flat = all;
        flat.meta.shape = ds_shape_2d(T, Q + 2 * C);
        ds_tensor own = rows(flat, start, n);
        own.meta.shape = ds_shape_3d(1, n, Q + 2 * C);
        same_bits(rows(y, start, n), run1(f, &dsi_op_attention, &attrs, &own, 1));
    }
}

/* Generation: the last query over a cache longer than the sequence equals the last row. */
static void a_query_at_an_offset_equals_its_row(void **state)
{
    fixture *f = *state;
    enum { LONG = T + 5 };
    const dsi_attention_attrs attrs = {BASE, .window = 7};
    const ds_tensor q = noise(f, ds_shape_3d(1, T, Q), 1);
    const ds_tensor k = noise(f, ds_shape_3d(1, LONG, C), 2);
    const ds_tensor v = noise(f, ds_shape_3d(1, LONG, C), 3);
    ds_tensor k_now = k;
    ds_tensor v_now = v;
    k_now.meta.shape.dims[1] = T;
    v_now.meta.shape.dims[1] = T;
    const ds_tensor whole_in[3] = {q, k_now, v_now};
    ds_tensor whole = run1(f, &dsi_op_attention, &attrs, whole_in, 3);
    whole.meta.shape = ds_shape_2d(T, Q);
    ds_tensor last = q;
    last.meta.shape = ds_shape_2d(T, Q);
    last = rows(last, T - 1, 1);
    last.meta.shape = ds_shape_3d(1, 1, Q);
    const int32_t offset[1] = {T - 1};
    const ds_tensor in[5] = {last, k, v, absent, integers(f, ds_shape_1d(1), offset)};
    same_bits(rows(whole, T - 1, 1), run1(f, &dsi_op_attention, &attrs, in, 5));
}

/* A query that sees no key gives 0 and an lse of -Inf, and no gradient. */
static void a_query_without_keys_gives_zero(void **state)
{
    fixture *f = *state;
    const dsi_attention_attrs attrs = {BASE, .packed = 1};
    const int32_t first[3] = {0, 2, 2};
    const ds_tensor in[4] = {noise(f, ds_shape_3d(1, 3, Q + 2 * C), 1), absent, absent,
                             integers(f, ds_shape_2d(1, 3), first)};
    ds_tensor out[DS_MAX_OUT];
    run(f, &dsi_op_attention, &attrs, in, 4, out);
    const ds_tensor back[7] = {
        noise(f, ds_shape_3d(1, 3, Q), 2), in[0], absent, absent, out[0], out[1], in[3]};
    const ds_tensor d = run1(f, &dsi_op_attention_backward, &attrs, back, 7);
    for (int c = 0; c < Q; ++c) {
        assert_true(((float *)out[0].data)[Q + c] == 0.0f);
        assert_true(((float *)d.data)[Q + 2 * C + c] == 0.0f);
    }
    assert_true(isinf(((float *)out[1].data)[1]) && ((float *)out[1].data)[1] < 0.0f);
}

/* Dropout is keyed by the global sample: a batch cut in two drops the same elements. */
static void dropout_does_not_depend_on_the_split(void **state)
{
    fixture *f = *state;
    const dsi_dropout_attrs attrs = {.p = 0.25, .site = 3};
    const ds_tensor x = noise(f, ds_shape_3d(4, 50, 33), 1);
    const ds_tensor whole_in[2] = {x, random_state(f, 6)};
    const ds_tensor y = run1(f, &dsi_op_dropout, &attrs, whole_in, 2);
    for (int64_t half = 0; half < 2; ++half) {
        const ds_tensor in[2] = {rows(x, 2 * half, 2), random_state(f, 6 + 2 * half)};
        same_bits(rows(y, 2 * half, 2), run1(f, &dsi_op_dropout, &attrs, in, 2));
    }
    const int64_t n = ds_shape_count(x.meta.shape);
    int64_t dropped = 0;
    for (int64_t i = 0; i < n; ++i) {
        dropped += ((float *)y.data)[i] == 0.0f;
    }
    const double deviation = sqrt((double)n * 0.25 * 0.75);
    assert_true(fabs((double)dropped - 0.25 * (double)n) < 4.0 * deviation);
    const dsi_attention_attrs heads = {BASE, .packed = 1, .dropout = 0.25, .site = 3};
    const ds_tensor qkv = noise(f, ds_shape_3d(2, T, Q + 2 * C), 2);
    const ds_tensor both[6] = {qkv, absent, absent, absent, absent, random_state(f, 6)};
    const ds_tensor second[6] = {rows(qkv, 1, 1), absent, absent,
                                 absent,          absent, random_state(f, 7)};
    same_bits(rows(run1(f, &dsi_op_attention, &heads, both, 6), 1, 1),
              run1(f, &dsi_op_attention, &heads, second, 6));
}

/* So is noise, and its numbers have the mean of their distribution. */
static void noise_does_not_depend_on_the_split(void **state)
{
    static const double means[DSI_NOISE_COUNT] = {1.0, 0.5772156649, 0.5};
    static const double deviations[DSI_NOISE_COUNT] = {0.0577350269, 1.2825498302, 0.2886751346};
    fixture *f = *state;
    const ds_shape shape = ds_shape_3d(4, 50, 33);
    const double n = (double)ds_shape_count(shape);
    for (int64_t kind = 0; kind < DSI_NOISE_COUNT; ++kind) {
        const bool is_factor = kind == DSI_NOISE_FACTOR;
        const dsi_noise_attrs attrs = {.kind = kind, .amount = is_factor ? 0.1 : 0.0, .site = 3};
        const ds_tensor x = noise(f, shape, 1);
        const ds_tensor whole[2] = {x, random_state(f, 6)};
        for (int64_t i = 0; i < (int64_t)n; ++i) {
            ((float *)x.data)[i] = is_factor ? 1.0f : 0.0f;
        }
        const ds_tensor y = run1(f, &dsi_op_noise, &attrs, whole, 2);
        double sum = 0.0;
        for (int64_t i = 0; i < (int64_t)n; ++i) {
            sum += (double)((float *)y.data)[i];
        }
        assert_true(fabs(sum / n - means[kind]) < 4.0 * deviations[kind] / sqrt(n));
        for (int64_t half = 0; half < 2; ++half) {
            const ds_tensor in[2] = {rows(x, 2 * half, 2), random_state(f, 6 + 2 * half)};
            same_bits(rows(y, 2 * half, 2), run1(f, &dsi_op_noise, &attrs, in, 2));
        }
    }
}

static int set_up(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    *state = f;
    return f == NULL || ds_ctx_create(NULL, &f->ctx) < 0 ? -1 : 0;
}

static int tear_down(void **state)
{
    fixture *f = *state;
    free_tensors(f);
    ds_ctx_destroy(&f->ctx);
    free(f);
    return 0;
}

#define FORM(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

static ds_tensor narrowed(fixture *f, ds_tensor t, ds_dtype dtype)
{
    const dsi_cast_attrs attrs = {.dtype = dtype};
    return dtype == DS_DTYPE_F32 ? t : run1(f, &dsi_op_cast, &attrs, &t, 1);
}

/* Rows of each expert, of none and of one too, are those of linear by its matrix; and its weight
 * gradient is that of linear_dw. */
static void check_experts(fixture *f, ds_dtype dtype, int64_t transposed, const int32_t *offsets,
                          int64_t n_experts)
{
    enum { K = 70, O = 33 };
    const dsi_grouped_attrs grouped = {.transposed = transposed};
    const dsi_linear_attrs plain = {.transposed = transposed};
    const dsi_linear_dw_attrs plain_dw = {.transposed = transposed};
    const int64_t n = offsets[n_experts];
    const ds_shape shape =
        transposed != 0 ? ds_shape_3d(n_experts, K, O) : ds_shape_3d(n_experts, O, K);
    const ds_tensor x = narrowed(f, noise(f, ds_shape_2d(n, K), 1), dtype);
    const ds_tensor w = narrowed(f, noise(f, shape, 2), dtype);
    const ds_tensor dy = narrowed(f, noise(f, ds_shape_2d(n, O), 3), dtype);
    const ds_tensor at = integers(f, ds_shape_1d(n_experts + 1), offsets);
    const ds_tensor in[3] = {x, w, at};
    const ds_tensor back[3] = {x, dy, at};
    const ds_tensor y = run1(f, &dsi_op_grouped_linear, &grouped, in, 3);
    const ds_tensor dw = run1(f, &dsi_op_grouped_linear_dw, &grouped, back, 3);
    for (int64_t e = 0; e < n_experts; ++e) {
        const int64_t first = offsets[e];
        const int64_t count = offsets[e + 1] - first;
        ds_tensor one = rows(w, e, 1);
        ds_tensor sum = rows(dw, e, 1);
        one.meta.shape = ds_shape_2d(shape.dims[1], shape.dims[2]);
        sum.meta.shape = one.meta.shape;
        if (count == 0) {
            for (int64_t i = 0; i < ds_shape_count(sum.meta.shape); ++i) {
                assert_true(((const float *)sum.data)[i] == 0.0f);
            }
            continue;
        }
        const ds_tensor own[2] = {rows(x, first, count), one};
        const ds_tensor own_back[2] = {own[0], rows(dy, first, count)};
        same_bits(run1(f, &dsi_op_linear, &plain, own, 2), rows(y, first, count));
        same_bits(run1(f, &dsi_op_linear_dw, &plain_dw, own_back, 2), sum);
    }
}

static void rows_of_experts_are_those_of_linear(void **state)
{
    static const int32_t few[] = {0, 40, 40, 41};
    static const int32_t many[] = {0, 1, 8, 8, 30, 130, 131, 140, 141, 190};
    static const ds_dtype dtypes[] = {DS_DTYPE_F32, DS_DTYPE_BF16, DS_DTYPE_F16};
    fixture *f = *state;
    for (uint32_t level = 0; dsi_cpu_has_level(level); ++level) {
        f->isa = dsi_isa_level(level);
        for (uint32_t i = 0; i < 6; ++i) {
            check_experts(f, dtypes[i % 3], i / 3, few, 3);
            free_tensors(f);
            check_experts(f, dtypes[i % 3], i / 3, many, 9);
            free_tensors(f);
        }
    }
}

/* Two ranks of two experts each: where the rows of both lie on each. */
static void segments_are_by_source_then_expert(void **state)
{
    static const int32_t table[10] = {0, 1, 3, 3, 7, 0, 2, 2, 5, 6};
    static const int32_t want[10] = {0, 1, 3, 5, 5, 0, 0, 4, 7, 8};
    static const int32_t bad[10] = {0, 1, 3, 3, 7, 0, 2, 1, 5, 6};
    const dsi_expert_ranks_attrs attrs = {.n_ranks = 2, .n_rows = 8};
    const dsi_expert_ranks_attrs narrow = {.n_ranks = 2, .n_rows = 7};
    fixture *f = *state;
    f->isa = DS_ISA_REF;
    const ds_tensor in = integers(f, ds_shape_2d(2, 5), table);
    const ds_tensor out = run1(f, &dsi_op_expert_segments, &attrs, &in, 1);
    assert_memory_equal(out.data, want, sizeof want);
    const struct {
        const dsi_expert_ranks_attrs *attrs;
        const int32_t *table;
        const char *says;
    } refused[] = {{&narrow, table, "with expert 3 a rank gets 8 rows, but there is room for 7"},
                   {&attrs, bad, "the offset of expert 2 on rank 1 is 1, expected at least 2"}};
    for (size_t i = 0; i < 2; ++i) {
        const ds_tensor x = integers(f, ds_shape_2d(2, 5), refused[i].table);
        const ds_kernel_sig sig = {
            &dsi_op_expert_segments, refused[i].attrs, 1, 1, &x.meta, &out.meta, 1};
        const ds_kernel_call call = {f->ctx, &sig, &x, &out, NULL};
        CHECK_FAILS(f->ctx, op_reference(&sig)->run(&call), DS_ERR_ARG, refused[i].says);
    }
    free_tensors(f);
}

/* Pairs that see one another, against counting them. */
static void attention_counts_what_is_seen(void **state)
{
    (void)state;
    for (int64_t n = 1; n < 9; ++n) {
        for (int64_t window = 0; window < 11; ++window) {
            int64_t seen[2] = {0, 0}; /* around a query, up to it */
            for (int64_t i = 0; i < n * n; ++i) {
                const int64_t apart = i / n - i % n;
                const bool near = window == 0 || (apart < window && -apart < window);
                seen[0] += near ? 1 : 0;
                seen[1] += near && apart >= 0 ? 1 : 0;
            }
            assert_true(dsi_attention_visible(false, window, n) == (double)seen[0]);
            assert_true(dsi_attention_visible(true, window, n) == (double)seen[1]);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attention_counts_what_is_seen),
        FORM(fused_linear_equals_its_parts),
        FORM(accumulating_forms_equal_a_sum),
        FORM(norm_backward_adds_the_residual_gradient),
        FORM(fused_loss_equals_its_parts),
        FORM(kept_logits_give_the_same_bits),
        FORM(rows_of_experts_are_those_of_linear),
        FORM(segments_are_by_source_then_expert),
        FORM(packed_attention_equals_split),
        FORM(documents_do_not_see_each_other),
        FORM(a_query_at_an_offset_equals_its_row),
        FORM(a_query_without_keys_gives_zero),
        FORM(dropout_does_not_depend_on_the_split),
        FORM(noise_does_not_depend_on_the_split),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
