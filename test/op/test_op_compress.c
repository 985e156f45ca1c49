/* SPDX-License-Identifier: Apache-2.0 */
/* The operators of compression_training and their schedule against DeepSpeed's own functions
 * (test/golden/compress/quantizers.txt): bit for bit, but for means of magnitudes. */
#include "common/check.h"
#include "compile/compress_graph.h"
#include "ir/graph.h"
#include "op/harness.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MOST = 256 };

typedef struct quant_case {
    char kind[32];
    int bits, groups, rows, columns;
    double ratio;
    float x[MOST], y[MOST];
} quant_case;

static ds_ctx *ctx;
static FILE *file;

static void read_floats(float *out, int n)
{
    for (int i = 0; i < n; ++i) {
        uint32_t word;
        assert_int_equal(fscanf(file, "%8" SCNx32, &word), 1);
        memcpy(&out[i], &word, sizeof word);
    }
}

/* The reference kernel of an operator, as the executor runs it. */
static void run(const ds_op *op, const void *attrs, ds_tensor *in, uint32_t n_in, ds_tensor *out)
{
    static unsigned char work[1 << 20] __attribute__((aligned(64)));
    ds_meta in_meta[4], out_meta[DS_MAX_OUT] = {{0}};
    for (uint32_t i = 0; i < n_in; ++i) {
        in_meta[i] = in[i].meta;
    }
    assert_int_equal(dsi_graph_infer(ctx, op, attrs, in_meta, n_in, out_meta), DS_OK);
    out->meta = out_meta[0];
    const ds_kernel_sig sig = {.op = op,
                               .attrs = attrs,
                               .n_in = n_in,
                               .n_out = 1,
                               .in = in_meta,
                               .out = out_meta,
                               .n_threads = 2};
    const ds_kernel *kernel = op_reference(&sig);
    assert_non_null(kernel);
    assert_true(kernel->work_bytes == NULL || kernel->work_bytes(&sig) <= sizeof work);
    const ds_kernel_call call = {.ctx = ctx, .sig = &sig, .in = in, .out = out, .work = work};
    assert_int_equal(kernel->run(&call), DS_OK);
}

static void transpose(const float *x, int rows, int columns, float *out)
{
    for (int i = 0; i < rows * columns; ++i) {
        out[i % columns * rows + i / columns] = x[i];
    }
}

static void check(const quant_case *c, const float *got, bool exact, const char *how)
{
    for (int i = 0; i < c->rows * c->columns; ++i) {
        if (exact ? got[i] != c->y[i] : fabsf(got[i] - c->y[i]) > 2e-7f * fabsf(c->y[i])) {
            fail_msg("%s %d bits, %d groups, %s: element %d is %.9g, DeepSpeed's %.9g", c->kind,
                     c->bits, c->groups, how, i, (double)got[i], (double)c->y[i]);
        }
    }
}

static void check_weight(const quant_case *c)
{
    for (int transposed = 0; transposed < 2; ++transposed) {
        const dsi_fake_quant_attrs attrs = {.groups = c->groups,
                                            .asymmetric = strstr(c->kind, "asym") != NULL,
                                            .transposed = transposed};
        float control[DSI_QUANT_COUNT] = {1.0f, (float)c->bits, (float)c->ratio, 0.0f};
        float x[MOST], y[MOST], back[MOST];
        memcpy(x, c->x, sizeof x);
        if (transposed != 0) {
            transpose(c->x, c->rows, c->columns, x);
        }
        const int dims[2] = {transposed ? c->columns : c->rows, transposed ? c->rows : c->columns};
        ds_tensor in[2] = {{x, {DS_DTYPE_F32, ds_shape_2d(dims[0], dims[1])}},
                           {control, {DS_DTYPE_F32, ds_shape_1d(DSI_QUANT_COUNT)}}};
        ds_tensor out = {.data = y};
        run(&dsi_op_fake_quant, &attrs, in, 2, &out);
        memcpy(back, y, sizeof back);
        if (transposed != 0) {
            transpose(y, c->columns, c->rows, back);
        }
        check(c, back, c->bits > 2, transposed != 0 ? "(in,out)" : "(out,in)");
        control[DSI_QUANT_ON] = 0.0f;
        run(&dsi_op_fake_quant, &attrs, in, 2, &out);
        assert_memory_equal(y, x, (size_t)(c->rows * c->columns) * sizeof *x);
    }
}

static void check_rows(const quant_case *c)
{
    const dsi_fake_quant_rows_attrs attrs = {c->bits, strstr(c->kind, "asym") != NULL};
    float x[MOST], y[MOST], on = 1.0f;
    memcpy(x, c->x, sizeof x);
    ds_tensor in[2] = {{x, {DS_DTYPE_F32, ds_shape_2d(c->rows, c->columns)}},
                       {&on, {DS_DTYPE_F32, {0}}}};
    ds_tensor out = {.data = y};
    run(&dsi_op_fake_quant_rows, &attrs, in, 2, &out);
    check(c, y, true, "rows");
}

static void check_top(const quant_case *c)
{
    const dsi_top_mask_attrs attrs = {.ratio = c->ratio, .by = DSI_TOP_VALUE};
    float x[MOST], y[MOST];
    memcpy(x, c->x, sizeof x);
    ds_tensor in = {x, {DS_DTYPE_F32, ds_shape_2d(c->rows, c->columns)}};
    ds_tensor out = {.data = y};
    run(&dsi_op_top_mask, &attrs, &in, 1, &out);
    check(c, y, true, "mask");
}

static void check_schedule(void)
{
    ds_compress_group g = {.technique = DS_COMPRESS_WEIGHTS, .mixed = true, .offset = 7};
    double mix[MOST];
    int n, bits[MOST];
    assert_int_equal(fscanf(file, "%" SCNd64 " %" SCNd64 " %" SCNd64 " %lf %d", &g.start_bits,
                            &g.target_bits, &g.period, &g.change_ratio, &n),
                     5);
    for (int i = 0; i < n; ++i) {
        assert_int_equal(fscanf(file, "%d", &bits[i]), 1);
    }
    for (int i = 0; i < n; ++i) {
        float control[DSI_QUANT_COUNT];
        assert_int_equal(fscanf(file, "%lf", &mix[i]), 1);
        dsi_compress_control(&g, g.offset + i, control);
        if (control[DSI_QUANT_ON] != 1.0f || (int)control[DSI_QUANT_BITS] != bits[i] ||
            fabs((double)control[DSI_QUANT_MIX] - mix[i]) > 1e-5) {
            fail_msg("%" PRId64 " to %" PRId64 " bits, period %" PRId64
                     ", call %d: %g bits, %g mixed in, DeepSpeed %d and %g",
                     g.start_bits, g.target_bits, g.period, i + 1, (double)control[DSI_QUANT_BITS],
                     (double)control[DSI_QUANT_MIX], bits[i], mix[i]);
        }
    }
    float before[DSI_QUANT_COUNT];
    dsi_compress_control(&g, g.offset - 1, before);
    assert_true(before[DSI_QUANT_ON] == 0.0f);
}

static void as_deepspeed(void **state)
{
    quant_case c;
    int n = 0, n_schedules = 0;
    (void)state;
    assert_int_equal(ds_ctx_create(NULL, &ctx), DS_OK);
    file = fopen(DS_SOURCE_DIR "/test/golden/compress/quantizers.txt", "r");
    assert_non_null(file);
    while (fscanf(file, "%31s", c.kind) == 1) {
        if (strcmp(c.kind, "schedule") == 0) {
            check_schedule();
            ++n_schedules;
            continue;
        }
        assert_int_equal(
            fscanf(file, "%d %d %lf %d %d", &c.bits, &c.groups, &c.ratio, &c.rows, &c.columns), 5);
        assert_true(c.rows * c.columns <= MOST);
        read_floats(c.x, c.rows * c.columns);
        read_floats(c.y, c.rows * c.columns);
        if (strcmp(c.kind, "top") == 0) {
            check_top(&c);
        } else if (strncmp(c.kind, "rows", 4) == 0) {
            check_rows(&c);
        } else {
            check_weight(&c);
        }
        ++n;
    }
    assert_int_equal(n, 111);
    assert_int_equal(n_schedules, 5);
    (void)fclose(file);
    ds_ctx_destroy(&ctx);
}

/* A group of zeros, or of one number: DeepSpeed divides by 0. */
static void nothing_to_scale(void **state)
{
    (void)state;
    assert_int_equal(ds_ctx_create(NULL, &ctx), DS_OK);
    for (int kind = 0; kind < 6; ++kind) {
        const int bits[] = {8, 8, 2, 1, 8, 8};
        quant_case c = {.kind = "sym", .groups = 1, .rows = 2, .columns = 3};
        c.bits = bits[kind];
        (void)strcpy(c.kind, kind % 2 == 1 && c.bits > 2 ? "asym" : "sym");
        for (int i = 0; i < 6; ++i) {
            c.x[i] = c.y[i] = kind == 5 ? 0.25f : 0.0f;
        }
        check_weight(&c);
    }
    ds_ctx_destroy(&ctx);
}

static int which(const char *patterns, const char *name)
{
    int found = -2;
    return dsi_compress_match(ctx, "key", patterns, name, &found) < 0 ? -2 : found;
}

static void patterns_as_in_python(void **state)
{
    (void)state;
    assert_int_equal(ds_ctx_create(NULL, &ctx), DS_OK);
    assert_int_equal(which("a\nself_attn\n", "model.layers.0.self_attn.q_proj"), 0);
    assert_int_equal(which("zz\nself_attn\n", "model.layers.0.self_attn.q_proj"), 1);
    assert_int_equal(which("layer.\\w+.output.dense\n", "bert.layer.11.output.dense"), 0);
    assert_int_equal(which("layers\\.\\d+\\.mlp$\n", "model.layers.10.mlp"), 0);
    assert_int_equal(which("layers\\.\\d+\\.mlp$\n", "model.layers.x.mlp"), -1);
    assert_int_equal(which("(?:q|k)_proj\n", "model.layers.0.self_attn.k_proj"), 0);
    assert_int_equal(which("*\n", "anything"), 0);
    assert_int_equal(which("(?!q)_proj\n", "q_proj"), -2);
    assert_int_equal(which("(q_proj\n", "q_proj"), -2);
    ds_ctx_destroy(&ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(as_deepspeed),
        cmocka_unit_test(nothing_to_scale),
        cmocka_unit_test(patterns_as_in_python),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
