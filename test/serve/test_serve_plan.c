/* SPDX-License-Identifier: Apache-2.0 */
/* What a server is planned to take is what it maps: weights, keys and values, a batch, in each
 * dtype and for many sizes drawn at random; by the model alone, with the same sizes in force.
 * labels: slow */
#include "base/machine_memory.h"
#include "common/parity.h"
#include "serve/server.h"

#include <deepspeed/serve.h>
#include <string.h>

enum { TRIALS = 24 };

static int64_t between(uint64_t *seed, int64_t least, int64_t most)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return least + (int64_t)((*seed >> 33) % (uint64_t)(most - least + 1));
}

/* single: bytes of weights that are in fp32 whatever the dtype. */
static void check(ds_ctx *ctx, const parity_case *p, size_t single, uint64_t *seed)
{
    static const ds_dtype dtypes[] = {DS_DTYPE_F32, DS_DTYPE_BF16, DS_DTYPE_F16};
    static const ds_dtype cells[] = {DS_DTYPE_NONE, DS_DTYPE_I8, DS_DTYPE_F16, DS_DTYPE_F32};
    const int64_t length = between(seed, 8, 60);
    ds_serve_params params = {
        .source = {.model = p->model, .max_length = length, .dtype = dtypes[between(seed, 0, 2)]},
        .max_sequences = between(seed, 1, 20),
        .kv_tokens = between(seed, 1, 40) * 64,
        .embeddings = between(seed, 0, 1) == 1,
        .kv_type = cells[between(seed, 0, 3)]};
    ds_serve_needs planned;
    ds_server *server = NULL;
    params.max_batch_tokens = params.max_sequences + between(seed, 0, 100);
    const bool pairs = ds_model_get_info(p->model)->pairs;
    if (ds_model_get_info(p->model)->carries) {
        params.state_snapshots = between(seed, 0, 5);
        params.max_draft = between(seed, 0, 1);
    }
    if (pairs) { /* a source of a block beside a text of one; no fp16 */
        params.kv_tokens += 64;
        params.source.dtype =
            params.source.dtype == DS_DTYPE_F16 ? DS_DTYPE_BF16 : params.source.dtype;
    }
    CHECK_OK(ctx, ds_serve_plan(ctx, &params, &planned));
    params.source.weights = p->folder;
    CHECK_OK(ctx, ds_serve_create(ctx, &params, &server));
    /* weights that the folder has in this dtype are mostly bound, not mapped anew */
    const size_t bound = params.source.dtype == DS_DTYPE_F32 ? (size_t)planned.weights : single;
    const size_t own = dsi_exec_bytes(server->generator->exec);
    /* of two threads */
    const size_t drawn = 2 * ((size_t)p->vocab * 18 + (size_t)length * 4) + (size_t)p->vocab * 12;
    const size_t want =
        (size_t)(planned.weights + planned.keys_values + planned.states + planned.batch) - drawn;
    if (own > want || own + bound < want) {
        fail_msg("planned %zu bytes, mapped %zu", want, own);
    }
    assert_int_equal(planned.kv_tokens, params.kv_tokens);
    assert_int_equal(planned.max_length, length);
    assert_int_equal(planned.max_sequences, params.max_sequences);
    assert_int_equal(planned.max_batch_tokens, params.max_batch_tokens);
    assert_int_equal(planned.dtype, params.source.dtype);
    assert_int_equal(planned.kv_type,
                     params.kv_type != DS_DTYPE_NONE ? params.kv_type : params.source.dtype);
    assert_int_equal(planned.position, planned.keys_values / (uint64_t)planned.kv_tokens);
    assert_int_equal(planned.total, want + drawn + planned.process);
    assert_int_equal(planned.available, dsi_machine_memory());
    ds_serve_destroy(&server);
    if (ds_model_get_info(p->model)->carries || pairs) {
        return; /* no drafter */
    }

    /* with a drafter, here the model itself: what both map */
    const ds_generator_params draft = {
        .model = p->model, .weights = p->folder, .dtype = params.source.dtype};
    ds_serve_needs both;
    params.draft = &draft;
    params.max_draft = 2;
    params.source.weights = NULL;
    CHECK_OK(ctx, ds_serve_plan(ctx, &params, &both));
    assert_int_equal(both.weights, 2 * planned.weights);
    assert_int_equal(both.keys_values, 2 * planned.keys_values);
    assert_int_equal(both.position, 2 * planned.position);
    params.source.weights = p->folder;
    CHECK_OK(ctx, ds_serve_create(ctx, &params, &server));
    const size_t two =
        dsi_exec_bytes(server->generator->exec) + dsi_exec_bytes(server->drafter->generator->exec);
    const size_t most = (size_t)(both.weights + both.keys_values + both.batch) - 2 * drawn;
    if (two > most || two + 2 * bound < most) {
        fail_msg("planned %zu bytes of both, mapped %zu", most, two);
    }
    ds_serve_destroy(&server);
}

static void planned_is_mapped(void **state)
{
    static const struct {
        const char *name;
        size_t single;
    } cases[] = {
        {"gpt2", 0},       {"llama3_tied", 0},      {"qwen3_moe", 0},
        {"qwen3_next", 0}, {"deepseek_v3", 2 * 64}, /* biases of the choice, of two layers */
        {"t5_untied", 0}};
    for (size_t m = 0; m < sizeof cases / sizeof *cases; ++m) {
        parity_case p;
        uint64_t seed = m;
        (strncmp(cases[m].name, "t5", 2) == 0 ? parity_open_pairs : parity_open)(*state,
                                                                                 cases[m].name, &p);
        for (int i = 0; i < TRIALS; ++i) {
            check(*state, &p, cases[m].single, &seed);
        }
        parity_close(&p);
    }
}

/* A position of a layer is its narrow vector (16) and the key that all heads share (4), once: not 4
 * heads of 12, of keys and of values; with slots for adapters it is those. */
static void latent_cells_are_narrow(void **state)
{
    static const struct {
        const char *name;
        uint64_t n_layers;
    } cases[] = {{"deepseek_v2", 2}, {"deepseek_v3", 3}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        parity_case p;
        ds_serve_needs needs;
        parity_open(*state, cases[i].name, &p);
        ds_serve_params params = {
            .source = {.model = p.model, .dtype = DS_DTYPE_BF16, .max_length = 60},
            .kv_tokens = 640};
        CHECK_OK(*state, ds_serve_plan(*state, &params, &needs));
        assert_int_equal(needs.position, cases[i].n_layers * (16 + 4) * 2);
        params.kv_type = DS_DTYPE_I8;
        CHECK_OK(*state, ds_serve_plan(*state, &params, &needs));
        assert_int_equal(needs.position, cases[i].n_layers * (16 + 4 + 4));
        params.kv_type = DS_DTYPE_NONE;
        params.adapters = 1;
        params.adapter_rank = 4;
        CHECK_OK(*state, ds_serve_plan(*state, &params, &needs));
        assert_int_equal(needs.position, cases[i].n_layers * 2 * 4 * 12 * 2);
        parity_close(&p);
    }
}

/* Of each sequence and layer of linear attention: a matrix (10,6) in fp32 for each of 4 heads, and
 * 2 positions of q and k (2 heads of 10) and v (4 of 6). */
static void states_are_counted(void **state)
{
    parity_case p;
    ds_serve_needs needs;
    parity_open(*state, "qwen3_next", &p);
    ds_serve_params params = {
        .source = {.model = p.model, .dtype = DS_DTYPE_BF16, .max_length = 60},
        .max_sequences = 64,
        .max_batch_tokens = 64,
        .kv_tokens = 640};
    CHECK_OK(*state, ds_serve_plan(*state, &params, &needs));
    const uint64_t row = 2 * (4 * 10 * 6 * 4 + 2 * (20 + 20 + 24) * 2);
    assert_int_equal(needs.states, 2 * 64 * row); /* and as many snapshots */
    assert_int_equal(needs.state_snapshots, 64);
    assert_int_equal(needs.position, 2 * 2 * 8 * 2); /* of one layer: 2 heads of 8 */
    params.max_draft = 2;
    params.state_snapshots = 5;
    params.max_batch_tokens = 100;
    CHECK_OK(*state, ds_serve_plan(*state, &params, &needs));
    assert_int_equal(needs.state_rows, 2 * 64 + 5);
    params.state_snapshots = 0;
    params.max_draft = 0;
    params.no_prefix_cache = true;
    CHECK_OK(*state, ds_serve_plan(*state, &params, &needs));
    assert_int_equal(needs.state_rows, 64);
    assert_int_equal(needs.state_snapshots, 0);
    parity_close(&p);
}

/* Refused before anything is read: there is no folder of weights. */
static void too_much_is_refused_before_loading(void **state)
{
    parity_case p;
    ds_server *server = NULL;
    ds_serve_needs planned;
    parity_open(*state, "llama3", &p);
    const ds_serve_params params = {
        .source = {.model = p.model, .weights = p.folder, .dtype = DS_DTYPE_F32, .max_length = 64},
        .kv_tokens = (INT32_MAX / 2 / 64) * 64};
    CHECK_OK(*state, ds_serve_plan(*state, &params, &planned));
    if (planned.available > 0 && planned.total > planned.available) {
        CHECK_FAILS(*state, ds_serve_create(*state, &params, &server), DS_ERR_NOMEM,
                    "kv_tokens of at most");
    }
    parity_close(&p);
}

static int make_ctx(void **state)
{
    const ds_ctx_params params = {.level = DS_LOG_ERROR, .n_threads = 2};
    return ds_ctx_create(&params, (ds_ctx **)state) < 0;
}

static int drop_ctx(void **state)
{
    ds_ctx_destroy((ds_ctx **)state);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(planned_is_mapped),
        cmocka_unit_test(latent_cells_are_narrow),
        cmocka_unit_test(states_are_counted),
        cmocka_unit_test(too_much_is_refused_before_loading),
    };
    return cmocka_run_group_tests(tests, make_ctx, drop_ctx);
}
