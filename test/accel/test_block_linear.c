/* SPDX-License-Identifier: Apache-2.0 */
/* linear with weights in blocks: every kernel has the bits of the reference, alone and among other
 * rows; the reference is the product of what the blocks say, but for the rounding of x to bytes;
 * quantizing gives the bytes of PyPI's gguf (golden). */
#include "accel/cpu/cpu_features.h"
#include "accel/cpu/registry.h"
#include "base/blocks.h"
#include "base/half.h"
#include "common/check.h"
#include "io/gguf.h"
#include "op/ops.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The types, ggml's number of each, and the golden file. */
static const struct {
    ds_dtype dtype;
    uint32_t id;
    const char *file;
    bool keeps_values; /* blocks that become values and blocks again are the same */
} types[] = {{DS_DTYPE_Q8_0, 8, "q8_0.bin", true},  {DS_DTYPE_Q4_0, 2, "q4_0.bin", true},
             {DS_DTYPE_Q4_1, 3, "q4_1.bin", false}, {DS_DTYPE_Q5_0, 6, "q5_0.bin", true},
             {DS_DTYPE_Q5_1, 7, "q5_1.bin", false}, {DS_DTYPE_Q4_K, 12, NULL, false},
             {DS_DTYPE_Q5_K, 13, NULL, false},      {DS_DTYPE_Q6_K, 14, NULL, false}};

enum { N_TYPES = sizeof types / sizeof types[0] };

static const dsi_gguf_type *gguf_type_of(ds_dtype dtype)
{
    for (int t = 0; t < N_TYPES; ++t) {
        if (types[t].dtype == dtype) {
            return dsi_gguf_type_find(types[t].id);
        }
    }
    return NULL;
}

static float normal(uint64_t *seed)
{
    float sum = 0.0f;
    for (int i = 0; i < 12; ++i) {
        *seed = *seed * 6364136223846793005u + 1442695040888963407u;
        sum += (float)(*seed >> 40) * 0x1p-24f;
    }
    return sum - 6.0f;
}

typedef struct product {
    ds_dtype type, act;
    int64_t m, n, k;
    bool more; /* bias, activation, residual */
    void *x, *bias, *residual;
    uint8_t *plain, *woven;
    double *values; /* [n][k], of the blocks */
} product;

static void put(void *at, ds_dtype act, int64_t i, float v)
{
    if (act == DS_DTYPE_F32) {
        ((float *)at)[i] = v;
    } else {
        ((uint16_t *)at)[i] = act == DS_DTYPE_BF16 ? dsi_f32_to_bf16(v) : dsi_f32_to_f16(v);
    }
}

static float get(const void *at, ds_dtype act, int64_t i)
{
    return act == DS_DTYPE_F32    ? ((const float *)at)[i]
           : act == DS_DTYPE_BF16 ? dsi_bf16_to_f32(((const uint16_t *)at)[i])
                                  : dsi_f16_to_f32(((const uint16_t *)at)[i]);
}

static void make(product *p, uint64_t seed)
{
    const int64_t bytes = (int64_t)dsi_block_row_bytes(p->type, p->k);
    float *row = malloc((size_t)p->k * sizeof *row);
    p->x = malloc((size_t)(p->m * p->k) * 4);
    p->bias = malloc((size_t)p->n * 4);
    p->residual = malloc((size_t)(p->m * p->n) * 4);
    p->plain = malloc((size_t)(p->n * bytes));
    p->values = malloc((size_t)(p->n * p->k) * sizeof *p->values);
    const ds_meta meta = {p->type, ds_shape_2d(p->n, p->k)};
    p->woven = malloc(ds_meta_bytes(meta));
    assert_non_null(p->woven);
    for (int64_t i = 0; i < p->m * p->k; ++i) {
        put(p->x, p->act, i, i % 97 == 0 ? 0.0f : normal(&seed) * (float)(1 + i % 5));
    }
    for (int64_t i = 0; i < p->n; ++i) {
        put(p->bias, p->act, i, normal(&seed));
    }
    for (int64_t i = 0; i < p->m * p->n; ++i) {
        put(p->residual, p->act, i, normal(&seed));
    }
    const dsi_gguf_type *type = gguf_type_of(p->type);
    for (int64_t o = 0; o < p->n; ++o) {
        for (int64_t i = 0; i < p->k; ++i) {
            row[i] = normal(&seed) * 0.05f;
        }
        dsi_blocks_quantize(p->type, row, p->k, p->plain + o * bytes);
        type->read(p->plain + o * bytes, (size_t)(p->k / dsi_block_length(p->type)), row);
        for (int64_t i = 0; i < p->k; ++i) {
            p->values[o * p->k + i] = row[i];
        }
    }
    for (int64_t o = 0; o < p->n; o += DSI_BLOCK_ROWS) {
        dsi_blocks_weave(p->type, p->plain + o * bytes,
                         p->n - o < DSI_BLOCK_ROWS ? p->n - o : DSI_BLOCK_ROWS, (size_t)bytes, p->k,
                         p->woven + (size_t)(o / DSI_BLOCK_ROWS) * dsi_panel_bytes(p->type, p->k));
    }
    free(row);
}

static void drop(product *p)
{
    free(p->x);
    free(p->bias);
    free(p->residual);
    free(p->plain);
    free(p->woven);
    free(p->values);
}

/* Rows [from, from + m) by kernel `index` into y; false: there is no such kernel. */
static bool run(ds_ctx *ctx, const product *p, uint32_t index, int64_t from, int64_t m, void *y,
                const char **name_out)
{
    const dsi_linear_attrs attrs = {.activation = p->more ? DSI_ACT_GELU_TANH : DSI_ACT_NONE};
    const size_t each = ds_dtype_bytes(p->act);
    const ds_meta in[4] = {{p->act, ds_shape_2d(m, p->k)},
                           {p->type, ds_shape_2d(p->n, p->k)},
                           {p->more ? p->act : DS_DTYPE_NONE, ds_shape_1d(p->n)},
                           {p->more ? p->act : DS_DTYPE_NONE, ds_shape_2d(m, p->n)}};
    ds_meta out[2] = {{p->act, ds_shape_2d(m, p->n)}, {DS_DTYPE_NONE, {0}}};
    const ds_kernel_sig sig = {.op = &dsi_op_linear,
                               .attrs = &attrs,
                               .n_in = p->more ? 4 : 2,
                               .in = in,
                               .n_out = 2,
                               .out = out,
                               .n_threads = ds_ctx_n_threads(ctx)};
    const ds_kernel *kernel = dsi_cpu_kernel_at(&sig, dsi_cpu_isa(), index);
    if (kernel == NULL) {
        return false;
    }
    const ds_tensor tensors[4] = {
        {(char *)p->x + (size_t)(from * p->k) * each, in[0]},
        {p->woven, in[1]},
        {p->more ? p->bias : NULL, in[2]},
        {p->more ? (char *)p->residual + (size_t)(from * p->n) * each : NULL, in[3]}};
    ds_tensor outs[2] = {{y, out[0]}, {NULL, out[1]}};
    const size_t bytes = kernel->work_bytes != NULL ? kernel->work_bytes(&sig) : 0;
    void *work = aligned_alloc(64, (bytes + 127) / 64 * 64);
    const ds_kernel_call call = {.ctx = ctx, .sig = &sig, .in = tensors, .out = outs, .work = work};
    CHECK_OK(ctx, kernel->run(&call));
    free(work);
    *name_out = kernel->name;
    return true;
}

/* The product of the blocks' values; x is off by half a step of its block at most. */
static void near_values(const product *p, const void *y)
{
    for (int64_t row = 0; row < p->m; ++row) {
        for (int64_t o = 0; o < p->n; ++o) {
            double sum = 0.0;
            double off = 1e-5;
            for (int64_t b = 0; b < p->k; b += DSI_BLOCK) {
                double top = 0.0;
                double weight = 0.0;
                for (int64_t i = b; i < b + DSI_BLOCK; ++i) {
                    const double x = get(p->x, p->act, row * p->k + i);
                    sum += x * p->values[o * p->k + i];
                    top = fmax(top, fabs(x));
                    weight += fabs(p->values[o * p->k + i]);
                }
                off += top / 254.0 * weight * 1.001;
            }
            const double got = get(y, p->act, row * p->n + o);
            const double round = p->act == DS_DTYPE_F32    ? 1e-5
                                 : p->act == DS_DTYPE_BF16 ? 0x1p-8
                                                           : 0x1p-11;
            assert_true(fabs(got - sum) <= off + round * fabs(sum));
        }
    }
}

static void same_bits_of(product p)
{
    ds_ctx *one = check_ctx(1);
    ds_ctx *three = check_ctx(3);
    const size_t each = ds_dtype_bytes(p.act);
    const size_t bytes = (size_t)(p.m * p.n) * each;
    char *want = malloc(bytes);
    char *got = malloc(bytes);
    uint32_t n_kernels = 0;
    const char *name = NULL;
    make(&p, (uint64_t)(p.m * 131 + p.n * 17 + p.k));
    while (run(one, &p, n_kernels, 0, p.m, want, &name)) {
        ++n_kernels;
    }
    assert_string_equal(name, "ref"); /* the last one */
    if (!p.more) {
        near_values(&p, want);
    }
    for (uint32_t i = 0; i < n_kernels; ++i) {
        memset(got, 0x5a, bytes);
        assert_true(run(three, &p, i, 0, p.m, got, &name));
        if (memcmp(got, want, bytes) != 0) {
            fail_msg("%s in %s: other bits than the reference", name, ds_dtype_name(p.type));
        }
        for (int64_t row = 0, n = 1; row < p.m; row += n, n = n % 7 + 1) {
            n = n < p.m - row ? n : p.m - row;
            assert_true(run(one, &p, i, row, n, got + (size_t)(row * p.n) * each, &name));
        }
        if (memcmp(got, want, bytes) != 0) {
            fail_msg("%s in %s: rows have other bits alone", name, ds_dtype_name(p.type));
        }
    }
    drop(&p);
    free(want);
    free(got);
    ds_ctx_destroy(&one);
    ds_ctx_destroy(&three);
}

static void same_bits(void **state)
{
    static const ds_dtype acts[] = {DS_DTYPE_F32, DS_DTYPE_BF16, DS_DTYPE_F16};
    static const int64_t sizes[][3] = {{1, 16, 32}, {3, 50, 96}, {70, 33, 64}, {7, 129, 1024}};
    (void)state;
    for (int t = 0; t < N_TYPES; ++t) {
        for (int a = 0; a < 3; ++a) {
            for (size_t i = 0; i < sizeof sizes / sizeof *sizes; ++i) {
                const int64_t length = dsi_block_length(types[t].dtype);
                for (int more = 0; more < 2; ++more) {
                    same_bits_of((product){.type = types[t].dtype,
                                           .act = acts[a],
                                           .m = sizes[i][0],
                                           .n = sizes[i][1],
                                           .k = (sizes[i][2] + length - 1) / length * length,
                                           .more = more != 0});
                }
            }
        }
    }
}

/* A value that is not finite spoils its row, in every kernel, and no other. */
static void spoiled_rows(void **state)
{
    static const float wrong[] = {NAN, INFINITY, -INFINITY};
    ds_ctx *ctx = *state;
    product p = {.type = DS_DTYPE_Q8_0, .act = DS_DTYPE_F32, .m = 3, .n = 20, .k = 64};
    float y[60];
    const char *name = NULL;
    make(&p, 3);
    for (int w = 0; w < 3; ++w) {
        ((float *)p.x)[64 + 40] = wrong[w];
        for (uint32_t i = 0; run(ctx, &p, i, 0, p.m, y, &name); ++i) {
            for (int j = 0; j < 60; ++j) {
                assert_true(isnan(y[j]) == (j / 20 == 1));
            }
        }
    }
    drop(&p);
}

/* The bytes that gguf.quants of PyPI gives: test/golden/gguf/make_blocks.py. */
static void quantizes_like_ggml(void **state)
{
    (void)state;
    for (int t = 0; t < N_TYPES && types[t].file != NULL; ++t) {
        enum { N = 40 * DSI_BLOCK };
        const ds_dtype type = types[t].dtype;
        const size_t n_bytes = (size_t)(40 * dsi_block_bytes(type));
        float x[N];
        uint8_t want[40 * 34];
        uint8_t got[40 * 34];
        char path[512];
        (void)snprintf(path, sizeof path, "%s/test/golden/gguf/blocks_%s", DS_SOURCE_DIR,
                       types[t].file);
        FILE *f = fopen(path, "rb");
        assert_non_null(f);
        assert_int_equal(fread(x, sizeof x[0], N, f), N);
        assert_int_equal(fread(want, 1, n_bytes, f), n_bytes);
        (void)fclose(f);
        dsi_blocks_quantize(type, x, N, got);
        assert_memory_equal(got, want, n_bytes);
        /* blocks that become values and blocks again stand for the same values */
        const dsi_gguf_type *of = gguf_type_of(type);
        float again[N];
        of->read(want, N / DSI_BLOCK, x);
        dsi_blocks_quantize(type, x, N, got);
        of->read(got, N / DSI_BLOCK, again);
        for (int i = 0; i < N && types[t].keeps_values; ++i) {
            assert_true(again[i] == x[i]);
        }
    }
}

/* Blocks of random bytes, woven, stand for the values that they have as ggml's. */
static void woven_values(void **state)
{
    enum { ROWS = 21, LENGTH = 512 };
    uint64_t seed = 5;
    (void)state;
    for (int t = 0; t < N_TYPES; ++t) {
        const ds_dtype type = types[t].dtype;
        const dsi_gguf_type *of = gguf_type_of(type);
        const size_t row_bytes = dsi_block_row_bytes(type, LENGTH);
        const size_t panel_bytes = dsi_panel_bytes(type, LENGTH);
        uint8_t *plain = malloc(ROWS * row_bytes);
        uint8_t *woven = malloc(2 * panel_bytes);
        float values[LENGTH];
        for (size_t i = 0; i < ROWS * row_bytes; ++i) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            plain[i] = (uint8_t)(seed >> 40);
        }
        dsi_blocks_weave(type, plain, 16, row_bytes, LENGTH, woven);
        dsi_blocks_weave(type, plain + 16 * row_bytes, ROWS - 16, row_bytes, LENGTH,
                         woven + panel_bytes);
        for (int64_t r = 0; r < ROWS; ++r) {
            const uint8_t *panel = woven + (size_t)(r / 16) * panel_bytes;
            of->read(plain + (size_t)r * row_bytes, (size_t)(LENGTH / dsi_block_length(type)),
                     values);
            for (int64_t i = 0; i < LENGTH; ++i) {
                const int64_t b = i / DSI_BLOCK;
                const int part = (int)(i % DSI_BLOCK * dsi_block_parts(type) / DSI_BLOCK);
                const float scale = dsi_block_scale(type, panel, b, r % 16, part);
                const float value =
                    scale * (float)dsi_block_value(type, panel, b, r % 16, i % DSI_BLOCK) +
                    dsi_block_minimum(type, panel, b, r % 16);
                assert_true(value == values[i] || (isnan(value) && isnan(values[i])));
            }
        }
        free(plain);
        free(woven);
    }
}

/* What a K type loses of normal values, in shares of their size, just above what the search
 * reaches; what is not finite spoils a scale. */
static void k_types_search(void **state)
{
    static const struct {
        ds_dtype type;
        double most;
    } rows[] = {{DS_DTYPE_Q4_K, 0.0700}, {DS_DTYPE_Q5_K, 0.0350}, {DS_DTYPE_Q6_K, 0.0173}};
    enum { N = 64 * DSI_BLOCK_LARGE };
    static float x[N];
    static float y[N];
    static uint8_t blocks[64 * 210];
    uint64_t seed = 11;
    (void)state;
    for (int i = 0; i < N; ++i) {
        x[i] = normal(&seed) * 0.03f;
    }
    for (int t = 0; t < 3; ++t) {
        const dsi_gguf_type *of = gguf_type_of(rows[t].type);
        double lost = 0.0;
        double all = 0.0;
        dsi_blocks_quantize(rows[t].type, x, N, blocks);
        of->read(blocks, 64, y);
        for (int i = 0; i < N; ++i) {
            lost += (double)(y[i] - x[i]) * (double)(y[i] - x[i]);
            all += (double)x[i] * (double)x[i];
        }
        print_message("%s: %.5f\n", ds_dtype_name(rows[t].type), sqrt(lost / all));
        assert_true(sqrt(lost / all) < rows[t].most);
        const float kept = x[700];
        x[700] = NAN;
        dsi_blocks_quantize(rows[t].type, x, N, blocks);
        of->read(blocks, 64, y);
        for (int i = 0; i < N; ++i) {
            assert_true(isnan(y[i]) == (i / DSI_BLOCK_LARGE == 700 / DSI_BLOCK_LARGE));
        }
        x[700] = kept;
        memset(y, 0, sizeof y);
        dsi_blocks_quantize(rows[t].type, y, N, blocks); /* zeros stay zeros */
        of->read(blocks, 64, y);
        for (int i = 0; i < N; ++i) {
            assert_true(y[i] == 0.0f);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(same_bits), cmocka_unit_test(spoiled_rows),
                                       cmocka_unit_test(quantizes_like_ggml),
                                       cmocka_unit_test(woven_values),
                                       cmocka_unit_test(k_types_search)};
    return cmocka_run_group_tests(tests, check_set_up, check_tear_down);
}
