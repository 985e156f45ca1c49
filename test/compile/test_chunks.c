/* SPDX-License-Identifier: Apache-2.0 */
/* labels: threads
 * Sequences in chunks (sequence_parallel.chunk_size): gradients, tensor by tensor, are those of the
 * graph in one piece, on one rank and on ranks that share sequences.
 *
 * A gradient is read as Adam's first moment behind one step without clipping, (1 - beta1) of it,
 * which every mesh puts together.
 */
#include "common/check.h"
#include "common/rank_threads.h"
#include "common/scratch.h"
#include "common/small_run.h"

#include "compile/rank_plan.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_TENSORS = 128 };

static const char mixtral[] =
    "{\"model_type\":\"mixtral\",\"vocab_size\":211,\"hidden_size\":32,\"intermediate_size\":40,"
    "\"num_hidden_layers\":2,\"num_attention_heads\":4,\"num_key_value_heads\":2,"
    "\"num_local_experts\":4,\"num_experts_per_tok\":2,\"output_router_logits\":true,"
    "\"router_aux_loss_coef\":0.02,\"sliding_window\":null,\"max_position_embeddings\":64}";
static const char gpt_oss[] = /* sinks, windows, experts with biases */
    "{\"model_type\":\"gpt_oss\",\"vocab_size\":211,\"hidden_size\":32,\"intermediate_size\":24,"
    "\"num_hidden_layers\":2,\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":8,"
    "\"num_local_experts\":4,\"num_experts_per_tok\":2,\"sliding_window\":9,"
    "\"max_position_embeddings\":64,\"rms_norm_eps\":1e-5}";

typedef struct tensor {
    char name[128];
    size_t n;
    float *data;
} tensor;

typedef struct run {
    const char *model; /* config.json */
    uint32_t sp, tp, ep, pp;
    bool ring;
    int64_t chunk;
    ds_recompute recompute;
    char *folder;
    double loss;
    uint32_t n_tensors; /* of the first rank */
    tensor tensors[MOST_TENSORS];
} run;

static dsi_engine_spec spec_of(const run *r)
{
    dsi_engine_spec spec = small_spec(DS_DTYPE_F32);
    spec.train.sequence_chunk = r->chunk;
    spec.recompute.mode = r->recompute;
    spec.train.sequence_form = r->ring ? DS_SEQUENCE_RING : DS_SEQUENCE_HEADS;
    spec.zero = (dsi_zero_spec){
        .sp = r->sp, .tp = r->tp, .ep = r->ep, .pp = r->pp, .comm_dtype = DS_DTYPE_F32};
    return spec;
}

static ds_status read_moments(ds_engine *engine, run *r)
{
    const ds_cells *cells = ds_engine_cells(engine);
    for (ds_cell c = 0; c < ds_cells_count(cells); ++c) {
        const ds_cell_info *info = ds_cells_get(cells, c);
        if (info->kind != DS_CELL_EXP_AVG) {
            continue;
        }
        assert_true(r->n_tensors < MOST_TENSORS);
        tensor *t = &r->tensors[r->n_tensors++];
        (void)snprintf(t->name, sizeof t->name, "%s", info->name);
        t->n = (size_t)ds_shape_count(info->meta.shape);
        t->data = malloc(t->n * sizeof *t->data);
        assert_non_null(t->data);
        DS_TRY(ds_engine_get(engine, info->kind, info->name, t->data, t->n));
    }
    return DS_OK;
}

static ds_status feed(void *user, ds_batch *batch_out)
{
    *batch_out = small_feed(0, user);
    return DS_OK;
}

static ds_status run_rank(dsi_comm *comm, void *arg)
{
    run *all = arg;
    run own = *all;
    const dsi_engine_spec spec = spec_of(&own);
    ds_model *model = NULL;
    ds_engine *engine = NULL;
    small_batch batch;
    DS_TRY(ds_model_from_config(comm->ctx, scratch_path(own.folder, own.model), &model));
    const ds_engine_params params = {.model = model,
                                     .seq_length = SMALL_SEQ,
                                     .seed = 5,
                                     .comm = comm,
                                     .memory_bytes = SMALL_MEMORY};
    ds_status status = dsi_engine_create(comm->ctx, &params, &spec, &engine);
    status = status >= 0 ? ds_engine_train_batch(engine, feed, &batch, &own.loss) : status;
    status = status >= 0 ? read_moments(engine, &own) : status;
    ds_engine_destroy(&engine);
    ds_model_destroy(&model);
    for (uint32_t i = 0; i < own.n_tensors && comm->rank != 0; ++i) {
        free(own.tensors[i].data);
    }
    if (comm->rank == 0) {
        *all = own;
    }
    return status;
}

static void step(run *r)
{
    rank_results results;
    uint32_t n_ranks = 1;
    const uint32_t sizes[] = {r->sp, r->tp, r->ep, r->pp};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; ++i) {
        n_ranks *= sizes[i] > 0 ? sizes[i] : 1;
    }
    r->n_tensors = 0;
    if (rank_threads_run(n_ranks, NULL, run_rank, r, &results) != DS_OK) {
        fail_msg("%s, chunks of %lld: %s", r->model, (long long)r->chunk, results.message[0]);
    }
    assert_true(r->n_tensors > 0);
}

static void drop(run *r)
{
    for (uint32_t i = 0; i < r->n_tensors; ++i) {
        free(r->tensors[i].data);
    }
}

static double largest(const tensor *t)
{
    double size = 0.0;
    for (size_t i = 0; i < t->n; ++i) {
        size = fmax(size, fabs((double)t->data[i]));
    }
    return size;
}

/* A gradient is a sum over n = 96 rows in another order: (log2(n) + 1) u of the sum of absolute
 * terms, u = 2^-24, for each product that it came through, 4 in each of 3 layers, there and back:
 * 24 * 8 u = 2^-16 of it. The sum of absolute terms is at most n times the largest term; of the
 * largest element, which is a sum of such terms with either sign, it is taken to be 2^4 at most:
 * 2^-12, as in random_meshes.py; and of tensors whose gradients cancel (biases of keys), 2^-20 of
 * the largest of all. A chunk's term that is lost or added twice is of the size 1. */
static bool expect_near(const run *got, const run *want)
{
    double most = 0.0;
    bool differs = false;
    assert_int_equal(got->n_tensors, want->n_tensors);
    assert_true(fabs(got->loss - want->loss) <= 2e-6 * want->loss);
    for (uint32_t i = 0; i < want->n_tensors; ++i) {
        most = fmax(most, largest(&want->tensors[i]));
    }
    for (uint32_t i = 0; i < want->n_tensors; ++i) {
        const tensor *a = &want->tensors[i];
        const tensor *b = &got->tensors[i];
        const double bound = largest(a) / (1 << 12) + most / (1 << 20);
        double far = 0.0;
        assert_string_equal(a->name, b->name);
        assert_int_equal(a->n, b->n);
        for (size_t e = 0; e < a->n; ++e) {
            far = fmax(far, fabs((double)a->data[e] - (double)b->data[e]));
        }
        if (!(far <= bound)) {
            fail_msg("%s, chunks of %lld, sp %u tp %u ep %u pp %u: gradient of %s is %g apart, of "
                     "at most %g",
                     got->model, (long long)got->chunk, got->sp, got->tp, got->ep, got->pp, a->name,
                     far, bound);
        }
        differs = differs || far > 0.0;
    }
    return differs;
}

static char *make_folder(void)
{
    char *folder = scratch_make();
    scratch_write(scratch_path(folder, "gpt2.json"), small_gpt2, strlen(small_gpt2));
    scratch_write(scratch_path(folder, "llama.json"), small_llama, strlen(small_llama));
    scratch_write(scratch_path(folder, "mixtral.json"), mixtral, strlen(mixtral));
    scratch_write(scratch_path(folder, "gpt_oss.json"), gpt_oss, strlen(gpt_oss));
    return folder;
}

static void near_one_piece(void **state)
{
    static const run rows[] = {
        {.model = "llama.json", .chunk = 16},
        {.model = "llama.json", .chunk = 8, .sp = 2, .recompute = DS_RECOMPUTE_FULL},
        {.model = "llama.json", .chunk = 24, .sp = 2, .tp = 2},
        {.model = "gpt2.json", .chunk = 12, .sp = 2}, /* dropout */
        {.model = "llama.json", .chunk = 20},         /* a rest of 8 */
        {.model = "gpt2.json", .chunk = 15, .sp = 2, .recompute = DS_RECOMPUTE_FULL}, /* 14, 6 */
        {.model = "mixtral.json", .chunk = 20},
        {.model = "mixtral.json", .chunk = 16, .sp = 2, .ep = 2},
        {.model = "gpt_oss.json", .chunk = 14},
        {.model = "gpt_oss.json", .chunk = 20, .sp = 2},
        {.model = "llama.json", .chunk = 14, .sp = 3, .ring = true}, /* 12; 4 heads */
        {.model = "llama.json", .chunk = 20, .sp = 2, .ring = true, .tp = 2},
        {.model = "gpt_oss.json", .chunk = 20, .sp = 2, .ring = true},
        {.model = "llama.json", .chunk = 20, .pp = 2, .recompute = DS_RECOMPUTE_FULL},
    };
    (void)state;
    char *folder = make_folder();
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
        run want = {.model = rows[i].model, .folder = folder};
        run got = rows[i];
        got.folder = folder;
        step(&want);
        step(&got);
        assert_true(expect_near(&got, &want)); /* else nothing was cut */
        drop(&want);
        drop(&got);
    }
    scratch_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(near_one_piece),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
