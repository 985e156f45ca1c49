/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints of DeepSpeed for Python (three ranks; see make_deepspeed.py): the fp32 weights are
 * those of its own script, bit for bit; a run that resumes one, on other ranks and at other stages,
 * makes the losses of DeepSpeed's own continuation; what is damaged is refused by name. */
#include "common/check.h"
#include "common/golden.h"
#include "common/rank_threads.h"
#include "common/scratch.h"

#include <deepspeed/checkpoint.h>
#include <deepspeed/config.h>
#include <deepspeed/deepspeed.h>
#include <deepspeed/engine.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define GOLDEN DS_SOURCE_DIR "/test/golden/deepspeed/"

enum { BEFORE = 3, AFTER = 5, SEQUENCES = 6, LENGTH = 12 };

static const char *const forms[] = {"zero1", "zero2", "zero3", "bf16", "universal2", "universal3"};
enum { N_FORMS = sizeof forms / sizeof forms[0] };

/* Of ranks that share layers, two by two; see make_tensor.py. */
static const char *const shared[] = {"tensor1", "tensor2"};
enum { N_SHARED = sizeof shared / sizeof shared[0] };

/* Stages of pipelines, two each; see make_pipe.py. */
static const char *const pipes[] = {"pipe", "pipe_tied", "pipe_bf16", "pipe_universal"};
enum { N_PIPES = sizeof pipes / sizeof pipes[0] };

/* Ranks that have each other experts, also in the stages of a pipeline; see make_experts.py and
 * make_experts_pipe.py. */
static const char *const sparse[] = {"experts1", "experts2", "experts_pipe"};
enum { N_SPARSE = sizeof sparse / sizeof sparse[0] };

static char *folder; /* of the unpacked forms */

static int unpack(void **state)
{
    char command[1024];
    folder = scratch_make();
    for (size_t i = 0; i < N_FORMS + N_SHARED + N_PIPES + N_SPARSE; ++i) {
        (void)snprintf(command, sizeof command, "tar -xzf %s%s.tar.gz -C %s", GOLDEN,
                       i < N_FORMS              ? forms[i]
                       : i < N_FORMS + N_SHARED ? shared[i - N_FORMS]
                       : i < N_FORMS + N_SHARED + N_PIPES
                           ? pipes[i - N_FORMS - N_SHARED]
                           : sparse[i - N_FORMS - N_SHARED - N_PIPES],
                       folder);
        if (system(command) != 0) {
            return 1;
        }
    }
    return check_set_up(state);
}

static int remove_all(void **state)
{
    scratch_remove(folder);
    return check_tear_down(state);
}

/* ---- weights ---- */

static void gives_deepspeeds_own_weights(void **state)
{
    char path[512];
    for (size_t i = 0; i < N_FORMS; ++i) {
        ds_checkpoint *c = NULL;
        ds_safetensors *want = NULL;
        const bool bf16 = strcmp(forms[i], "bf16") == 0; /* its script refuses these */
        (void)snprintf(path, sizeof path, "%s/%s/fp32.safetensors", folder, forms[i]);
        if (!bf16) {
            CHECK_OK(*state, ds_safetensors_open(*state, path, &want));
        }
        (void)snprintf(path, sizeof path, "%s/%s", folder, forms[i]);
        CHECK_OK(*state, ds_checkpoint_open(*state, path, NULL, &c));
        CHECK_OK(*state, ds_checkpoint_verify(c));
        assert_int_equal(ds_checkpoint_count(c), 60);
        for (size_t k = 0; want != NULL && k < ds_safetensors_count(want); ++k) {
            const ds_safetensor *w = ds_safetensors_at(want, k);
            const ds_checkpoint_tensor *t = ds_checkpoint_find(c, "master", w->name);
            float got[512];
            assert_non_null(t);
            assert_true(w->bytes <= sizeof got);
            CHECK_OK(*state, ds_checkpoint_read(c, t, NULL, DS_DTYPE_F32, got));
            assert_memory_equal(got, w->data, w->bytes);
        }
        ds_checkpoint_close(&c);
        ds_safetensors_close(&want);
    }
}

/* ---- going on ---- */

typedef struct job {
    const char *dir, *config, *model;
    int64_t rows; /* of a step, by all ranks */
    int32_t ids[BEFORE + AFTER][SEQUENCES][LENGTH];
    double losses[AFTER]; /* mean of all ranks; written by rank 0 */
} job;

static void read_batches(job *j)
{
    json_t *root = golden_json("deepspeed/batches.json");
    for (size_t s = 0; s < BEFORE + AFTER; ++s) {
        for (size_t q = 0; q < SEQUENCES; ++q) {
            const json_t *row =
                json_array_get(json_array_get(json_array_get(root, s), q / 2), q % 2);
            assert_int_equal(json_array_size(row), LENGTH);
            for (size_t i = 0; i < LENGTH; ++i) {
                j->ids[s][q][i] = (int32_t)json_integer_value(json_array_get(row, i));
            }
        }
    }
    json_decref(root);
}

/* This rank's sequences of a step, as a batch. */
static ds_status one_step(ds_engine *engine, job *j, int step, uint32_t rank, uint32_t n,
                          double *loss_out)
{
    static const char *const names[] = {"input_ids", "targets", "positions", "first"};
    enum { IDS, TARGETS, POSITIONS, FIRST, N };
    int32_t data[N][SEQUENCES * LENGTH];
    ds_named_tensor tensors[N];
    const int64_t own = j->rows / (int64_t)n;
    for (int64_t q = 0; q < own; ++q) {
        const int32_t *ids = j->ids[step][(int64_t)rank * own + q];
        for (int64_t i = 0; i < LENGTH; ++i) {
            const int64_t at = q * LENGTH + i;
            data[IDS][at] = ids[i];
            data[TARGETS][at] = i + 1 < LENGTH ? ids[i + 1] : -100;
            data[POSITIONS][at] = (int32_t)i;
            data[FIRST][at] = 0;
        }
    }
    for (size_t i = 0; i < N; ++i) {
        tensors[i] =
            (ds_named_tensor){names[i], {data[i], {DS_DTYPE_I32, ds_shape_2d(own, LENGTH)}}};
    }
    const ds_batch batch = {tensors, N};
    DS_TRY(ds_engine_forward(engine, &batch));
    *loss_out = ds_engine_loss(engine);
    DS_TRY(ds_engine_backward(engine));
    return ds_engine_step(engine);
}

static ds_status run_steps(ds_engine *engine, job *j, dsi_comm *comm)
{
    for (int i = 0; i < AFTER; ++i) {
        double loss = 0.0;
        DS_TRY(one_step(engine, j, BEFORE + i, comm->rank, comm->size, &loss));
        float sum = (float)loss;
        const dsi_comm_part part = {.in = &sum, .out = &sum, .count = 1};
        const dsi_comm_call call = {.kind = DS_COMM_ALL_REDUCE,
                                    .dtype = DS_DTYPE_F32,
                                    .factor = 1.0f,
                                    .parts = &part,
                                    .n_parts = 1,
                                    .what = "loss"};
        DS_TRY(dsi_comm_run(comm, &call));
        if (comm->rank == 0) {
            j->losses[i] = (double)sum / comm->size;
        }
    }
    return DS_OK;
}

static ds_status resume(dsi_comm *comm, void *arg)
{
    job *j = arg;
    ds_ctx *ctx = comm->ctx;
    ds_model *model = NULL;
    ds_config *config = NULL;
    ds_engine *engine = NULL;
    ds_status status = DS_OK;
    DS_TRY_GOTO(status, ds_model_from_config(ctx, j->model, &model), done);
    DS_TRY_GOTO(status,
                ds_config_load_text(ctx, "ds.json", j->config, strlen(j->config), NULL, &config),
                done);
    DS_TRY_GOTO(status, ds_config_resolve(config, comm->size, NULL), done);
    const ds_engine_params params = {
        .model = model, .config = config, .seq_length = LENGTH, .decay_all = true, .comm = comm};
    DS_TRY_GOTO(status, ds_initialize(ctx, &params, &engine), done);
    DS_TRY_GOTO(status, ds_engine_load_checkpoint(engine, j->dir, NULL, NULL), done);
    status = ds_engine_global_steps(engine) == BEFORE
                 ? run_steps(engine, j, comm)
                 : ds_fail(ctx, DS_ERR_STATE, "the counters are not those of 3 steps");
done:
    ds_engine_destroy(&engine);
    ds_config_destroy(&config);
    ds_model_destroy(&model);
    return status;
}

static void print_config(char *text, size_t n, int64_t micro, int stage, bool bf16)
{
    (void)snprintf(text, n,
                   "{\"train_micro_batch_size_per_gpu\": %d, \"gradient_clipping\": 1.0, "
                   "\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 1e-2, \"betas\": "
                   "[0.9, 0.95], \"eps\": 1e-8, \"weight_decay\": 0.1}}, \"scheduler\": {\"type\": "
                   "\"WarmupLR\", \"params\": {\"warmup_min_lr\": 0, \"warmup_max_lr\": 1e-2, "
                   "\"warmup_num_steps\": 6, \"warmup_type\": \"linear\"}}, "
                   "\"zero_optimization\": {\"stage\": %d}, \"bf16\": {\"enabled\": %s}%s}",
                   (int)micro, stage, bf16 ? "true" : "false",
                   bf16 ? ", \"data_types\": {\"grad_accum_dtype\": \"fp32\"}" : "");
}

static const char *model_of(const char *form)
{
    const bool untied = strcmp(form, "named") == 0 ||
                        (strncmp(form, "pipe", 4) == 0 && strcmp(form, "pipe_tied") != 0);
    return strncmp(form, "tensor", 6) == 0    ? GOLDEN "tensor.json"
           : strncmp(form, "experts", 7) == 0 ? GOLDEN "experts.json"
           : untied                           ? GOLDEN "untied.json"
                                              : GOLDEN "config.json";
}

/* A form resumed on so many ranks at a stage; the largest relative difference of its losses. */
static double resume_form(const char *form, uint32_t n_ranks, int stage)
{
    char path[512];
    char config[1024];
    static job j;
    json_error_t error;
    rank_results results;
    const bool bf16 = strstr(form, "bf16") != NULL;
    double most = 0.0;
    (void)snprintf(path, sizeof path, "%s/%s/losses.json", folder, form);
    json_t *losses = json_load_file(path, 0, &error);
    assert_non_null(losses);
    (void)snprintf(path, sizeof path, "%s/%s", folder, form);
    const int64_t rows = json_integer_value(json_object_get(losses, "rows"));
    j.rows = rows > 0 ? rows : SEQUENCES;
    print_config(config, sizeof config, j.rows / n_ranks, stage, bf16);
    j.dir = path;
    j.config = config;
    j.model = model_of(form);
    read_batches(&j);
    if (rank_threads_run(n_ranks, NULL, resume, &j, &results) < 0) {
        fail_msg("%s on %u ranks, stage %d: %s", form, n_ranks, stage, results.message[0]);
    }
    /* in bf16 gradients of a stage are rounded by micro-batch, of which this run has one */
    for (size_t i = 0; i < (strcmp(form, "pipe_bf16") == 0 ? 1 : AFTER); ++i) {
        const double want = json_number_value(json_array_get(json_object_get(losses, "after"), i));
        most = fmax(most, fabs(j.losses[i] - want) / want);
    }
    json_decref(losses);
    print_message("%s on %u ranks, stage %d: losses differ by %.1e\n", form, n_ranks, stage, most);
    return most;
}

static void goes_on_as_deepspeed(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_FORMS; ++i) {
        const double limit = strcmp(forms[i], "bf16") == 0 ? 1e-4 : 1e-5;
        assert_true(resume_form(forms[i], 1, 0) <= limit);
        assert_true(resume_form(forms[i], 2, 3) <= limit);
        assert_true(resume_form(forms[i], 3, 2) <= limit);
    }
}

static void goes_on_from_shared_layers(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_SHARED; ++i) {
        assert_true(resume_form(shared[i], 1, 0) <= 1e-5);
        assert_true(resume_form(shared[i], 3, 3) <= 1e-5);
    }
}

static void goes_on_from_stages(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_PIPES; ++i) {
        const double limit = strcmp(pipes[i], "pipe_bf16") == 0 ? 1e-4 : 1e-5;
        assert_true(resume_form(pipes[i], 1, 0) <= limit);
        assert_true(resume_form(pipes[i], 2, 3) <= limit);
        assert_true(resume_form(pipes[i], 3, 1) <= limit);
    }
}

static void goes_on_from_experts(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_SPARSE; ++i) {
        assert_true(resume_form(sparse[i], 1, 0) <= 1e-5);
        assert_true(resume_form(sparse[i], 2, 3) <= 1e-5);
        assert_true(resume_form(sparse[i], 2, 1) <= 1e-5);
    }
}

/* ---- names ---- */

static void fails_to_open(ds_ctx *ctx, const char *dir, ds_status status, const char *text)
{
    ds_checkpoint *c = NULL;
    CHECK_FAILS(ctx, ds_checkpoint_open(ctx, dir, NULL, &c), status, text);
    assert_null(c);
}

static void copy_form(const char *form, const char *to)
{
    char command[1400];
    (void)snprintf(command, sizeof command, "rm -rf %s; cp -r %s/%s %s", to, folder, form, to);
    assert_int_equal(system(command), 0);
}

/* The text at its first place in a file, with as many other bytes. */
static void replace(const char *path, const char *from, const char *to, size_t length)
{
    size_t n = 0;
    char *data = scratch_read(path, &n);
    char *at = memmem(data, n, from, length);
    assert_non_null(at);
    memcpy(at, to, length);
    scratch_write(path, data, n);
    free(data);
}

static void write_names(const char *text)
{
    char path[512];
    (void)snprintf(path, sizeof path, "%s/named/parameter_names.txt", folder);
    scratch_write(path, text, strlen(text));
}

static void maps_names_by_a_file(void **state)
{
    static const char lines[] = "# layers 1 and 2 are decoder layers 0 and 1\n\n"
                                "0.*  model.*\n"
                                "3.weight  model.norm.weight\n"
                                "4.*  *\n"
                                "{n}.*  model.layers.{n-1}.*\n";
    static const struct {
        const char *text, *error;
    } bad[] = {{"0.* model.*\n", "has no line for '1."},
               {"0.* model.* more\n", "is no line 'OWN NAME'"},
               {"0.*\n", "is no line 'OWN NAME'"},
               {"0.* model.{n}.*\n", "makes no name of '0.embed_tokens.weight'"},
               {"{n}.* model.layers.{n-1}.*\n", "makes no name of '0."},
               {"{n}.* model.{n+9223372036854775807}.*\n", "makes no name of '"},
               {"* same.name\n", "is there twice"}};
    char dir[256];
    (void)snprintf(dir, sizeof dir, "%s/named", folder);
    copy_form("pipe", dir);
    write_names(lines);
    assert_true(resume_form("pipe", 1, 0) == resume_form("named", 1, 0));
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; ++i) {
        write_names(bad[i].text);
        fails_to_open(*state, dir, DS_ERR_FORMAT, bad[i].error);
    }
}

/* ---- random parameter_names.txt ---- */

static uint32_t draw(uint64_t *seed, uint32_t n)
{
    *seed = *seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(*seed >> 33) % n;
}

/* A file by which all names of "pipe" are those of the model again: its lines in another form each
 * time, some by numbers, some by letters and some by name, with comments and blanks. */
static void draw_names(uint64_t *seed, char *text, size_t room)
{
    static const char *const modules[] = {
        "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",
        "self_attn.o_proj", "mlp.gate_proj",    "mlp.up_proj",
        "mlp.down_proj",    "input_layernorm",  "post_attention_layernorm"};
    static const char *const blanks[] = {" ", "\t", "   ", " \t "};
    size_t n = 0;
    const char *blank = blanks[draw(seed, 4)];
#define LINE(...) n += (size_t)snprintf(text + n, room - n, __VA_ARGS__)
    if (draw(seed, 2) == 0) {
        LINE("# own names\n\n");
    }
    LINE(draw(seed, 2) == 0 ? "0.*%smodel.*\n" : "0.embed_tokens.*%smodel.embed_tokens.*\n", blank);
    LINE(draw(seed, 2) == 0 ? "3.weight%smodel.norm.weight\n" : "3.*%smodel.norm.*\n", blank);
    LINE(draw(seed, 2) == 0 ? "4.*%s*\n" : "%s4.lm_head.weight   lm_head.weight\n", blank);
    for (uint32_t layer = 1; layer <= 2; ++layer) {
        if (draw(seed, 3) == 0) {
            LINE("%u.*%smodel.layers.%u.*%s\n", layer, blank, layer - 1, blank);
        }
    }
    for (size_t i = 0; i < sizeof modules / sizeof modules[0]; ++i) {
        const int letter = 'a' + (int)draw(seed, 26);
        if (draw(seed, 3) == 0) {
            LINE("{%c}.%s.*%smodel.layers.{%c-1}.%s.*\n", letter, modules[i], blank, letter,
                 modules[i]);
        }
    }
    LINE("{%c}.*%smodel.layers.{%c-1}.*\n", 'z', blank, 'z');
#undef LINE
    assert_true(n < room);
}

/* Whether the names are exactly those that the layers' order gives. */
static bool has_names_of(ds_ctx *ctx, const char *dir, const ds_checkpoint *want)
{
    ds_checkpoint *c = NULL;
    if (ds_checkpoint_open(ctx, dir, NULL, &c) < 0) {
        return false;
    }
    bool same = ds_checkpoint_count(c) == ds_checkpoint_count(want);
    for (size_t i = 0; same && i < ds_checkpoint_count(c); ++i) {
        same = strcmp(ds_checkpoint_at(c, i)->name, ds_checkpoint_at(want, i)->name) == 0 &&
               strcmp(ds_checkpoint_at(c, i)->kind, ds_checkpoint_at(want, i)->kind) == 0;
    }
    ds_checkpoint_close(&c);
    return same;
}

/* PARAMETER_NAMES: how many. */
static void takes_any_file_of_names_or_refuses_it(void **state)
{
    const char *wanted = getenv("PARAMETER_NAMES");
    const long times = wanted != NULL ? atol(wanted) : 200;
    char text[4096];
    char dir[256];
    char path[512];
    uint64_t seed = 7;
    ds_checkpoint *pipe = NULL;
    long n_refused = 0;
    (void)snprintf(path, sizeof path, "%s/pipe", folder);
    CHECK_OK(*state, ds_checkpoint_open(*state, path, NULL, &pipe));
    (void)snprintf(dir, sizeof dir, "%s/named", folder);
    copy_form("pipe", dir);
    for (long i = 0; i < times; ++i) {
        draw_names(&seed, text, sizeof text);
        write_names(text);
        if (!has_names_of(*state, dir, pipe)) {
            fail_msg("these are not the names of the layers: %s\n%s", ds_ctx_error(*state), text);
        }
        /* two bytes are others: names stay, are others, or an error names the file and the line */
        const size_t n = strlen(text);
        for (int k = 0; k < 2; ++k) {
            text[draw(&seed, (uint32_t)n)] = (char)(1 + draw(&seed, 127));
        }
        write_names(text);
        ds_checkpoint *c = NULL;
        if (ds_checkpoint_open(*state, dir, NULL, &c) < 0) {
            ++n_refused;
            const char *said = ds_ctx_error(*state);
            const bool known = strstr(said, "parameter_names.txt") != NULL ||
                               strstr(said, "is there twice") != NULL;
            if (!known) {
                fail_msg("'%s' names no file of names, of\n%s", said, text);
            }
        } else {
            assert_int_equal(ds_checkpoint_count(c), ds_checkpoint_count(pipe));
            ds_checkpoint_close(&c);
        }
    }
    print_message("%ld files of names, and %ld with two other bytes, of which %ld were refused\n",
                  times, times, n_refused);
    assert_true(n_refused > times / 4);
    ds_checkpoint_close(&pipe);
}

/* A layer of the user's own leaves the names as they are, and no run goes on from them. */
static void keeps_names_that_no_rule_knows(void **state)
{
    char dir[256];
    char path[512];
    ds_checkpoint *c = NULL;
    (void)snprintf(dir, sizeof dir, "%s/named", folder);
    copy_form("pipe", dir);
    (void)snprintf(path, sizeof path, "%s/global_step3/mp_rank_00_model_states.pt", dir);
    replace(path, "1.self_attn.q_proj", "1.self_attn.x_proj", 18);
    CHECK_OK(*state, ds_checkpoint_open(*state, dir, NULL, &c));
    assert_non_null(ds_checkpoint_find(c, "master", "0.embed_tokens.weight"));
    assert_non_null(ds_checkpoint_find(c, "exp_avg", "1.self_attn.x_proj.weight"));
    ds_checkpoint_close(&c);
}

/* ---- damage ---- */

static void refuses_damaged_folders(void **state)
{
    char dir[256];
    char path[512];
    char other[512];
    size_t n = 0;
    (void)snprintf(dir, sizeof dir, "%s/damaged", folder);
    copy_form("zero2", dir);
    (void)snprintf(path, sizeof path, "%s/global_step3/zero_pp_rank_1_mp_rank_00_optim_states.pt",
                   dir);
    (void)snprintf(other, sizeof other, "%s/global_step3/zero_pp_rank_2_mp_rank_00_optim_states.pt",
                   dir);
    char *data = scratch_read(path, &n);
    assert_int_equal(unlink(other), 0);
    fails_to_open(*state, dir, DS_ERR_FORMAT,
                  "partition_count says 3 ranks, the folder has files "
                  "of 2");
    scratch_write(other, data, n);
    assert_int_equal(unlink(path), 0);
    fails_to_open(*state, dir, DS_ERR_NOT_FOUND, "zero_pp_rank_1_mp_rank_00_optim_states.pt");
    scratch_write(path, data, n / 2);
    fails_to_open(*state, dir, DS_ERR_FORMAT, "zero_pp_rank_1_mp_rank_00_optim_states.pt");
    free(data);
    /* one rank's partition of a model of stage 3 among those of stage 2 */
    (void)snprintf(other, sizeof other, "%s/zero3/global_step3/%s", folder,
                   "zero_pp_rank_1_mp_rank_00_optim_states.pt");
    data = scratch_read(other, &n);
    scratch_write(path, data, n);
    fails_to_open(*state, dir, DS_ERR_FORMAT, "zero_stage is not that of rank 0");
    free(data);
    /* rank 0's file of another name's parameters: model states of stage 3 have no such groups */
    copy_form("zero1", dir);
    (void)snprintf(path, sizeof path, "%s/global_step3/mp_rank_00_model_states.pt", dir);
    (void)snprintf(other, sizeof other, "%s/zero3/global_step3/%s", folder,
                   "zero_pp_rank_0_mp_rank_00_model_states.pt");
    data = scratch_read(other, &n);
    scratch_write(path, data, n);
    fails_to_open(*state, dir, DS_ERR_FORMAT, "param_shapes has");
    free(data);
}

static void refuses_damaged_universal_folders(void **state)
{
    static const char zero[] = "global_step3_universal/zero";
    char dir[256];
    char path[512];
    char other[512];
    size_t n = 0;
    (void)snprintf(dir, sizeof dir, "%s/damaged", folder);
    copy_form("universal2", dir);
    (void)snprintf(path, sizeof path, "%s/%s/model.norm.weight/step.pt", dir, zero);
    (void)snprintf(other, sizeof other, "%s/%s/model.norm.weight/exp_avg.pt", dir, zero);
    char *data = scratch_read(other, &n);
    scratch_write(path, data, n);
    fails_to_open(*state, dir, DS_ERR_FORMAT, "model.norm.weight/step.pt holds no number");
    assert_int_equal(unlink(path), 0);
    (void)snprintf(path, sizeof path, "%s/%s/model.embed_tokens.weight/exp_avg.pt", dir, zero);
    scratch_write(path, data, n);
    fails_to_open(*state, dir, DS_ERR_SHAPE, "model.embed_tokens.weight/exp_avg.pt has not the");
    free(data);
    copy_form("universal3", dir);
    (void)snprintf(path, sizeof path, "%s/%s/model.norm.weight/fp32.pt", dir, zero);
    assert_int_equal(unlink(path), 0);
    fails_to_open(*state, dir, DS_ERR_NOT_FOUND, "model.norm.weight/fp32.pt is missing");
}

static void refuses_damaged_stages_and_experts(void **state)
{
    char dir[256];
    char path[512];
    (void)snprintf(dir, sizeof dir, "%s/damaged", folder);
    copy_form("pipe", dir);
    (void)snprintf(path, sizeof path, "%s/global_step3/zero_pp_rank_0_mp_rank_01_optim_states.pt",
                   dir);
    assert_int_equal(unlink(path), 0);
    fails_to_open(*state, dir, DS_ERR_NOT_FOUND, "zero_pp_rank_0_mp_rank_01_optim_states.pt");
    (void)snprintf(path, sizeof path, "%s/global_step3/mp_rank_01_model_states.pt", dir);
    copy_form("pipe", dir);
    replace(path, "global_samples", "global_simples", 14);
    fails_to_open(*state, dir, DS_ERR_FORMAT, "global_samples is -1");
    copy_form("pipe", dir);
    replace(path, "tp_degree", "xp_degree", 9);
    replace(path, "pp_degree", "tp_degree", 9); /* 2 */
    fails_to_open(*state, dir, DS_ERR_UNSUPPORTED, "a pipeline with tensor parallelism");
    (void)snprintf(path, sizeof path, "%s/global_step3/mp_rank_00_model_states.pt", dir);
    copy_form("experts1", dir);
    replace(path, "deepspeed_experts.1", "deepspeed_experts.7", 19);
    fails_to_open(*state, dir, DS_ERR_FORMAT, "is not that of expert");
    copy_form("experts2", dir);
    replace(path, "deepspeed_experts.", "deepspeed_exparts.", 18);
    fails_to_open(*state, dir, DS_ERR_UNSUPPORTED, "is no expert of deepspeed.moe");
    copy_form("experts_pipe", dir);
    replace(path, "tp_degree", "xp_degree", 9);
    replace(path, "pp_degree", "tp_degree", 9); /* 2 */
    fails_to_open(*state, dir, DS_ERR_UNSUPPORTED, "experts with tensor parallelism (2)");
}

static void refuses_damaged_shared_layers(void **state)
{
    char dir[256];
    char path[512];
    (void)snprintf(dir, sizeof dir, "%s/damaged", folder);
    (void)snprintf(path, sizeof path, "%s/global_step3/zero_pp_rank_1_mp_rank_01_optim_states.pt",
                   dir);
    copy_form("tensor1", dir);
    assert_int_equal(unlink(path), 0);
    fails_to_open(*state, dir, DS_ERR_NOT_FOUND, "zero_pp_rank_1_mp_rank_01_optim_states.pt");
    (void)snprintf(path, sizeof path, "%s/global_step3/mp_rank_00_model_states.pt", dir);
    copy_form("tensor1", dir);
    replace(path, "affine_map", "affine_mop", 10);
    fails_to_open(*state, dir, DS_ERR_UNSUPPORTED, "has no logical_shape");
    copy_form("tensor1", dir);
    replace(path, "logical_shape", "logical_shope", 13);
    fails_to_open(*state, dir, DS_ERR_UNSUPPORTED, "has no logical_shape");
    copy_form("tensor1", dir);
    replace(path, "shard_shape", "shard_shope", 11);
    fails_to_open(*state, dir, DS_ERR_UNSUPPORTED, "another shard_shape");
}

/* A mutated pickle is refused, or read within its bounds, which the address sanitizer sees. */
static void mutate(ds_ctx *ctx, const char *form, const char *const files[2], size_t span)
{
    const char *wanted = getenv("TORCH_MUTATIONS");
    const long times = wanted != NULL ? atol(wanted) : 300;
    char dir[256];
    char path[512];
    uint64_t seed = 5;
    (void)snprintf(dir, sizeof dir, "%s/mutated", folder);
    copy_form(form, dir);
    for (long i = 0; i < times; ++i) {
        size_t n = 0;
        ds_checkpoint *c = NULL;
        (void)snprintf(path, sizeof path, "%s/global_step3/%s", dir, files[i % 2]);
        char *data = scratch_read(path, &n);
        char *copy = malloc(n);
        assert_non_null(copy);
        memcpy(copy, data, n);
        for (int k = 0; k < 3; ++k) {
            seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
            copy[(seed >> 33) % (n < span ? n : span)] ^=
                (char)(1 << (seed >> 20) % 8); /* the pickle is first */
        }
        scratch_write(path, copy, n);
        if (ds_checkpoint_open(ctx, dir, NULL, &c) == DS_OK) {
            for (size_t t = 0; t < ds_checkpoint_count(c); ++t) {
                float room[512];
                const ds_checkpoint_tensor *tensor = ds_checkpoint_at(c, t);
                if (ds_meta_bytes(tensor->meta) <= sizeof room) {
                    (void)ds_checkpoint_read(c, tensor, NULL, tensor->meta.dtype, room);
                }
            }
            ds_checkpoint_close(&c);
        }
        scratch_write(path, data, n);
        free(copy);
        free(data);
    }
}

static void stays_inside_of_mutated_folders(void **state)
{
    static const char *const third[2] = {"zero_pp_rank_1_mp_rank_00_optim_states.pt",
                                         "zero_pp_rank_0_mp_rank_00_model_states.pt"};
    static const char *const maps[2] = {"mp_rank_00_model_states.pt", "mp_rank_01_model_states.pt"};
    static const char *const stages[2] = {"mp_rank_01_model_states.pt",
                                          "zero_pp_rank_1_mp_rank_01_optim_states.pt"};
    static const char *const experts[2] = {"mp_rank_00_model_states.pt",
                                           "zero_pp_rank_3_mp_rank_00_optim_states.pt"};
    mutate(*state, "pipe_tied", stages, 4096);
    mutate(*state, "experts2", experts, 8192);
    mutate(*state, "experts_pipe", stages, 4096);
    mutate(*state, "zero3", third, 4096);
    mutate(*state, "tensor1", maps, 32768); /* affine_map is in the middle */
}

static void finds_a_changed_byte(void **state)
{
    char dir[256];
    char path[512];
    size_t n = 0;
    ds_checkpoint *c = NULL;
    (void)snprintf(dir, sizeof dir, "%s/changed", folder);
    copy_form("zero1", dir);
    (void)snprintf(path, sizeof path, "%s/global_step3/zero_pp_rank_1_mp_rank_00_optim_states.pt",
                   dir);
    CHECK_OK(*state, ds_checkpoint_open(*state, dir, NULL, &c));
    ds_checkpoint_close(&c);
    char *data = scratch_read(path, &n);
    data[n / 2] ^= 1; /* in a storage: the pickle is before, the directory behind */
    scratch_write(path, data, n);
    free(data);
    CHECK_OK(*state, ds_checkpoint_open(*state, dir, NULL, &c));
    CHECK_FAILS(*state, ds_checkpoint_verify(c), DS_ERR_CORRUPT, "CRC-32");
    ds_checkpoint_close(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(gives_deepspeeds_own_weights),
                                       cmocka_unit_test(goes_on_as_deepspeed),
                                       cmocka_unit_test(goes_on_from_shared_layers),
                                       cmocka_unit_test(goes_on_from_stages),
                                       cmocka_unit_test(goes_on_from_experts),
                                       cmocka_unit_test(maps_names_by_a_file),
                                       cmocka_unit_test(takes_any_file_of_names_or_refuses_it),
                                       cmocka_unit_test(keeps_names_that_no_rule_knows),
                                       cmocka_unit_test(refuses_damaged_stages_and_experts),
                                       cmocka_unit_test(refuses_damaged_shared_layers),
                                       cmocka_unit_test(refuses_damaged_folders),
                                       cmocka_unit_test(finds_a_changed_byte),
                                       cmocka_unit_test(refuses_damaged_universal_folders),
                                       cmocka_unit_test(stays_inside_of_mutated_folders)};
    return cmocka_run_group_tests(tests, unpack, remove_all);
}
