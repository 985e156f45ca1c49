/* SPDX-License-Identifier: Apache-2.0 */
/* labels: threads long slow
 * Layers sharded on tp train as whole ones do: losses and norms of N groups of tp ranks are those
 * of N ranks up to the order of sums; among themselves all ZeRO stages, fused or not, give the same
 * bits; what one mesh saves, another resumes with the same bits.
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

enum { STEPS = 4 };

static const char packed_gpt2[] =
    "{\"model_type\":\"gpt2\",\"vocab_size\":211,\"n_positions\":64,\"n_embd\":48,\"n_layer\":3,"
    "\"n_head\":4,\"resid_pdrop\":0.1,\"embd_pdrop\":0.1,\"attn_pdrop\":0.0}";

/* A vocabulary that 2 and 4 divide. */
static const char even_llama[] =
    "{\"model_type\":\"llama\",\"vocab_size\":212,\"hidden_size\":48,\"intermediate_size\":112,"
    "\"num_hidden_layers\":2,\"num_attention_heads\":4,\"num_key_value_heads\":2,"
    "\"max_position_embeddings\":64,\"rms_norm_eps\":1e-5,\"tie_word_embeddings\":false}";

static const char tied_llama[] =
    "{\"model_type\":\"llama\",\"vocab_size\":216,\"hidden_size\":48,\"intermediate_size\":112,"
    "\"num_hidden_layers\":2,\"num_attention_heads\":4,\"num_key_value_heads\":2,"
    "\"max_position_embeddings\":64,\"rms_norm_eps\":1e-5,\"tie_word_embeddings\":true}";
static const char even_gpt2[] =
    "{\"model_type\":\"gpt2\",\"vocab_size\":216,\"n_positions\":64,\"n_embd\":48,\"n_layer\":2,"
    "\"n_head\":4,\"resid_pdrop\":0.1,\"embd_pdrop\":0.1,\"attn_pdrop\":0.1}";

typedef struct result {
    uint64_t hash;
    double loss[STEPS], norm[STEPS];
} result;

typedef struct run {
    const char *model;
    uint32_t n_data, tp, stage;
    int64_t accumulation;
    ds_dtype dtype;
    bool no_fuse;
    char *folder;
    int first, last; /* first above 0: resumed there; last below STEPS: saved there; 0: STEPS */
    int64_t rows;    /* of embedding and head, on the first rank */
    size_t bytes;    /* of the parameters, their gradients and states on the first rank */
    result results[RANK_THREADS_MAX];
} run;

static dsi_engine_spec spec_of(const run *r)
{
    dsi_engine_spec spec = small_spec(r->dtype);
    spec.train.accumulation = r->accumulation;
    spec.train.max_norm = 0.5;
    spec.no_fuse = r->no_fuse;
    spec.zero = (dsi_zero_spec){.tp = r->tp,
                                .stage = r->stage,
                                .reduce_each = true,
                                .comm_dtype = r->dtype,
                                .reduce_bucket = 5000,
                                .gather_bucket = 5000,
                                .max_live = 1000,
                                .max_reuse_distance = 1000};
    return spec;
}

typedef struct feeder {
    int32_t next, stride;
    small_batch batch;
} feeder;

static ds_status feed(void *user, ds_batch *batch_out)
{
    feeder *f = user;
    *batch_out = small_feed(f->next, &f->batch);
    f->next += f->stride;
    return DS_OK;
}

static ds_status train(dsi_comm *comm, run *r, ds_engine *engine)
{
    const dsi_mesh *mesh = &engine->spec.zero.mesh;
    const int32_t each = (int32_t)(r->n_data * r->accumulation); /* micro-batches of a step */
    const int last = r->last > 0 ? r->last : STEPS;
    feeder f = {.next = (int32_t)dsi_mesh_data_rank(mesh, comm->rank) + r->first * each,
                .stride = (int32_t)r->n_data};
    result *got = &r->results[comm->rank];
    DS_TRY(r->first > 0 ? ds_engine_load_checkpoint(engine, r->folder, NULL, NULL) : DS_OK);
    for (int step = r->first; step < last; ++step) {
        DS_TRY(ds_engine_train_batch(engine, feed, &f, &got->loss[step]));
        got->norm[step] = ds_engine_grad_norm(engine);
    }
    DS_TRY(last < STEPS ? ds_engine_save_checkpoint(engine, r->folder, NULL, NULL) : DS_OK);
    return engine_hash(comm->ctx, engine, &got->hash);
}

static ds_status run_rank(dsi_comm *comm, void *arg)
{
    run *r = arg;
    const dsi_engine_spec spec = spec_of(r);
    ds_model *model = NULL;
    ds_engine *engine = NULL;
    DS_TRY(ds_model_from_config(comm->ctx, scratch_path(r->folder, r->model), &model));
    const ds_engine_params params = {.model = model,
                                     .seq_length = SMALL_SEQ,
                                     .seed = 5,
                                     .comm = comm,
                                     .memory_bytes = SMALL_MEMORY};
    ds_status status = dsi_engine_create(comm->ctx, &params, &spec, &engine);
    status = status < 0 ? status : train(comm, r, engine);
    if (status >= 0 && comm->rank == 0) {
        r->bytes = 0;
        r->rows = 0;
        for (ds_cell c = 0; c < ds_cells_count(engine->local); ++c) {
            const ds_cell_info *cell = ds_cells_get(engine->local, c);
            const bool is_table = strcmp(cell->name, "model.embed_tokens.weight") == 0 ||
                                  strcmp(cell->name, "transformer.wte.weight") == 0 ||
                                  strcmp(cell->name, "wte.weight") == 0 ||
                                  strcmp(cell->name, "gpt_neox.embed_in.weight") == 0 ||
                                  strcmp(cell->name, "embed_out.weight") == 0 ||
                                  strcmp(cell->name, "lm_head.weight") == 0;
            r->rows += is_table ? cell->meta.shape.dims[0] : 0;
            r->bytes += ds_meta_bytes(cell->meta);
        }
    }
    ds_engine_destroy(&engine);
    ds_model_destroy(&model);
    return status;
}

static result run_steps(run *r)
{
    const uint32_t n = r->n_data * (r->tp > 0 ? r->tp : 1);
    memset(r->results, 0, sizeof r->results);
    assert_int_equal(rank_threads_run(n, NULL, run_rank, r, NULL), DS_OK);
    for (uint32_t i = 1; i < n; ++i) {
        assert_memory_equal(&r->results[i], &r->results[0], sizeof r->results[0]);
    }
    return r->results[0];
}

static const struct {
    const char *model_type, *more;
} families[] = {
    {"olmo2", "\"attention_bias\":true"},
    {"granite", "\"residual_multiplier\":0.3,\"logits_scaling\":3.0,\"attention_multiplier\":0.2"},
    {"smollm3", "\"no_rope_layer_interval\":2"},
    {"starcoder2", "\"sliding_window\":9,\"residual_dropout\":0.1,\"embedding_dropout\":0.1"},
    {"stablelm",
     "\"partial_rotary_factor\":0.5,\"use_parallel_residual\":true,\"hidden_dropout\":0.1"},
    {"gpt_neox", "\"hidden_dropout\":0.1,\"rotary_pct\":0.5"},
    {"phi3", "\"resid_pdrop\":0.1,\"partial_rotary_factor\":0.5"},
    {"glm4", "\"head_dim\":12"},
    {"cohere", "\"logit_scale\":0.5,\"use_qk_norm\":true"},
    {"gemma2", "\"head_dim\":12,\"sliding_window\":9,\"query_pre_attn_scalar\":5,"
               "\"attn_logit_softcapping\":2.0,\"final_logit_softcapping\":3.0"},
    {"gemma3_text", "\"head_dim\":12,\"sliding_window\":9,\"sliding_window_pattern\":2"},
    {"olmo", "\"clip_qkv\":1.0"},
    {"gptj", "\"rotary_dim\":6,\"n_inner\":112,\"resid_pdrop\":0.1"},
    {"opt", "\"ffn_dim\":112,\"dropout\":0.1"},
    {"falcon", "\"new_decoder_architecture\":true,\"num_kv_heads\":2,\"hidden_dropout\":0.1"},
    {"bloom", "\"hidden_dropout\":0.1"}, /* heads of each rank have slopes of their own */
    {"mpt", "\"attn_config\":{\"clip_qkv\":1.0}"},
    {"cohere2", "\"sliding_window\":9,\"sliding_window_pattern\":2"},
    {"qwen3_next",
     "\"head_dim\":16,\"full_attention_interval\":2,\"mlp_only_layers\":[0],\"num_experts\":4,"
     "\"num_experts_per_tok\":2,\"moe_intermediate_size\":16,\"shared_expert_intermediate_size\":"
     "16,"
     "\"linear_key_head_dim\":10,\"linear_value_head_dim\":6,\"linear_num_key_heads\":2,"
     "\"linear_num_value_heads\":4"},
};

static char *make_folder(void)
{
    char *folder = scratch_make();
    scratch_write(scratch_path(folder, "gpt2.json"), small_gpt2, strlen(small_gpt2));
    /* dropout on probabilities draws by head: without it q, k and v are sharded too */
    scratch_write(scratch_path(folder, "packed.json"), packed_gpt2, strlen(packed_gpt2));
    scratch_write(scratch_path(folder, "llama.json"), small_llama, strlen(small_llama));
    for (size_t i = 0; i < sizeof families / sizeof *families; ++i) {
        char name[32];
        char text[1024];
        (void)snprintf(name, sizeof name, "%s.json", families[i].model_type);
        (void)snprintf(text, sizeof text,
                       "{\"model_type\":\"%s\",\"vocab_size\":211,\"hidden_size\":48,"
                       "\"intermediate_size\":112,\"num_hidden_layers\":3,"
                       "\"num_attention_heads\":4,\"num_key_value_heads\":2,"
                       "\"max_position_embeddings\":64,\"pad_token_id\":null,%s}",
                       families[i].model_type, families[i].more);
        scratch_write(scratch_path(folder, name), text, strlen(text));
    }
    scratch_write(scratch_path(folder, "even.json"), even_llama, strlen(even_llama));
    scratch_write(scratch_path(folder, "tied.json"), tied_llama, strlen(tied_llama));
    scratch_write(scratch_path(folder, "even_gpt2.json"), even_gpt2, strlen(even_gpt2));
    return folder;
}

static void expect_near(const result *got, const result *want, int first, double tolerance)
{
    for (int step = first; step < STEPS; ++step) {
        if (!(fabs(got->loss[step] - want->loss[step]) <= tolerance * fabs(want->loss[step])) ||
            !(fabs(got->norm[step] - want->norm[step]) <= tolerance * 8 * want->norm[step])) {
            fail_msg("step %d: loss %.9g, expected %.9g; norm %.9g, expected %.9g", step,
                     got->loss[step], want->loss[step], got->norm[step], want->norm[step]);
        }
    }
}

/* fp32: a sum of n products in another order differs by some n·2^-24 of its terms. Sums here have
 * at most 211 terms; four steps of Adam hand on what the gradients differ by. */
static const double fp32_near = 211.0 / (1 << 24);
static const double bf16_near = 1.0 / 128; /* two roundings of an activation */

static void near_whole_layers(void **state)
{
    const run rows[] = {
        {.model = "llama.json", .n_data = 1, .tp = 2, .dtype = DS_DTYPE_F32},
        {.model = "llama.json", .n_data = 2, .tp = 2, .dtype = DS_DTYPE_F32},
        {.model = "llama.json", .n_data = 3, .tp = 4, .dtype = DS_DTYPE_F32}, /* 2 heads of kv */
        {.model = "gpt2.json", .n_data = 1, .tp = 2, .dtype = DS_DTYPE_F32},
        {.model = "gpt2.json", .n_data = 2, .tp = 4, .dtype = DS_DTYPE_F32},
        {.model = "gpt2.json", .n_data = 1, .tp = 3, .dtype = DS_DTYPE_BF16},
        {.model = "llama.json", .n_data = 2, .tp = 2, .dtype = DS_DTYPE_BF16},
        {.model = "packed.json", .n_data = 2, .tp = 2, .dtype = DS_DTYPE_F32},
        {.model = "packed.json", .n_data = 1, .tp = 4, .dtype = DS_DTYPE_BF16},
        {.model = "olmo2.json", .n_data = 2, .tp = 2, .dtype = DS_DTYPE_F32},
        {.model = "granite.json", .n_data = 1, .tp = 2, .dtype = DS_DTYPE_F32},
        {.model = "smollm3.json", .n_data = 1, .tp = 2, .dtype = DS_DTYPE_F32},
        {.model = "starcoder2.json", .n_data = 1, .tp = 2, .dtype = DS_DTYPE_F32},
        {.model = "stablelm.json", .n_data = 1, .tp = 2, .dtype = DS_DTYPE_F32},
        {.model = "gpt_neox.json", .n_data = 1, .tp = 2, .dtype = DS_DTYPE_F32},
        {.model = "phi3.json", .n_data = 1, .tp = 2, .dtype = DS_DTYPE_F32},
        {.model = "glm4.json", .n_data = 1, .tp = 2, .dtype = DS_DTYPE_F32},
        {.model = "cohere.json", .n_data = 1, .tp = 2, .dtype = DS_DTYPE_F32},
        {.model = "gemma2.json", .n_data = 1, .tp = 2, .dtype = DS_DTYPE_F32},
        {.model = "gemma3_text.json", .n_data = 1, .tp = 2, .dtype = DS_DTYPE_F32},
        {.model = "olmo.json", .n_data = 1, .tp = 2, .dtype = DS_DTYPE_F32},
        {.model = "gptj.json", .n_data = 1, .tp = 2, .dtype = DS_DTYPE_F32},
        {.model = "opt.json", .n_data = 1, .tp = 2, .dtype = DS_DTYPE_F32},
        {.model = "falcon.json", .n_data = 1, .tp = 2, .dtype = DS_DTYPE_F32},
        {.model = "bloom.json", .n_data = 1, .tp = 2, .dtype = DS_DTYPE_F32},
        {.model = "bloom.json", .n_data = 1, .tp = 4, .dtype = DS_DTYPE_BF16},
        {.model = "mpt.json", .n_data = 1, .tp = 2, .dtype = DS_DTYPE_F32},
        {.model = "cohere2.json", .n_data = 1, .tp = 2, .dtype = DS_DTYPE_F32},
        {.model = "qwen3_next.json", .n_data = 1, .tp = 2, .dtype = DS_DTYPE_F32},
        {.model = "even.json", .n_data = 2, .tp = 2, .dtype = DS_DTYPE_F32},
        {.model = "even.json", .n_data = 1, .tp = 4, .dtype = DS_DTYPE_BF16},
        {.model = "tied.json", .n_data = 1, .tp = 4, .dtype = DS_DTYPE_F32},
        {.model = "tied.json", .n_data = 2, .tp = 2, .dtype = DS_DTYPE_BF16},
        {.model = "even_gpt2.json", .n_data = 1, .tp = 3, .dtype = DS_DTYPE_F32},
        {.model = "even_gpt2.json", .n_data = 2, .tp = 2, .dtype = DS_DTYPE_F32},
    };
    (void)state;
    char *folder = make_folder();
    for (size_t i = 0; i < 2 * sizeof rows / sizeof rows[0]; ++i) {
        if (!check_long_row(i)) {
            continue;
        }
        run sharded = rows[i / 2];
        sharded.folder = folder;
        sharded.accumulation = i % 3 == 0 ? 2 : 1;
        sharded.no_fuse = i % 2 == 1;
        run whole = sharded;
        whole.tp = 0;
        const result want = run_steps(&whole);
        const result got = run_steps(&sharded);
        expect_near(&got, &want, 0, sharded.dtype == DS_DTYPE_F32 ? fp32_near : bf16_near);
        assert_true(sharded.bytes < whole.bytes); /* a rank has its shards alone */
        /* tables of 211 rows are padded, but where all logits are made, capped or with a bias: of
         * gptj the head, of gemma2 what is table and head */
        const int64_t v = whole.rows % 211 == 0 ? 211 : whole.rows % 212 == 0 ? 212 : 216;
        const int64_t n_whole = strcmp(sharded.model, "gemma2.json") == 0 ? 2
                                : strcmp(sharded.model, "gptj.json") == 0 ? 1
                                                                          : 0; /* halves of rows */
        const int64_t cut = (v + sharded.tp - 1) / sharded.tp;
        assert_int_equal(whole.rows % v, 0);
        assert_int_equal(2 * sharded.rows, whole.rows / v * (n_whole * v + (2 - n_whole) * cut));
    }
    scratch_remove(folder);
}

static void stages_give_the_same_bits(void **state)
{
    (void)state;
    char *folder = make_folder();
    for (int i = 0; i < 13; ++i) {
        run r = {.model = i == 12            ? "olmo2.json"
                          : i > 10           ? "even_gpt2.json"
                          : i > 8            ? "tied.json"
                          : i > 6            ? "even.json"
                          : i == 4 || i == 5 ? "packed.json"
                          : i % 2 == 0       ? "llama.json"
                                             : "gpt2.json",
                 .n_data = i < 2 ? 2 : 1,
                 .tp = i == 6 ? 4 : 2, /* two heads of keys and values */
                 .accumulation = 1 + i / 2 % 3,
                 .dtype = i % 2 == 0 ? DS_DTYPE_BF16 : DS_DTYPE_F32,
                 .folder = folder};
        if (!check_long_row((size_t)i)) {
            continue;
        }
        const result want = run_steps(&r);
        for (r.stage = 1; r.stage <= 3; ++r.stage) {
            const result got = run_steps(&r);
            assert_memory_equal(&got, &want, sizeof got);
        }
    }
    scratch_remove(folder);
}

/* Saved behind two steps by one mesh, gone on with by another. */
static void checkpoints_of_any_mesh(void **state)
{
    const run rows[] = {
        {.n_data = 2, .tp = 0, .stage = 3},
        {.n_data = 2, .tp = 2, .stage = 3},
        {.n_data = 2, .tp = 4, .stage = 1},
        {.n_data = 2, .tp = 2, .stage = 0},
    };
    (void)state;
    static const char *const models[] = {"llama.json", "packed.json", "even.json", "tied.json"};
    const int n = sizeof rows / sizeof rows[0];
    char *folder = make_folder();
    for (int i = 0; i < 4 * n; ++i) {
        if (!check_long_row((size_t)(i + i / 4))) { /* of each mesh another model */
            continue;
        }
        run r = rows[i / 4];
        r.model = models[i % 4];
        r.accumulation = 1;
        r.dtype = DS_DTYPE_F32;
        r.folder = folder;
        const result want = run_steps(&r);
        r.last = 2;
        (void)run_steps(&r);
        for (int to = 0; to < n; ++to) {
            run second = rows[to];
            second.model = r.model;
            second.accumulation = 1;
            second.dtype = r.dtype;
            second.folder = folder;
            second.first = 2;
            const result got = run_steps(&second);
            expect_near(&got, &want, 2, fp32_near);
            if (second.tp == r.tp) {
                assert_true(got.hash == want.hash);
            }
        }
    }
    scratch_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(near_whole_layers),
        cmocka_unit_test(stages_give_the_same_bits),
        cmocka_unit_test(checkpoints_of_any_mesh),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
