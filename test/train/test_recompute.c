/* SPDX-License-Identifier: Apache-2.0 */
/* Activation checkpointing: the same bits as without it, in less memory, for as many operations as
 * the plan says. Over several ranks: test_zero_matrix.sh.
 * labels: slow */
#include "common/check.h"
#include "common/engine_hash.h"
#include "common/scratch.h"
#include "common/small_run.h"
#include "pass/policy.h"
#include "train/engine.h"

#include <math.h>
#include <string.h>

enum { BATCH = SMALL_BATCH, SEQ = SMALL_SEQ, LAYERS = 4, STEPS = 3 };

static const char gpt2[] =
    "{\"model_type\":\"gpt2\",\"vocab_size\":211,\"n_positions\":64,\"n_embd\":48,\"n_layer\":4,"
    "\"n_head\":4,\"resid_pdrop\":0.1,\"embd_pdrop\":0.1,\"attn_pdrop\":0.1}";
static const char gpt2_still[] =
    "{\"model_type\":\"gpt2\",\"vocab_size\":211,\"n_positions\":64,\"n_embd\":48,\"n_layer\":4,"
    "\"n_head\":4,\"resid_pdrop\":0.0,\"embd_pdrop\":0.0,\"attn_pdrop\":0.0}";
static const char llama[] =
    "{\"model_type\":\"llama\",\"vocab_size\":211,\"hidden_size\":48,\"intermediate_size\":112,"
    "\"num_hidden_layers\":4,\"num_attention_heads\":4,\"num_key_value_heads\":2,"
    "\"max_position_embeddings\":64,\"rms_norm_eps\":1e-5,\"tie_word_embeddings\":false}";

static const char wide[] =
    "{\"model_type\":\"llama\",\"vocab_size\":211,\"hidden_size\":16,\"intermediate_size\":2048,"
    "\"num_hidden_layers\":2,\"num_attention_heads\":2,\"num_key_value_heads\":1,"
    "\"max_position_embeddings\":64,\"rms_norm_eps\":1e-5,\"tie_word_embeddings\":false}";

typedef struct result {
    uint64_t hash;
    double loss, norm; /* of the first step */
    double flops, again;
    size_t bytes;
} result;

static ds_ctx *ctx;
static char *folder;

static dsi_engine_spec make_spec(ds_dtype dtype, dsi_recompute recompute)
{
    dsi_engine_spec spec = small_spec(dtype);
    spec.train.max_norm = 0.1;
    spec.recompute = recompute;
    return spec;
}

static result train_spec(const char *config, const dsi_engine_spec *spec)
{
    small_batch data;
    result got = {0};
    ds_model *model = small_model(ctx, folder, config);
    ds_engine *engine = small_engine(ctx, model, spec);
    for (int32_t step = 0; step < STEPS; ++step) {
        const ds_batch batch = small_feed(step, &data);
        CHECK_OK(ctx, ds_engine_forward(engine, &batch));
        CHECK_OK(ctx, ds_engine_backward(engine));
        CHECK_OK(ctx, ds_engine_step(engine));
        got.loss = step == 0 ? ds_engine_loss(engine) : got.loss;
        got.norm = step == 0 ? ds_engine_grad_norm(engine) : got.norm;
    }
    CHECK_OK(ctx, engine_hash(ctx, engine, &got.hash));
    got.flops = ds_engine_flops(engine);
    got.again = ds_engine_recomputed_flops(engine);
    got.bytes = engine->train_plan->arena_bytes;
    ds_engine_destroy(&engine);
    ds_model_destroy(&model);
    return got;
}

static result train(const char *config, ds_dtype dtype, dsi_recompute recompute)
{
    const dsi_engine_spec spec = make_spec(dtype, recompute);
    return train_spec(config, &spec);
}

static const dsi_recompute none = {.mode = DS_RECOMPUTE_NONE};
static const dsi_recompute full = {.mode = DS_RECOMPUTE_FULL};

/* Every choice, both families, each dtype: the bits of the run that keeps everything. */
static void every_choice_gives_the_same_bits(void **state)
{
    static const dsi_recompute choices[] = {
        {.mode = DS_RECOMPUTE_SELECTIVE},
        {.mode = DS_RECOMPUTE_SELECTIVE, .operators = "attention, dropout"},
        {.mode = DS_RECOMPUTE_SELECTIVE, .operators = "rms_norm,glu"},
        {.mode = DS_RECOMPUTE_FULL},
        {.mode = DS_RECOMPUTE_FULL, .interval = 2},
        {.mode = DS_RECOMPUTE_FULL, .interval = 3},
        {.mode = DS_RECOMPUTE_FULL, .interval = 100},
        {.mode = DS_RECOMPUTE_FULL, .interval = 1, .n_checkpoints = 2},
    };
    static const char *const configs[] = {gpt2, llama};
    static const ds_dtype dtypes[] = {DS_DTYPE_F32, DS_DTYPE_BF16, DS_DTYPE_F16};
    (void)state;
    for (int c = 0; c < 2; ++c) {
        for (int d = 0; d < 3; ++d) {
            const result kept = train(configs[c], dtypes[d], none);
            assert_true(kept.again == 0.0);
            for (size_t i = 0; i < sizeof choices / sizeof choices[0]; ++i) {
                const result got = train(configs[c], dtypes[d], choices[i]);
                if (got.hash != kept.hash) {
                    fail_msg("%s %s: choice %zu gives other bits", c == 0 ? "gpt2" : "llama",
                             ds_dtype_name(dtypes[d]), i);
                }
                assert_true(got.flops == kept.flops);
            }
        }
    }
}

/* Full recomputation costs one more forward pass through the layers but for what only the output of
 * a layer needs, and keeps little but the inputs of the layers. */
static void memory_falls_and_operations_rise(void **state)
{
    (void)state;
    const result kept = train(llama, DS_DTYPE_BF16, none);
    const result again = train(llama, DS_DTYPE_BF16, full);
    const result cheap =
        train(llama, DS_DTYPE_BF16, (dsi_recompute){.mode = DS_RECOMPUTE_SELECTIVE});
    print_message("arena: kept %zu, selective %zu, full %zu bytes; operations again: %.0f, %.0f of "
                  "%.0f\n",
                  kept.bytes, cheap.bytes, again.bytes, cheap.again, again.again, kept.flops);
    assert_true(again.bytes < cheap.bytes && cheap.bytes < kept.bytes);
    assert_true(again.bytes * 10 < kept.bytes * 7);
    const double n = BATCH * SEQ;
    /* q, k, v, o, gate and up of each layer; down only makes the layer's output, which is kept */
    const double products = 2.0 * n * 48 * (48 + 24 + 24 + 48 + 112 + 112) * LAYERS;
    assert_true(again.again > products && again.again < 1.25 * products);
    assert_true(cheap.again < 0.1 * products);
}

/* Whether the plan of a choice computes an operator again. */
static bool repeats(dsi_recompute choice, const char *op)
{
    const dsi_engine_spec spec = make_spec(DS_DTYPE_BF16, choice);
    ds_model *model = small_model(ctx, folder, llama);
    ds_engine *engine = small_engine(ctx, model, &spec);
    bool any = false;
    for (uint32_t s = 0; s < engine->train_plan->n_steps; ++s) {
        const dsi_step *step = &engine->train_plan->steps[s];
        any = any || (step->recomputed && strcmp(step->op->name, op) == 0);
    }
    ds_engine_destroy(&engine);
    ds_model_destroy(&model);
    return any;
}

static void what_is_listed_is_repeated(void **state)
{
    const dsi_recompute cheap = {.mode = DS_RECOMPUTE_SELECTIVE};
    const dsi_recompute listed = {.mode = DS_RECOMPUTE_SELECTIVE,
                                  .operators = "attention,  rms_norm"};
    (void)state;
    assert_true(repeats(full, "linear") && repeats(full, "attention"));
    assert_true(repeats(cheap, "rms_norm") && repeats(cheap, "glu"));
    assert_false(repeats(cheap, "linear") || repeats(cheap, "attention"));
    assert_true(repeats(listed, "attention") && repeats(listed, "rms_norm"));
    assert_false(repeats(listed, "glu") || repeats(listed, "linear"));
}

/* Layers that are computed again together: inside of a group their outputs are, too. Of four layers
 * three checkpoints make groups of two. */
static void groups_repeat_what_lies_between(void **state)
{
    double again[4];
    double counted[4];
    (void)state;
    for (int64_t n = 1; n <= 3; ++n) {
        again[n] =
            train(llama, DS_DTYPE_BF16, (dsi_recompute){.mode = DS_RECOMPUTE_FULL, .interval = n})
                .again;
        counted[n] =
            train(llama, DS_DTYPE_BF16,
                  (dsi_recompute){.mode = DS_RECOMPUTE_FULL, .interval = 1, .n_checkpoints = n})
                .again;
    }
    print_message("again: groups of 1, 2, 3: %.0f, %.0f, %.0f; 1, 2, 3 groups: %.0f, %.0f, %.0f\n",
                  again[1], again[2], again[3], counted[1], counted[2], counted[3]);
    const double down = 2.0 * BATCH * SEQ * 112 * 48;
    assert_true(again[2] >= again[1] + 2 * down && again[2] < again[1] + 2.5 * down);
    assert_true(again[3] >= again[1] + 2 * down && again[3] < again[1] + 2.5 * down);
    assert_true(counted[2] == again[2] && counted[3] == again[2]);
    assert_true(counted[1] >= again[1] + 3 * down && counted[1] < again[1] + 3.5 * down);
}

/* What leaves the graph, or its group, is kept. */
static void what_leaves_is_kept(void **state)
{
    const ds_meta meta = {DS_DTYPE_F32, {.n_dims = 1, .dims = {8}}};
    const ds_cell_info info = {.name = "x", .kind = DS_CELL_INPUT, .meta = meta, .of = DS_NONE};
    const ds_op *op = ds_op_find("exp");
    ds_cells *cells = NULL;
    ds_graph *graph = NULL;
    ds_cell cell = DS_NONE;
    ds_value v[5];
    bool drop[8];
    (void)state;
    CHECK_OK(ctx, ds_cells_create(ctx, 8, &cells));
    CHECK_OK(ctx, ds_cells_add(cells, &info, &cell));
    CHECK_OK(ctx, ds_graph_create(ctx, cells, &graph));
    CHECK_OK(ctx, ds_graph_read(graph, cell, &v[0]));
    for (uint32_t i = 1; i < 5; ++i) {
        ds_graph_set_region(graph, i < 4 ? 1 : 2);
        CHECK_OK(ctx, ds_graph_apply(graph, op, NULL, &v[i - 1], 1, &v[i]));
    }
    CHECK_OK(ctx, ds_graph_output(graph, "early", v[2]));
    CHECK_OK(ctx, ds_graph_output(graph, "last", v[4]));
    CHECK_OK(ctx, dsi_policy_recompute(graph, &full, drop));
    assert_true(!drop[v[0]] && drop[v[1]] && !drop[v[2]] && !drop[v[3]] && !drop[v[4]]);
    ds_graph_destroy(&graph);
    ds_cells_destroy(&cells);
}

/* A limit makes the choice, or refuses before anything is allocated. */
static void the_limit_chooses(void **state)
{
    static const ds_recompute expected[] = {DS_RECOMPUTE_NONE, DS_RECOMPUTE_SELECTIVE,
                                            DS_RECOMPUTE_FULL};
    size_t need[3];
    (void)state;
    for (int round = 0; round < 2; ++round) {
        for (int i = 0; i < 3; ++i) {
            ds_engine *engine = NULL;
            ds_model *model = small_model(ctx, folder, llama);
            dsi_engine_spec spec =
                make_spec(DS_DTYPE_BF16,
                          (dsi_recompute){.mode = round == 0 ? expected[i] : DS_RECOMPUTE_AUTO});
            const ds_engine_params params = {.model = model, .seq_length = SEQ};
            spec.device_memory = round == 0 ? 0 : need[i];
            CHECK_OK(ctx, dsi_engine_create(ctx, &params, &spec, &engine));
            assert_int_equal(engine->spec.recompute.mode, expected[i]);
            need[i] = round == 0 ? ds_engine_planned_bytes(engine) : need[i];
            ds_engine_destroy(&engine);
            if (round == 1 && i == 2) {
                spec.device_memory = need[i] - need[i] / 50;
                CHECK_FAILS(ctx, dsi_engine_create(ctx, &params, &spec, &engine), DS_ERR_LIMIT,
                            "device_memory: the plan needs");
            }
            ds_model_destroy(&model);
        }
    }
}

/* Tiles of the feed-forward part: the loss bit for bit, gradients but for the order in which
 * parameters' parts are added, and less memory; recomputation changes no bit of that. */
static void tiles_compute_the_same(void **state)
{
    static const char *const configs[] = {gpt2_still, llama};
    static const ds_dtype dtypes[] = {DS_DTYPE_F32, DS_DTYPE_BF16};
    static const int64_t rows[] = {5, 16, 24, 47};
    (void)state;
    for (int c = 0; c < 2; ++c) {
        for (int d = 0; d < 2; ++d) {
            dsi_engine_spec spec = make_spec(dtypes[d], none);
            const result whole = train_spec(configs[c], &spec);
            for (size_t r = 0; r < sizeof rows / sizeof rows[0]; ++r) {
                spec.train.mlp_rows = rows[r];
                spec.recompute.mode = DS_RECOMPUTE_NONE;
                const result tiled = train_spec(configs[c], &spec);
                spec.recompute.mode = DS_RECOMPUTE_FULL;
                const result again = train_spec(configs[c], &spec);
                const double off = fabs(tiled.norm - whole.norm) / whole.norm;
                print_message("%s %s, %lld a tile: norm off by %.2g\n", c == 0 ? "gpt2" : "llama",
                              ds_dtype_name(dtypes[d]), (long long)rows[r], off);
                assert_true(tiled.loss == whole.loss);
                assert_true(off < (dtypes[d] == DS_DTYPE_F32 ? 1e-6 : 1e-3));
                assert_true(again.hash == tiled.hash);
            }
        }
    }
    dsi_engine_spec spec = make_spec(DS_DTYPE_BF16, full);
    const result whole = train_spec(wide, &spec);
    spec.train.mlp_rows = 6;
    const result tiled = train_spec(wide, &spec);
    print_message("arena %zu, tiled %zu\n", whole.bytes, tiled.bytes);
    assert_true(tiled.bytes < whole.bytes);
}

static void dropout_in_a_tile_is_refused(void **state)
{
    ds_engine *engine = NULL;
    ds_model *model = small_model(ctx, folder, gpt2);
    dsi_engine_spec spec = make_spec(DS_DTYPE_F32, none);
    const ds_engine_params params = {.model = model, .seq_length = SEQ};
    (void)state;
    spec.train.mlp_rows = 8;
    CHECK_FAILS(ctx, dsi_engine_create(ctx, &params, &spec, &engine), DS_ERR_UNSUPPORTED,
                "dropout inside of tiles");
    ds_model_destroy(&model);
}

static void nothing_to_recompute_is_an_error(void **state)
{
    (void)state;
    ds_engine *engine = NULL;
    ds_model *model = small_model(ctx, folder, gpt2);
    const dsi_engine_spec spec = make_spec(
        DS_DTYPE_F32, (dsi_recompute){.mode = DS_RECOMPUTE_SELECTIVE, .operators = "glue"});
    const ds_engine_params params = {.model = model, .seq_length = SEQ};
    CHECK_FAILS(ctx, dsi_engine_create(ctx, &params, &spec, &engine), DS_ERR_CONFIG,
                "there is no operator \"glue\"");
    ds_model_destroy(&model);
}

/* A model of one's own without regions cannot be recomputed: said, not ignored. */
static void regions_are_asked_for(void **state)
{
    (void)state;
    ds_cells *cells = NULL;
    ds_graph *graph = NULL;
    ds_nn *nn = NULL;
    bool drop[64];
    const ds_trace trace = {.dtype = DS_DTYPE_F32, .batch = 1, .seq_length = 1};
    CHECK_OK(ctx, ds_cells_create(ctx, 64, &cells));
    CHECK_OK(ctx, ds_graph_create(ctx, cells, &graph));
    CHECK_OK(ctx, ds_nn_create(graph, &trace, &nn));
    const ds_value x = ds_nn_input(nn, "x", DS_DTYPE_F32, ds_shape_2d(8, 16));
    (void)ds_nn_linear(nn, "fc", x, &(ds_linear_params){.n_out = 16});
    CHECK_OK(ctx, ds_nn_status(nn));
    CHECK_FAILS(ctx, dsi_policy_recompute(graph, &full, drop), DS_ERR_UNSUPPORTED,
                "the model marks no region");
    ds_nn_region_begin(nn);
    ds_nn_region_begin(nn);
    CHECK_FAILS(ctx, ds_nn_status(nn), DS_ERR_STATE, "a region begins inside a region");
    ds_nn_destroy(&nn);
    ds_graph_destroy(&graph);
    ds_cells_destroy(&cells);
}

static int setup(void **state)
{
    (void)state;
    folder = scratch_make();
    return ds_ctx_create(NULL, &ctx);
}

static int teardown(void **state)
{
    (void)state;
    scratch_remove(folder);
    ds_ctx_destroy(&ctx);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_choice_gives_the_same_bits),
        cmocka_unit_test(memory_falls_and_operations_rise),
        cmocka_unit_test(what_is_listed_is_repeated),
        cmocka_unit_test(groups_repeat_what_lies_between),
        cmocka_unit_test(what_leaves_is_kept),
        cmocka_unit_test(the_limit_chooses),
        cmocka_unit_test(tiles_compute_the_same),
        cmocka_unit_test(dropout_in_a_tile_is_refused),
        cmocka_unit_test(nothing_to_recompute_is_an_error),
        cmocka_unit_test(regions_are_asked_for),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
