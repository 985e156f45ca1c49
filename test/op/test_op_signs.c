/* SPDX-License-Identifier: Apache-2.0 */
/* The compressed all-reduce from its pieces, over simulated ranks: against DeepSpeed's own
 * (test/golden/optim/signs.*, made by make_signs.py), the same bits for ranks in and out of step,
 * and for 1 and 3 threads; the bytes that it sends.
 * labels: threads */
#include "accel/cpu/cpu_features.h"
#include "accel/cpu/registry.h"
#include "common/check.h"
#include "common/golden.h"
#include "common/sim_ranks.h"
#include "op/ops.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 512, MOST_RANKS = 4 };

static ds_tensor vector(ds_dtype dtype, void *data, int64_t n)
{
    return (ds_tensor){data, {dtype, ds_shape_1d(n)}};
}

static ds_status apply(ds_ctx *ctx, const ds_op *op, int64_t count, const ds_tensor *in,
                       const ds_tensor *out, uint32_t n_out)
{
    const dsi_signs_attrs attrs = {.count = count};
    const ds_meta in_meta[2] = {in[0].meta, in[1].meta};
    ds_meta out_meta[3] = {{0}};
    for (uint32_t o = 0; o < n_out; ++o) {
        out_meta[o] = out[o].meta;
    }
    const ds_kernel_sig sig = {op, &attrs, 2, n_out, in_meta, out_meta, 1};
    const ds_kernel *kernel = dsi_cpu_kernel_at(&sig, dsi_cpu_isa(), 0);
    const ds_kernel_call call = {.ctx = ctx, .sig = &sig, .in = in, .out = out};
    return kernel != NULL ? kernel->run(&call) : ds_fail(ctx, DS_ERR_INTERNAL, "no kernel");
}

/* ---- the exchange ---------------------------------------------------------------------------- */

typedef struct rank_state {
    float worker_error[MOST], server_error[MOST], result[MOST];
    size_t sent; /* bytes that leave the rank in a round */
} rank_state;

static ds_status carry(dsi_comm *comm, rank_state *s, ds_comm_op kind, ds_dtype dtype, void *in,
                       void *out, size_t count)
{
    const size_t block = count / comm->size;
    const size_t each[MOST_RANKS] = {block, block, block, block};
    const dsi_comm_part part = {in, out, count, kind == DS_COMM_ALL_TO_ALL ? each : NULL,
                                kind == DS_COMM_ALL_TO_ALL ? each : NULL};
    const dsi_comm_call call = {.kind = kind,
                                .dtype = dtype,
                                .factor = 1.0f,
                                .parts = &part,
                                .n_parts = 1,
                                .what = "signs"};
    dsi_comm_ticket ticket = 0;
    s->sent += (comm->size - 1) * block * (dtype == DS_DTYPE_U8 ? 1 : sizeof(float));
    DS_TRY(dsi_comm_start(comm, &call, &ticket));
    return dsi_comm_wait(comm, ticket, NULL);
}

static ds_status reduce(ds_ctx *ctx, dsi_comm *comm, rank_state *s, float *x, int64_t n,
                        int64_t padded)
{
    const int64_t size = comm->size;
    const int64_t chunk = padded / size;
    uint8_t signs[MOST / 8];
    uint8_t others[MOST / 8];
    uint8_t mine[MOST / 8];
    float scale = 0.0f;
    float scales[MOST_RANKS];
    float mean[MOST];
    const ds_tensor worker = vector(DS_DTYPE_F32, s->worker_error, padded);
    const ds_tensor first[2] = {vector(DS_DTYPE_F32, x, n), worker};
    const ds_tensor packed[3] = {vector(DS_DTYPE_U8, signs, padded / 8),
                                 vector(DS_DTYPE_F32, &scale, 1), worker};
    const ds_tensor all[2] = {vector(DS_DTYPE_U8, others, padded / 8),
                              vector(DS_DTYPE_F32, scales, size)};
    const ds_tensor average = vector(DS_DTYPE_F32, mean, chunk);
    const ds_tensor server = vector(DS_DTYPE_F32, s->server_error, chunk);
    const ds_tensor second[2] = {average, server};
    const ds_tensor again[3] = {vector(DS_DTYPE_U8, mine, chunk / 8),
                                vector(DS_DTYPE_F32, &scale, 1), server};
    const ds_tensor result = vector(DS_DTYPE_F32, s->result, n);
    const size_t bytes = (size_t)padded / 8;
    s->sent = 0;
    DS_TRY(apply(ctx, &dsi_op_compress_signs, 0, first, packed, 3));
    DS_TRY(carry(comm, s, DS_COMM_ALL_TO_ALL, DS_DTYPE_U8, signs, others, bytes));
    DS_TRY(carry(comm, s, DS_COMM_ALL_GATHER, DS_DTYPE_F32, &scale, scales, (size_t)size));
    DS_TRY(apply(ctx, &dsi_op_average_signs, 0, all, &average, 1));
    DS_TRY(apply(ctx, &dsi_op_compress_signs, 0, second, again, 3));
    DS_TRY(carry(comm, s, DS_COMM_ALL_GATHER, DS_DTYPE_U8, mine, others, bytes));
    DS_TRY(carry(comm, s, DS_COMM_ALL_GATHER, DS_DTYPE_F32, &scale, scales, (size_t)size));
    return apply(ctx, &dsi_op_expand_signs, n, all, &result, 1);
}

/* ---- against DeepSpeed ----------------------------------------------------------------------- */

typedef struct golden_case {
    const golden_file *file;
    char name[32];
    int64_t n, padded, steps;
    uint32_t n_ranks;
    rank_state *ranks; /* what each ends with */
} golden_case;

static const float *of(const golden_case *c, const char *what, int64_t at)
{
    char name[64];
    (void)snprintf(name, sizeof name, "%s.%s", c->name, what);
    return golden_f32(c->file, name) + at;
}

static uint32_t count_far(const char *what, const float *got, const float *want, int64_t n)
{
    uint32_t far = 0;
    for (int64_t i = 0; i < n; ++i) {
        far += !(fabsf(got[i] - want[i]) <= 1e-8f + 2e-6f * fabsf(want[i])) ? 1 : 0;
    }
    if (far > 0) {
        print_message("%s: %u of %lld differ\n", what, far, (long long)n);
    }
    return far;
}

static uint32_t run_rank(ds_ctx *ctx, dsi_comm *comm, void *arg)
{
    const golden_case *c = arg;
    const int64_t chunk = c->padded / c->n_ranks;
    rank_state s = {{0}, {0}, {0}, 0};
    uint32_t n_failed = 0;
    for (int64_t step = 0; step < c->steps; ++step) {
        const int64_t at = step * c->n_ranks + comm->rank;
        float x[MOST];
        memcpy(x, of(c, "x", at * c->n), (size_t)c->n * sizeof *x);
        if (reduce(ctx, comm, &s, x, c->n, c->padded) < 0) {
            print_message("%s\n", ds_ctx_error(ctx));
            return n_failed + 1;
        }
        n_failed += count_far("result", s.result, of(c, "result", at * c->n), c->n);
        n_failed += count_far("worker error", s.worker_error, of(c, "worker_error", at * c->padded),
                              c->padded);
        n_failed +=
            count_far("server error", s.server_error, of(c, "server_error", at * chunk), chunk);
        /* a bit an element each way, but the own chunk, and two scales a peer */
        const size_t want = (size_t)(c->n_ranks - 1) * (2 * (size_t)chunk / 8 + 2 * sizeof(float));
        n_failed += s.sent != want ? 1 : 0;
    }
    c->ranks[comm->rank] = s;
    return n_failed;
}

/* On ranks in step, and on ranks that are late and out of order: the same bits, and those of the
 * result on every rank. */
static void run_case(golden_case *c)
{
    const dsi_comm_sim_options late = {.seed = 7, .max_delay = 1e-3, .reorder = true};
    rank_state *states = calloc(2 * MOST_RANKS, sizeof *states);
    assert_non_null(states);
    c->ranks = states;
    assert_int_equal(sim_ranks_run(c->n_ranks, NULL, run_rank, c), 0);
    c->ranks = states + MOST_RANKS;
    assert_int_equal(sim_ranks_run(c->n_ranks, &late, run_rank, c), 0);
    assert_memory_equal(states, states + MOST_RANKS, MOST_RANKS * sizeof *states);
    for (uint32_t r = 1; r < c->n_ranks; ++r) {
        assert_memory_equal(states[0].result, states[r].result, sizeof states[r].result);
    }
    free(states);
}

static void test_against_deepspeed(void **state)
{
    (void)state;
    const golden_file file = golden_read("optim/signs.safetensors");
    json_t *root = golden_json("optim/signs.json");
    const json_t *cases = json_object_get(root, "cases");
    assert_true(json_array_size(cases) > 0);
    for (size_t i = 0; i < json_array_size(cases); ++i) {
        const json_t *row = json_array_get(cases, i);
        golden_case c = {.file = &file,
                         .n = (int64_t)golden_number(row, "n"),
                         .padded = (int64_t)golden_number(row, "padded"),
                         .steps = (int64_t)golden_number(root, "steps"),
                         .n_ranks = (uint32_t)golden_number(row, "ranks")};
        (void)snprintf(c.name, sizeof c.name, "%s",
                       json_string_value(json_object_get(row, "name")));
        assert_true(c.padded <= MOST && c.n_ranks <= MOST_RANKS);
        run_case(&c);
    }
    json_decref(root);
    golden_close((golden_file *)&file);
}

/* ---- threads --------------------------------------------------------------------------------- */

enum { LONG = 100000 };

typedef struct long_result {
    float error[LONG];
    uint8_t signs[LONG / 8];
    float scale;
} long_result;

static void compress_long(uint32_t n_threads, float *x, long_result *made)
{
    const ds_ctx_params params = {.level = DS_LOG_ERROR, .n_threads = n_threads};
    ds_ctx *ctx = NULL;
    assert_int_equal(ds_ctx_create(&params, &ctx), DS_OK);
    for (int i = 0; i < LONG; ++i) {
        made->error[i] = sinf((float)i) * 1e-3f;
    }
    const ds_tensor error = vector(DS_DTYPE_F32, made->error, LONG);
    const ds_tensor in[2] = {vector(DS_DTYPE_F32, x, LONG - 5), error};
    const ds_tensor out[3] = {vector(DS_DTYPE_U8, made->signs, LONG / 8),
                              vector(DS_DTYPE_F32, &made->scale, 1), error};
    CHECK_OK(ctx, apply(ctx, &dsi_op_compress_signs, 0, in, out, 3));
    ds_ctx_destroy(&ctx);
}

static void test_threads(void **state)
{
    (void)state;
    float *x = calloc(LONG, sizeof *x);
    long_result *one = calloc(1, sizeof *one);
    long_result *three = calloc(1, sizeof *three);
    assert_true(x != NULL && one != NULL && three != NULL);
    for (int i = 0; i < LONG; ++i) {
        x[i] = cosf((float)i * 3.0f);
    }
    compress_long(1, x, one);
    compress_long(3, x, three);
    assert_true(one->scale > 0.5f);
    assert_memory_equal(one, three, sizeof *one);
    free(x);
    free(one);
    free(three);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_against_deepspeed),
        cmocka_unit_test(test_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
