/* SPDX-License-Identifier: Apache-2.0 */
/* Model folders of families with experts: what is read is written again, tensor for tensor and byte
 * for byte, on one rank, on two that share the weights, and on some that share the experts. A
 * folder that lacks an expert, has one too many or one of another shape is refused by the tensor's
 * name. */
#include "comm/sim.h"
#include "common/parity.h"
#include "common/scratch.h"
#include "common/sim_ranks.h"
#include "train/engine.h"

#include <deepspeed/safetensors.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const families[] = {"mixtral",     "qwen2_moe",   "qwen3_moe",
                                       "olmoe",       "granitemoe",  "glm4_moe",
                                       "deepseek_v2", "deepseek_v3", "gpt_oss"};
static const uint32_t shares[] = {5, 3, 2, 7, 5, 4, 7, 2, 5}; /* ranks that divide its experts */
enum { N_FAMILIES = sizeof families / sizeof *families };

static void check_same_tensors(ds_ctx *ctx, const char *name, const char *a, const char *b)
{
    ds_safetensors *want = NULL;
    ds_safetensors *got = NULL;
    CHECK_OK(ctx, ds_safetensors_open_folder(ctx, a, &want));
    CHECK_OK(ctx, ds_safetensors_open_folder(ctx, b, &got));
    assert_int_equal(ds_safetensors_count(want), ds_safetensors_count(got));
    for (size_t i = 0; i < ds_safetensors_count(want); ++i) {
        const ds_safetensor *x = ds_safetensors_at(want, i);
        const ds_safetensor *y = ds_safetensors_find(got, x->name);
        if (y == NULL || x->meta.dtype != y->meta.dtype ||
            !ds_shape_equal(x->meta.shape, y->meta.shape) ||
            memcmp(x->data, y->data, ds_meta_bytes(x->meta)) != 0) {
            fail_msg("%s: %s is not what was read", name, x->name);
        }
    }
    ds_safetensors_close(&want);
    ds_safetensors_close(&got);
}

typedef struct job {
    const char *name, *folder;
    uint32_t stage, ep;
    bool narrow; /* bf16 */
} job;

static ds_status save_one(ds_ctx *ctx, dsi_comm *world, const job *j, const parity_case *p)
{
    dsi_engine_spec spec = parity_spec(p, j->narrow ? DS_DTYPE_BF16 : DS_DTYPE_F32, DS_ISA_REF);
    const ds_engine_params params = {
        .model = p->model, .seq_length = p->n_seq, .weights = p->folder, .comm = world};
    ds_engine *engine = NULL;
    spec.zero.stage = j->stage;
    spec.zero.ep = j->ep;
    spec.zero.comm_dtype = DS_DTYPE_F32;
    DS_TRY(dsi_engine_create(ctx, &params, &spec, &engine));
    const ds_status status = ds_engine_save_16bit_model(engine, j->folder, NULL);
    ds_engine_destroy(&engine);
    return status;
}

static uint32_t save_rank(ds_ctx *ctx, dsi_comm *world, void *arg)
{
    const job *j = arg;
    parity_case p;
    parity_open(ctx, j->name, &p);
    const ds_status status = save_one(ctx, world, j, &p);
    if (status < 0) {
        print_message("%s: %s\n", j->name, ds_ctx_error(ctx));
    }
    parity_close(&p);
    return status < 0 ? 1 : 0;
}

static void folders_are_written_as_they_are_read(void **state)
{
    ds_ctx *ctx = *state;
    for (size_t i = 0; i < N_FAMILIES; ++i) {
        char *scratch = scratch_make();
        char from[PARITY_PATH];
        job j = {.name = families[i], .folder = scratch_path(scratch, "one")};
        golden_path(from, sizeof from, "parity/%s", families[i]);
        assert_int_equal(sim_ranks_run(1, NULL, save_rank, &j), 0);
        check_same_tensors(ctx, families[i], from, scratch_path(scratch, "one"));
        j = (job){families[i], scratch_path(scratch, "two"), 3, 1, false};
        assert_int_equal(sim_ranks_run(2, NULL, save_rank, &j), 0);
        check_same_tensors(ctx, families[i], from, scratch_path(scratch, "two"));
        j = (job){families[i], scratch_path(scratch, "shared"), i % 4, shares[i], false};
        assert_int_equal(sim_ranks_run(shares[i], NULL, save_rank, &j), 0);
        check_same_tensors(ctx, families[i], from, scratch_path(scratch, "shared"));
        scratch_remove(scratch);
    }
}

/* What is added to scores where experts are chosen stays as it is when all else is in bf16, also
 * where parameters are sharded. */
static void a_bias_of_the_choice_stays_in_f32(void **state)
{
    static const char name[] = "model.layers.1.mlp.gate.e_score_correction_bias";
    ds_ctx *ctx = *state;
    for (uint32_t stage = 0; stage <= 3; stage += 3) {
        char *scratch = scratch_make();
        char from[PARITY_PATH];
        ds_safetensors *want = NULL;
        ds_safetensors *got = NULL;
        job j = {"deepseek_v3", scratch_path(scratch, "narrow"), stage, 1, true};
        golden_path(from, sizeof from, "parity/deepseek_v3");
        assert_int_equal(sim_ranks_run(2, NULL, save_rank, &j), 0);
        CHECK_OK(ctx, ds_safetensors_open_folder(ctx, from, &want));
        CHECK_OK(ctx, ds_safetensors_open_folder(ctx, scratch_path(scratch, "narrow"), &got));
        const ds_safetensor *x = ds_safetensors_find(want, name);
        const ds_safetensor *y = ds_safetensors_find(got, name);
        const ds_safetensor *head = ds_safetensors_find(got, "lm_head.weight");
        assert_non_null(x);
        assert_non_null(y);
        assert_non_null(head);
        assert_int_equal(head->meta.dtype, DS_DTYPE_BF16);
        assert_int_equal(y->meta.dtype, DS_DTYPE_F32);
        assert_memory_equal(x->data, y->data, ds_meta_bytes(x->meta));
        ds_safetensors_close(&want);
        ds_safetensors_close(&got);
        scratch_remove(scratch);
    }
}

/* A copy of the folder's tensors, but for one that is left out, called `other`, or cut to `rows`.
 */
static void write_changed(ds_ctx *ctx, const char *from, const char *to, const char *name,
                          const char *other, int64_t rows)
{
    enum { MOST = 256 };
    static ds_tensor_source sources[MOST];
    ds_safetensors *st = NULL;
    size_t n = 0;
    CHECK_OK(ctx, ds_safetensors_open_folder(ctx, from, &st));
    assert_true(ds_safetensors_count(st) <= MOST);
    for (size_t i = 0; i < ds_safetensors_count(st); ++i) {
        const ds_safetensor *t = ds_safetensors_at(st, i);
        ds_tensor_source source = {.name = t->name, .meta = t->meta, .data = t->data};
        if (strcmp(t->name, name) == 0) {
            source.name = other;
            source.meta.shape.dims[0] = rows > 0 ? rows : t->meta.shape.dims[0];
        }
        if (source.name != NULL) {
            sources[n++] = source;
        }
    }
    CHECK_OK(ctx, ds_safetensors_write_folder(ctx, to, sources, n, 0, NULL));
    ds_safetensors_close(&st);
}

static void wrong_experts_are_refused_by_name(void **state)
{
#define EXPERT(i, w) "model.layers.1.block_sparse_moe.experts." #i "." #w ".weight"
    static const struct {
        const char *name, *other;
        int64_t rows;
        ds_status status;
        const char *says;
    } cases[] = {
        {EXPERT(3, w1), NULL, 0, DS_ERR_NOT_FOUND, "the tensor " EXPERT(3, w1) " is missing"},
        {EXPERT(4, w2), EXPERT(5, w2), 0, DS_ERR_NOT_FOUND, EXPERT(4, w2) " is missing"},
        {EXPERT(2, w3), EXPERT(2, w3), 39, DS_ERR_SHAPE, "tensor " EXPERT(2, w3) " is f32[39,24]"},
        {"lm_head.weight", EXPERT(5, w1), 0, DS_ERR_NOT_FOUND, "lm_head.weight is missing"},
    };
    ds_ctx *ctx = *state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        char *scratch = scratch_make();
        parity_case p;
        ds_engine *engine = NULL;
        parity_open(ctx, "mixtral", &p);
        const dsi_engine_spec spec = parity_spec(&p, DS_DTYPE_F32, DS_ISA_REF);
        const ds_engine_params params = {
            .model = p.model, .seq_length = p.n_seq, .weights = scratch};
        write_changed(ctx, p.folder, scratch, cases[i].name, cases[i].other, cases[i].rows);
        CHECK_FAILS(ctx, dsi_engine_create(ctx, &params, &spec, &engine), cases[i].status,
                    cases[i].says);
        parity_close(&p);
        scratch_remove(scratch);
    }
}

/* Logits as transformers' of experts in MXFP4, and of the plain folder that is written of them. */
static void experts_in_mxfp4(void **state)
{
    ds_ctx *ctx = *state;
    char *scratch = scratch_make();
    parity_case p;
    size_t n_bytes = 0;
    job j = {.name = "gpt_oss_mxfp4", .folder = scratch_path(scratch, "plain"), .stage = 3};
    parity_open(ctx, j.name, &p);
    const golden_tensor *want = golden_find(&p.golden, "logits");
    float *got = parity_logits(ctx, &p, DS_DTYPE_F32, DS_ISA_REF);
    assert_true(check_relative_difference(got, want->data, want->count) < 1e-5);
    assert_int_equal(sim_ranks_run(2, NULL, save_rank, &j), 0);
    char *config = scratch_read(scratch_path(scratch, "plain/config.json"), &n_bytes);
    assert_null(strstr(config, "quantization_config"));
    snprintf(p.folder, sizeof p.folder, "%s/plain", scratch);
    float *plain = parity_logits(ctx, &p, DS_DTYPE_F32, DS_ISA_REF);
    assert_memory_equal(got, plain, want->count * sizeof *got);
    free(config);
    free(got);
    free(plain);
    parity_close(&p);
    scratch_remove(scratch);
}

static void wrong_mxfp4_is_refused_by_name(void **state)
{
#define DOWN "model.layers.1.mlp.experts.down_proj"
    static const struct {
        const char *name, *other;
        int64_t rows;
        ds_status status;
        const char *says;
    } cases[] = {
        {DOWN "_scales", NULL, 0, DS_ERR_NOT_FOUND, "the tensor " DOWN " is missing"},
        {DOWN "_scales", DOWN "_scales", 2, DS_ERR_SHAPE, "tensor " DOWN "_scales is u8[2,32,1]"},
        {DOWN "_blocks", DOWN "_blocks", 1, DS_ERR_SHAPE,
         "tensor " DOWN "_blocks is u8[1,32,1,16]"},
    };
    ds_ctx *ctx = *state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        char *scratch = scratch_make();
        parity_case p;
        ds_engine *engine = NULL;
        parity_open(ctx, "gpt_oss_mxfp4", &p);
        const dsi_engine_spec spec = parity_spec(&p, DS_DTYPE_F32, DS_ISA_REF);
        const ds_engine_params params = {
            .model = p.model, .seq_length = p.n_seq, .weights = scratch};
        write_changed(ctx, p.folder, scratch, cases[i].name, cases[i].other, cases[i].rows);
        CHECK_FAILS(ctx, dsi_engine_create(ctx, &params, &spec, &engine), cases[i].status,
                    cases[i].says);
        parity_close(&p);
        scratch_remove(scratch);
    }
}

static int make_ctx(void **state)
{
    const ds_ctx_params params = {.level = DS_LOG_ERROR, .n_threads = 1};
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
        cmocka_unit_test(folders_are_written_as_they_are_read),
        cmocka_unit_test(a_bias_of_the_choice_stays_in_f32),
        cmocka_unit_test(experts_in_mxfp4),
        cmocka_unit_test(wrong_mxfp4_is_refused_by_name),
        cmocka_unit_test(wrong_experts_are_refused_by_name),
    };
    return cmocka_run_group_tests(tests, make_ctx, drop_ctx);
}
