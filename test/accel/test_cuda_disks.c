/* SPDX-License-Identifier: Apache-2.0 */
/* Offload to disk on the accelerator `cuda` by cuFile (`aio.use_gds`), over the stand-ins of the
 * driver and of cuFile (standin_cufile/): the bits of the run in device memory, whatever cuFile
 * moves at once and whether it could register memory; the device has moved the bytes; failures name
 * the step, the file and cuFile's reason; what cannot be had is refused by name. No GPU is asked.
 * labels: slow */
#include "accel/accel.h"
#include "common/check.h"
#include "common/engine_hash.h"
#include "common/scratch.h"
#include "common/small_run.h"
#include "common/standin_load.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

enum { STEPS = 2 };

static ds_ctx *ctx;
static char *folder;
static standin_calls standin;
static void (*set_cufile)(const char *options);
static void (*count_cufile)(uint64_t counts_out[3]);
static char logged[4096];

static const char llama[] =
    "{\"model_type\":\"llama\",\"vocab_size\":211,\"hidden_size\":16,\"intermediate_size\":40,"
    "\"num_hidden_layers\":2,\"num_attention_heads\":2,\"num_key_value_heads\":1,"
    "\"max_position_embeddings\":64,\"rms_norm_eps\":1e-5,\"tie_word_embeddings\":false}";

static void keep_line(void *user, ds_log_level level, const char *line)
{
    (void)user;
    if (level <= DS_LOG_WARN) {
        (void)snprintf(logged, sizeof logged, "%s", line);
    }
}

static dsi_engine_spec make_spec(const char *accel, dsi_residency states, dsi_residency params)
{
    dsi_engine_spec spec = small_spec(DS_DTYPE_BF16);
    CHECK_OK(ctx, dsi_accel_choose(ctx, accel, &spec.accel));
    spec.train.max_norm = 0.1;
    spec.zero = (dsi_zero_spec){.stage = 3,
                                .reduce_each = true,
                                .comm_dtype = DS_DTYPE_BF16,
                                .reduce_bucket = 1000,
                                .gather_bucket = 1000,
                                .model_persistence = INT64_MAX,
                                .max_live = 1000,
                                .max_reuse_distance = 1000};
    spec.offload = small_away(folder, states, params);
    spec.offload.use_gds = states == DSI_RESIDENCY_DISK || params == DSI_RESIDENCY_DISK;
    return spec;
}

static ds_status run_steps(ds_engine *engine, uint64_t *hash_out)
{
    small_batch room;
    for (int32_t step = 0; step < STEPS; ++step) {
        const ds_batch batch = small_feed(step, &room);
        DS_TRY(ds_engine_forward(engine, &batch));
        DS_TRY(ds_engine_backward(engine));
        DS_TRY(ds_engine_step(engine));
    }
    return engine_hash(ctx, engine, hash_out);
}

static ds_status train(const ds_model *model, const dsi_engine_spec *spec, uint64_t *hash_out)
{
    ds_engine *engine = NULL;
    const ds_engine_params params = {.model = model, .seq_length = SMALL_SEQ, .seed = 5};
    ds_status status = dsi_engine_create(ctx, &params, spec, &engine);
    status = status < 0 ? status : run_steps(engine, hash_out);
    ds_engine_destroy(&engine);
    return status;
}

static void disk_has_the_bits_of_memory(void **state)
{
    static const struct {
        const char *cufile, *order;
        dsi_residency states, params;
        bool registered;
    } rows[] = {
        {"", "seed=1,turn=256", DSI_RESIDENCY_DISK, DSI_RESIDENCY_DEVICE, true},
        {"", "seed=2,turn=4096", DSI_RESIDENCY_DISK, DSI_RESIDENCY_DISK, true},
        {"short=1", "seed=3,turn=64", DSI_RESIDENCY_DISK, DSI_RESIDENCY_DISK, true},
        {"map=5016", "seed=4,turn=1024", DSI_RESIDENCY_DISK, DSI_RESIDENCY_HOST, false},
    };
    ds_model *model = small_model(ctx, folder, llama);
    uint64_t wanted = 0;
    (void)state;
    const dsi_engine_spec inside = make_spec("cuda", DSI_RESIDENCY_DEVICE, DSI_RESIDENCY_DEVICE);
    CHECK_OK(ctx, train(model, &inside, &wanted));
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
        uint64_t hash = 0;
        uint64_t counts[3] = {0};
        if (i % 2 == 1 && !check_long_row(i)) {
            continue;
        }
        logged[0] = '\0';
        standin.set(rows[i].order);
        set_cufile(rows[i].cufile);
        dsi_engine_spec spec = make_spec("cuda", rows[i].states, rows[i].params);
        spec.offload.aio.block_size = 4096; /* several pieces a cell */
        CHECK_OK(ctx, train(model, &spec, &hash));
        count_cufile(counts);
        if (hash != wanted || counts[0] == 0 || counts[1] == 0 ||
            (counts[2] > 0) != rows[i].registered) {
            fail_msg("row %zu: %llu bytes read, %llu written, %llu transfers of registered memory, "
                     "%s bits",
                     i, (unsigned long long)counts[0], (unsigned long long)counts[1],
                     (unsigned long long)counts[2], hash == wanted ? "the same" : "other");
        }
        assert_true(rows[i].registered || strstr(logged, "cuFile cannot register") != NULL);
    }
    set_cufile("");
    ds_model_destroy(&model);
}

static void a_failed_transfer_is_named(void **state)
{
    static const char *const rows[][3] = {
        {"fail=3", "cannot ", "Input/output error; the disk or the network to it fails"},
        {"fail=3,code=5010", "cannot ", "the kernel module nvidia-fs failed"},
        {"fail=40,code=5017", "cannot ", "a range beyond what is registered"}};
    ds_model *model = small_model(ctx, folder, llama);
    uint64_t hash = 0;
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
        ds_engine *engine = NULL;
        const dsi_engine_spec spec = make_spec("cuda", DSI_RESIDENCY_DISK, DSI_RESIDENCY_DISK);
        const ds_engine_params params = {.model = model, .seq_length = SMALL_SEQ, .seed = 5};
        CHECK_OK(ctx, dsi_engine_create(ctx, &params, &spec, &engine));
        set_cufile(rows[i][0]);
        const ds_status status = run_steps(engine, &hash);
        if (status != DS_ERR_IO || strstr(ds_ctx_error(ctx), rows[i][1]) == NULL ||
            strstr(ds_ctx_error(ctx), rows[i][2]) == NULL ||
            strstr(ds_ctx_error(ctx), "step ") == NULL) {
            fail_msg("row %zu: status %d: %s", i, (int)status, ds_ctx_error(ctx));
        }
        set_cufile("");
        ds_engine_destroy(&engine);
    }
    ds_model_destroy(&model);
}

static void what_cannot_be_had_is_refused_by_name(void **state)
{
    ds_model *model = small_model(ctx, folder, llama);
    uint64_t hash = 0;
    (void)state;
    dsi_engine_spec spec = make_spec("cuda", DSI_RESIDENCY_DISK, DSI_RESIDENCY_DEVICE);
    set_cufile("driver=5001");
    CHECK_FAILS(ctx, train(model, &spec, &hash), DS_ERR_UNSUPPORTED,
                "aio.use_gds: cuFileDriverOpen: the kernel module nvidia-fs is not loaded");
    set_cufile("file=5008");
    CHECK_FAILS(ctx, train(model, &spec, &hash), DS_ERR_DEVICE,
                "cuFile says not on this file system (5008)");
    set_cufile("map=5012");
    CHECK_FAILS(ctx, train(model, &spec, &hash), DS_ERR_DEVICE,
                "memory for the disk: cuFile says an address that is not the device's (5012)");
    set_cufile("");
    spec.offload.use_gds = false;
    CHECK_FAILS(ctx, train(model, &spec, &hash), DS_ERR_UNSUPPORTED,
                "the host moves nothing between a disk and the accelerator cuda; set aio.use_gds");
    static const char *const others[] = {"cpu", "sim"};
    for (size_t i = 0; i < 2; ++i) {
        char wanted[128];
        (void)snprintf(wanted, sizeof wanted,
                       "aio.use_gds: the accelerator %s moves nothing between disk and device by "
                       "itself",
                       others[i]);
        spec = make_spec(others[i], DSI_RESIDENCY_DISK, DSI_RESIDENCY_DEVICE);
        CHECK_FAILS(ctx, train(model, &spec, &hash), DS_ERR_UNSUPPORTED, wanted);
    }
    ds_model_destroy(&model);
}

/* A transfer that never ends keeps device, files and memory: nothing of it is freed under it. */
static void a_disk_that_does_not_answer_is_an_error(void **state)
{
    ds_model *model = small_model(ctx, folder, llama);
    ds_engine *engine = NULL;
    uint64_t hash = 0;
    uint64_t again = 0;
    (void)state;
    dsi_engine_spec spec = make_spec("cuda", DSI_RESIDENCY_DISK, DSI_RESIDENCY_DISK);
    const ds_engine_params params = {.model = model, .seq_length = SMALL_SEQ, .seed = 5};
    spec.offload.patience = 0.2;
    CHECK_OK(ctx, dsi_engine_create(ctx, &params, &spec, &engine));
    set_cufile("hang=5");
    CHECK_FAILS(ctx, run_steps(engine, &hash), DS_ERR_IO, "the disk does not answer");
    set_cufile("");
    ds_engine_destroy(&engine);
    spec = make_spec("cuda", DSI_RESIDENCY_DEVICE, DSI_RESIDENCY_DEVICE);
    CHECK_OK(ctx, train(model, &spec, &hash));
    spec = make_spec("cuda", DSI_RESIDENCY_DISK, DSI_RESIDENCY_DISK);
    CHECK_OK(ctx, train(model, &spec, &again));
    assert_true(again == hash);
    ds_model_destroy(&model);
}

static void *find(const char *name)
{
    void *symbol = dlsym(RTLD_DEFAULT, name);
    assert_non_null(symbol);
    return symbol;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(disk_has_the_bits_of_memory),
        cmocka_unit_test(a_failed_transfer_is_named),
        cmocka_unit_test(what_cannot_be_had_is_refused_by_name),
        cmocka_unit_test(a_disk_that_does_not_answer_is_an_error),
    };
    const ds_ctx_params params = {.log = keep_line, .level = DS_LOG_WARN, .n_threads = 2};
    if (!standin_load(DS_BINARY_DIR, &standin) || ds_ctx_create(&params, &ctx) < 0) {
        return 1;
    }
    void *symbols[] = {find("standin_cufile_set"), find("standin_cufile_counts")};
    memcpy(&set_cufile, &symbols[0], sizeof set_cufile);
    memcpy(&count_cufile, &symbols[1], sizeof count_cufile);
    folder = scratch_make();
    cmocka_set_test_filter(argc > 1 ? argv[1] : NULL);
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    scratch_remove(folder);
    ds_ctx_destroy(&ctx);
    return failed;
}
