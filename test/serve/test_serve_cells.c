/* SPDX-License-Identifier: Apache-2.0 */
/* Keys and values in cells of another dtype than the arithmetic's: what a code is off by, and what
 * that does to logits.
 *
 * The bound on logits. To first order their error is one linear function of the elements' errors,
 * which are independent of each other: so the root of the mean square of one goes with that of the
 * other. That is, in parts of an element's standard deviation, about
 *     f16   |x|·2^-10 / sqrt(12) · (mantissas of 1 to 2): an eighth of
 *     bf16  |x|·2^-7 / sqrt(12) · …, about 0.0016
 *     i8    largest/127 / sqrt(12): 0.0045 to 0.0068 where the largest of a head is two or three
 *           deviations, 2.8 to 4.3 times bf16's
 * The factors below are these times two, as logits are few and elements not quite independent.
 */
#include "accel/cpu/ref/ref_list.h"
#include "common/parity.h"
#include "op/ops.h"
#include "op/paged_cell.h"

#include <deepspeed/serve.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { HEADS = 5, D = 24, TOKENS = 7, ROW = HEADS * (D + DSI_PAGED_SCALE) };

static void write_codes(ds_ctx *ctx, float *x, int8_t *cell)
{
    int32_t slots[TOKENS];
    const dsi_paged_write_attrs attrs = {.head_dim = D};
    const ds_meta metas[3] = {{DS_DTYPE_I8, ds_shape_3d(1, TOKENS, ROW)},
                              {DS_DTYPE_F32, ds_shape_3d(1, TOKENS, HEADS * D)},
                              {DS_DTYPE_I32, ds_shape_1d(TOKENS)}};
    const ds_tensor in[3] = {{cell, metas[0]}, {x, metas[1]}, {slots, metas[2]}};
    const ds_kernel_sig sig = {.op = &dsi_op_paged_write,
                               .attrs = &attrs,
                               .in = metas,
                               .n_in = 3,
                               .out = metas,
                               .n_out = 1,
                               .n_threads = 1};
    const ds_kernel_call call = {.ctx = ctx, .sig = &sig, .in = in, .out = in};
    for (int32_t t = 0; t < TOKENS; ++t) {
        slots[t] = TOKENS - 1 - t;
    }
    CHECK_OK(ctx, dsi_ref_paged[0]->run(&call));
}

/* Each code within half a step, the largest of a head ±127, whatever the size; what is not finite
 * is not hidden. */
static void codes_are_near(void **state)
{
    float x[TOKENS * HEADS * D];
    int8_t cell[TOKENS * ROW];
    uint64_t seed = 3;
    for (int i = 0; i < TOKENS * HEADS * D; ++i) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        const double unit = (double)(seed >> 40) / (double)(1 << 23) - 1.0;
        x[i] = (float)(unit * pow(10.0, i / D - 17)); /* heads of 1e-17 to 1e17 */
    }
    memset(x, 0, D * sizeof *x);
    x[D + 3] = NAN;
    x[2 * D + 5] = -INFINITY;
    write_codes(*state, x, cell);
    for (int t = 0; t < TOKENS; ++t) {
        for (int h = 0; h < HEADS; ++h) {
            const float *from = x + (t * HEADS + h) * D;
            const int8_t *codes = cell + (TOKENS - 1 - t) * ROW + h * (D + DSI_PAGED_SCALE);
            float scale;
            float most = 0.0f;
            int largest = 0;
            memcpy(&scale, codes + D, sizeof scale);
            if (t == 0 && (h == 1 || h == 2)) {
                assert_true(isnan(scale));
                continue;
            }
            for (int c = 0; c < D; ++c) {
                most = fmaxf(most, fabsf(from[c]));
                largest = abs(codes[c]) > largest ? abs(codes[c]) : largest;
            }
            assert_int_equal(largest, most > 0.0f ? 127 : 0);
            for (int c = 0; c < D; ++c) {
                const double off = fabs((double)codes[c] * (double)scale - (double)from[c]);
                assert_true(off <= (double)most / 254.0 * (1.0 + 1e-4));
            }
        }
    }
}

enum { IDS = 60 };

static void logits_of(ds_ctx *ctx, const parity_case *p, ds_dtype cells, float *out)
{
    uint32_t ids[IDS];
    uint64_t seed = 11;
    const float *logits = NULL;
    ds_server *server = NULL;
    const ds_serve_params params = {
        .source = {.model = p->model, .weights = p->folder, .dtype = DS_DTYPE_F32},
        .max_sequences = 4,
        .kv_type = cells};
    for (int i = 0; i < IDS; ++i) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        ids[i] = (uint32_t)((seed >> 33) % (uint64_t)p->vocab);
    }
    CHECK_OK(ctx, ds_serve_create(ctx, &params, &server));
    for (int step = 0; step < IDS / 10; ++step) { /* what follows reads the cells */
        CHECK_OK(ctx, ds_serve_put(server, 1, (uint64_t[]){1}, ids + 10 * (ptrdiff_t)step,
                                   (size_t[]){10}, &logits));
        memcpy(out + step * p->vocab, logits, (size_t)p->vocab * sizeof *out);
    }
    ds_serve_destroy(&server);
}

static double distance(const float *a, const float *b, int64_t n)
{
    double sum = 0.0;
    for (int64_t i = 0; i < n; ++i) {
        sum += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
    }
    return sqrt(sum / (double)n);
}

static void logits_are_near(void **state)
{
    static const char *const names[] = {"gpt2", "llama3_tied", "gemma2", "bloom", "gpt_oss"};
    for (size_t m = 0; m < sizeof names / sizeof *names; ++m) {
        parity_case p;
        parity_open(*state, names[m], &p);
        const int64_t n = IDS / 10 * p.vocab;
        float *all = calloc(4 * (size_t)n, sizeof *all);
        assert_non_null(all);
        logits_of(*state, &p, DS_DTYPE_F32, all);
        logits_of(*state, &p, DS_DTYPE_BF16, all + n);
        logits_of(*state, &p, DS_DTYPE_F16, all + 2 * n);
        logits_of(*state, &p, DS_DTYPE_I8, all + 3 * n);
        const double bf16 = distance(all, all + n, n);
        const double f16 = distance(all, all + 2 * n, n);
        const double i8 = distance(all, all + 3 * n, n);
        print_message("%s: logits off by %.3g (bf16), %.3g (f16), %.3g (i8)\n", names[m], bf16, f16,
                      i8);
        assert_true(bf16 > 0.0 && f16 > 0.0 && i8 > 0.0);
        assert_true(f16 <= bf16 / 4.0);
        assert_true(i8 <= bf16 * 8.6);
        free(all);
        parity_close(&p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(codes_are_near),
                                       cmocka_unit_test(logits_are_near)};
    return cmocka_run_group_tests(tests, check_set_up, check_tear_down);
}
