/* SPDX-License-Identifier: Apache-2.0 */
/* labels: threads long slow
 * Experts shared by ranks train as those that every rank has: losses, norms, weights and states
 * have the bits of the data-parallel run on as many ranks, in every ZeRO stage, whatever the loads:
 * all tokens to one expert, experts without any, a capacity that drops some. Also where ranks share
 * sequences or layers, against the same mesh without ep. What one mesh saves, another resumes.
 */
#include "common/check.h"
#include "common/engine_hash.h"
#include "common/rank_threads.h"
#include "common/scratch.h"
#include "common/small_run.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 3, MOST_FAMILIES = 5, N_MODELS = 6 };

#define COMMON                                                                                     \
    "\"vocab_size\":212,\"hidden_size\":48,\"num_hidden_layers\":2,\"num_attention_heads\":4,"     \
    "\"num_key_value_heads\":2,\"max_position_embeddings\":64,\"tie_word_embeddings\":false,"

static const struct {
    const char *name, *text;
} families[N_MODELS] = {
    {"mixtral.json", "{\"model_type\":\"mixtral\"," COMMON
                     "\"intermediate_size\":40,\"num_local_experts\":4,\"num_experts_per_tok\":2,"
                     "\"output_router_logits\":true,\"router_aux_loss_coef\":0.05}"},
    {"qwen2.json", "{\"model_type\":\"qwen2_moe\"," COMMON
                   "\"intermediate_size\":40,\"moe_intermediate_size\":24,"
                   "\"shared_expert_intermediate_size\":32,\"num_experts\":8,"
                   "\"num_experts_per_tok\":3,\"decoder_sparse_step\":1}"},
    {"qwen3.json", "{\"model_type\":\"qwen3_moe\"," COMMON
                   "\"intermediate_size\":40,\"moe_intermediate_size\":24,\"head_dim\":12,"
                   "\"num_experts\":8,\"num_experts_per_tok\":2,\"norm_topk_prob\":true,"
                   "\"decoder_sparse_step\":2}"},
    {"olmoe.json", "{\"model_type\":\"olmoe\"," COMMON
                   "\"intermediate_size\":24,\"num_experts\":4,\"num_experts_per_tok\":1}"},
    {"granite.json", "{\"model_type\":\"granitemoe\"," COMMON
                     "\"intermediate_size\":24,\"num_local_experts\":4,\"num_experts_per_tok\":2}"},
    {"six.json", "{\"model_type\":\"mixtral\"," COMMON
                 "\"intermediate_size\":40,\"num_local_experts\":6,\"num_experts_per_tok\":2,"
                 "\"output_router_logits\":true,\"router_aux_loss_coef\":0.05}"},
};

typedef struct result {
    uint64_t hash;
    double loss[STEPS], norm[STEPS];
} result;

typedef struct run {
    const char *model; /* NULL: one of a program's own, with ds_nn_moe */
    uint32_t n_data, ep, sp, tp, stage;
    uint32_t folded; /* of dsi_zero_spec */
    int64_t accumulation;
    ds_dtype dtype;
    bool one_token;          /* every token is the same one: all go to the same experts */
    bool one_layer_capacity; /* of the program's own: a capacity that drops by score */
    char *folder;
    int first, last; /* as in test_tensor_parallel.c */
    size_t bytes;    /* of the parameters, their gradients and states on the first rank */
    result results[RANK_THREADS_MAX];
} run;

static dsi_engine_spec spec_of(const run *r)
{
    dsi_engine_spec spec = small_spec(r->dtype);
    spec.train.accumulation = r->accumulation > 0 ? r->accumulation : 1;
    spec.train.max_norm = 0.5;
    spec.train.comm_dtype = DS_DTYPE_F32;
    spec.zero = (dsi_zero_spec){.tp = r->tp,
                                .sp = r->sp,
                                .ep = r->ep,
                                .folded = r->folded,
                                .stage = r->stage,
                                .reduce_each = true,
                                .comm_dtype = DS_DTYPE_F32,
                                .reduce_bucket = 5000,
                                .gather_bucket = 5000,
                                .max_live = 1000,
                                .max_reuse_distance = 1000};
    return spec;
}

typedef struct feeder {
    int32_t next, stride;
    bool one_token;
    bool own; /* the model takes input_ids and targets alone */
    small_batch batch;
} feeder;

static ds_status feed(void *user, ds_batch *batch_out)
{
    feeder *f = user;
    *batch_out = small_feed(f->next, &f->batch);
    batch_out->n_tensors = f->own ? 2 : batch_out->n_tensors;
    for (size_t i = 0; i < batch_out->n_tensors && f->one_token; ++i) {
        const ds_tensor *t = &f->batch.tensors[i].tensor;
        const int64_t n = ds_shape_count(t->meta.shape);
        for (int64_t k = 0; k < n && strcmp(f->batch.tensors[i].name, "input_ids") == 0; ++k) {
            ((int32_t *)t->data)[k] = 7;
        }
    }
    f->next += f->stride;
    return DS_OK;
}

static ds_status train(dsi_comm *comm, run *r, ds_engine *engine)
{
    const dsi_mesh *mesh = &engine->spec.zero.mesh;
    const int32_t each = (int32_t)(r->n_data * engine->spec.train.accumulation);
    const int last = r->last > 0 ? r->last : STEPS;
    feeder f = {.next = (int32_t)dsi_mesh_data_rank(mesh, comm->rank) + r->first * each,
                .stride = (int32_t)r->n_data,
                .one_token = r->one_token,
                .own = r->model == NULL};
    result *got = &r->results[comm->rank];
    DS_TRY(r->first > 0 ? ds_engine_load_checkpoint(engine, r->folder, NULL, NULL) : DS_OK);
    for (int step = r->first; step < last; ++step) {
        DS_TRY(ds_engine_train_batch(engine, feed, &f, &got->loss[step]));
        got->norm[step] = ds_engine_grad_norm(engine);
    }
    DS_TRY(last < STEPS ? ds_engine_save_checkpoint(engine, r->folder, NULL, NULL) : DS_OK);
    return engine_hash(comm->ctx, engine, &got->hash);
}

typedef struct own_config {
    int64_t by_score;
} own_config;

/* Two layers: dropless, residual; and with a capacity that some experts exceed. */
static void trace_own(ds_nn *nn, const void *config)
{
    const own_config *c = config;
    const ds_trace *t = ds_nn_trace(nn);
    const ds_moe_params plain = {.n_experts = 4,
                                 .n_chosen = 2,
                                 .width = 40,
                                 .activation = DS_ACT_SILU,
                                 .gated = true,
                                 .residual = true};
    ds_moe_params drops = {.n_experts = 8,
                           .n_chosen = 3,
                           .width = 24,
                           .activation = DS_ACT_GELU_TANH,
                           .drop_by_score = c->by_score != 0};
    drops.capacity_factor = drops.eval_capacity_factor =
        t->sequence_ranks > 1 || t->token_ranks > 1 ? 0.0 : 0.6;
    const ds_value ids =
        ds_nn_input(nn, "input_ids", DS_DTYPE_I32, ds_shape_2d(t->batch, t->seq_length));
    const ds_value targets =
        ds_nn_input(nn, "targets", DS_DTYPE_I32, ds_shape_2d(t->batch, t->seq_length));
    ds_value balance = DS_NONE;
    ds_value x = ds_nn_embedding(nn, "embed", ids, 212, 48, 0.5);
    x = ds_nn_add(nn, x, ds_nn_moe(nn, "first", x, &plain, NULL));
    x = ds_nn_add(nn, x, ds_nn_moe(nn, "second", x, &drops, &balance));
    const ds_value head =
        ds_nn_param(nn, "head", ds_shape_2d(212, 48), (ds_init){DS_INIT_NORMAL, 0.1}, false);
    (void)ds_nn_linear_cross_entropy(nn, x, head, targets);
    ds_nn_output(nn, "balance", balance);
}

static ds_status make_model(ds_ctx *ctx, const run *r, ds_model **model_out)
{
    static const ds_attr fields[] = {{"by_score", DS_ATTR_INT, offsetof(own_config, by_score)}};
    static const own_config configs[2] = {{0}, {1}};
    const ds_model_info info = {
        .architecture = "own", .vocab_size = 212, .fields = fields, .n_fields = 1};
    return r->model != NULL
               ? ds_model_from_config(ctx, scratch_path(r->folder, r->model), model_out)
               : ds_model_custom(ctx, &info, trace_own, &configs[r->one_layer_capacity ? 1 : 0],
                                 model_out);
}

static ds_status run_rank(dsi_comm *comm, void *arg)
{
    run *r = arg;
    const dsi_engine_spec spec = spec_of(r);
    ds_model *model = NULL;
    ds_engine *engine = NULL;
    DS_TRY(make_model(comm->ctx, r, &model));
    const ds_engine_params params = {.model = model,
                                     .seq_length = SMALL_SEQ,
                                     .seed = 5,
                                     .comm = comm,
                                     .memory_bytes = SMALL_MEMORY};
    ds_status status = dsi_engine_create(comm->ctx, &params, &spec, &engine);
    status = status < 0 ? status : train(comm, r, engine);
    if (status >= 0 && comm->rank == 0) {
        r->bytes = 0;
        for (ds_cell c = 0; c < ds_cells_count(engine->local); ++c) {
            r->bytes += ds_meta_bytes(ds_cells_get(engine->local, c)->meta);
        }
    }
    ds_engine_destroy(&engine);
    ds_model_destroy(&model);
    return status;
}

static uint32_t or_one(uint32_t n)
{
    return n > 0 ? n : 1;
}

static result run_steps(run *r)
{
    const uint32_t n = r->n_data * or_one(r->sp) * or_one(r->tp);
    rank_results said;
    memset(r->results, 0, sizeof r->results);
    if (rank_threads_run(n, NULL, run_rank, r, &said) != DS_OK) {
        fail_msg("%s: %s", r->model != NULL ? r->model : "own", said.message[0]);
    }
    for (uint32_t i = 1; i < n; ++i) {
        assert_memory_equal(&r->results[i], &r->results[0], sizeof r->results[0]);
    }
    return r->results[0];
}

static char *make_folder(void)
{
    char *folder = scratch_make();
    for (size_t i = 0; i < N_MODELS; ++i) {
        scratch_write(scratch_path(folder, families[i].name), families[i].text,
                      strlen(families[i].text));
    }
    return folder;
}

static void expect_same(const run *r, const result *got, const result *want)
{
    for (int step = 0; step < STEPS; ++step) {
        if (got->loss[step] != want->loss[step] || got->norm[step] != want->norm[step]) {
            fail_msg("%s, ep %u of %u, stage %u, step %d: loss %.9g, expected %.9g; norm %.9g, "
                     "expected %.9g",
                     r->model != NULL ? r->model : "own", r->ep, r->n_data, r->stage, step,
                     got->loss[step], want->loss[step], got->norm[step], want->norm[step]);
        }
    }
    assert_true(got->hash == want->hash);
}

/* With ep against the same mesh without. */
static void same_bits(run r)
{
    run without = r;
    without.ep = 0;
    without.stage = 0;
    const result want = run_steps(&without);
    const result got = run_steps(&r);
    expect_same(&r, &got, &want);
    assert_true(or_one(r.sp) > 1 || r.bytes < without.bytes); /* a rank has its experts alone */
}

static void families_have_the_bits_of_data_parallelism(void **state)
{
    (void)state;
    char *folder = make_folder();
    for (uint32_t i = 0; i < 2 * MOST_FAMILIES; ++i) {
        if (!check_long_row(i)) {
            continue;
        }
        same_bits((run){.model = families[i % MOST_FAMILIES].name,
                        .folder = folder,
                        .n_data = i < MOST_FAMILIES ? 2 : 4,
                        .ep = i < MOST_FAMILIES || i % 2 == 0 ? 2 : 4,
                        .stage = i % 4,
                        .accumulation = 1 + i % 3 % 2,
                        .dtype = i % 3 == 2 ? DS_DTYPE_BF16 : DS_DTYPE_F32});
    }
    scratch_remove(folder);
}

static void whatever_the_loads(void **state)
{
    (void)state;
    char *folder = make_folder();
    for (uint32_t i = 0; i < 4; ++i) {
        same_bits((run){.model = i % 2 == 0 ? "olmoe.json" : "qwen2.json",
                        .folder = folder,
                        .n_data = i < 2 ? 2 : 4,
                        .ep = i < 2 ? 2 : 4,
                        .stage = i,
                        .one_token = true,
                        .dtype = DS_DTYPE_F32});
    }
    scratch_remove(folder);
}

static void a_layer_of_ones_own(void **state)
{
    (void)state;
    char *folder = make_folder();
    for (uint32_t i = 0; i < 4; ++i) {
        same_bits((run){.folder = folder,
                        .n_data = 2 + i % 2 * 2,
                        .ep = 2,
                        .stage = i,
                        .one_token = i == 2,
                        .one_layer_capacity = i % 2 == 0,
                        .dtype = DS_DTYPE_F32});
    }
    scratch_remove(folder);
}

static void beside_other_axes(void **state)
{
    (void)state;
    char *folder = make_folder();
    same_bits((run){.model = "mixtral.json",
                    .folder = folder,
                    .n_data = 2,
                    .ep = 2,
                    .tp = 2,
                    .stage = 3,
                    .dtype = DS_DTYPE_F32});
    same_bits((run){.model = "qwen3.json",
                    .folder = folder,
                    .n_data = 2,
                    .ep = 2,
                    .sp = 2,
                    .stage = 2,
                    .dtype = DS_DTYPE_F32});
    same_bits((run){.model = "qwen2.json",
                    .folder = folder,
                    .n_data = 4,
                    .ep = 2,
                    .sp = 2,
                    .stage = 3,
                    .dtype = DS_DTYPE_F32});
    same_bits(
        (run){.folder = folder, .n_data = 2, .ep = 2, .sp = 2, .stage = 1, .dtype = DS_DTYPE_F32});
    scratch_remove(folder);
}

/* fp32: a sum of n products in another order differs by some n·2^-24 of its terms. */
static void expect_near(run shared, run one)
{
    const result want = run_steps(&one);
    const result got = run_steps(&shared);
    for (int step = 0; step < STEPS; ++step) {
        const double near = 256.0 / (1 << 24);
        if (!(fabs(got.loss[step] - want.loss[step]) <= near * want.loss[step]) ||
            !(fabs(got.norm[step] - want.norm[step]) <= 8 * near * want.norm[step])) {
            fail_msg("%s, tp %u, sp %u, step %d: loss %.9g, expected %.9g; norm %.9g, expected "
                     "%.9g",
                     one.model != NULL ? one.model : "own", shared.tp, shared.sp, step,
                     got.loss[step], want.loss[step], got.norm[step], want.norm[step]);
        }
    }
}

static void near_one_rank_where_sequences_are_shared(void **state)
{
    (void)state;
    char *folder = make_folder();
    for (uint32_t i = 0; i < MOST_FAMILIES; ++i) {
        run one = {.model = families[i].name, .folder = folder, .n_data = 1, .dtype = DS_DTYPE_F32};
        run shared = one;
        if (!check_long_row(i)) {
            continue;
        }
        shared.sp = 2;
        expect_near(shared, one);
    }
    scratch_remove(folder);
}

/* Whole experts on ranks along tp, sp and dp, in every stage with the same bits. */
static void folded_over_other_axes(void **state)
{
    static const uint32_t over_tp = 1u << DSI_AXIS_TP;
    static const run rows[] = {
        {.model = "mixtral.json", .n_data = 1, .tp = 2, .stage = 1},
        {.model = "qwen2.json", .n_data = 1, .tp = 2, .stage = 3},
        {.model = "qwen3.json", .n_data = 2, .tp = 2, .ep = 2, .stage = 2},
        {.model = "granite.json", .n_data = 2, .tp = 2, .stage = 3},
        {.model = "mixtral.json", .n_data = 1, .tp = 2, .sp = 2, .stage = 2},
        {.model = "six.json", .n_data = 1, .tp = 2, .sp = 2, .stage = 3}, /* sp has copies */
    };
    (void)state;
    char *folder = make_folder();
    for (uint32_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
        run folded = rows[i]; /* a mesh, against ranks with the same data that share nothing */
        run one = {.model = folded.model, .folder = folder, .n_data = folded.n_data};
        if (!check_long_row(i)) {
            continue;
        }
        folded.folder = folder;
        folded.folded = over_tp;
        folded.dtype = one.dtype = DS_DTYPE_F32;
        expect_near(folded, one);
        run other = folded;
        other.stage = folded.stage == 3 ? 0 : 3;
        const result want = run_steps(&other);
        const result got = run_steps(&folded);
        expect_same(&folded, &got, &want);
    }
    run own = {.folder = folder, .n_data = 1, .tp = 2, .folded = over_tp, .dtype = DS_DTYPE_F32};
    run parts = {.folder = folder, .n_data = 1, .sp = 2, .dtype = DS_DTYPE_F32}; /* drops none */
    expect_near(own, parts);
    scratch_remove(folder);
}

/* Ranks that share sequences and do not divide the experts have all that those along ep have. */
static void experts_that_sequences_do_not_divide(void **state)
{
    (void)state;
    char *folder = make_folder();
    for (uint32_t ep = 1; ep <= 2; ++ep) {
        run one = {.model = "six.json", .folder = folder, .n_data = ep, .dtype = DS_DTYPE_F32};
        run shared = one;
        shared.ep = ep;
        shared.sp = ep == 1 ? 4 : 2;
        expect_near(shared, one);
        run other = shared;
        other.stage = 3;
        const result want = run_steps(&shared);
        const result got = run_steps(&other);
        expect_same(&other, &got, &want);
    }
    scratch_remove(folder);
}

static void checkpoints_of_any_mesh(void **state)
{
    const run rows[] = {
        {.n_data = 4, .ep = 0, .stage = 2},
        {.n_data = 4, .ep = 2, .stage = 3},
        {.n_data = 4, .ep = 4, .stage = 1},
    };
    (void)state;
    char *folder = make_folder();
    for (size_t from = 0; from < 3; ++from) {
        run r = rows[from];
        r.model = "mixtral.json";
        r.folder = folder;
        r.dtype = DS_DTYPE_F32;
        const result want = run_steps(&r);
        r.last = 1;
        (void)run_steps(&r);
        for (size_t to = 0; to < 3; ++to) {
            run second = rows[to];
            second.model = r.model;
            second.dtype = r.dtype;
            second.folder = folder;
            second.first = 1;
            result got = run_steps(&second);
            got.loss[0] = want.loss[0];
            got.norm[0] = want.norm[0];
            expect_same(&second, &got, &want);
        }
    }
    scratch_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(families_have_the_bits_of_data_parallelism),
        cmocka_unit_test(whatever_the_loads),
        cmocka_unit_test(a_layer_of_ones_own),
        cmocka_unit_test(beside_other_axes),
        cmocka_unit_test(near_one_rank_where_sequences_are_shared),
        cmocka_unit_test(folded_over_other_axes),
        cmocka_unit_test(experts_that_sequences_do_not_divide),
        cmocka_unit_test(checkpoints_of_any_mesh),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
