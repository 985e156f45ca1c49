/* SPDX-License-Identifier: Apache-2.0 */
/* Weights on disk between their uses change no bit of a logit, whatever stays in memory and however
 * far they are read ahead; a server's memory is what was planned; what cannot be is refused. */
#include "common/parity.h"
#include "common/scratch.h"
#include "serve/server.h"

#include <deepspeed/serve.h>
#include <stdio.h>
#include <string.h>

enum { TRIALS = 6, PROMPT = 40, STEPS = 6 };

static int64_t between(uint64_t *seed, int64_t least, int64_t most)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return least + (int64_t)((*seed >> 33) % (uint64_t)(most - least + 1));
}

static void load_config(ds_ctx *ctx, const char *text, ds_config **config_out)
{
    CHECK_OK(ctx, ds_config_load_text(ctx, "test", text, strlen(text), NULL, config_out));
    CHECK_OK(ctx, ds_config_resolve(*config_out, 1, NULL));
}

/* Some of the weights on disk, some read far ahead, some kept between two uses. */
static void draw_config(ds_ctx *ctx, const char *folder, uint64_t *seed, ds_config **config_out)
{
    static const int64_t ahead[] = {0, 100, 5000, 50000000};
    char text[1024];
    (void)snprintf(
        text, sizeof text,
        "{\"train_micro_batch_size_per_gpu\": 1, \"zero_optimization\": {\"stage\": 3, "
        "\"stage3_param_persistence_threshold\": %lld, "
        "\"stage3_prefetch_bucket_size\": %lld, \"stage3_max_reuse_distance\": %lld, "
        "\"offload_param\": {\"device\": \"nvme\", \"nvme_path\": \"%s\", "
        "\"max_in_cpu\": %lld}}, \"aio\": {\"block_size\": %lld, \"queue_depth\": %lld}}",
        (long long)between(seed, 0, 300), (long long)ahead[between(seed, 0, 3)],
        (long long)ahead[between(seed, 0, 3)], folder,
        (long long)(between(seed, 0, 1) * between(seed, 0, 20000)),
        (long long)(4096 << between(seed, 0, 4)), (long long)between(seed, 1, 16));
    load_config(ctx, text, config_out);
}

/* All logits of a prompt and some steps, in `rows`. */
static size_t logits_of(ds_ctx *ctx, const ds_generator_params *params, float *rows, size_t room)
{
    uint32_t prompt[PROMPT];
    ds_generator *g = NULL;
    size_t at = 0;
    int64_t n = 0;
    CHECK_OK(ctx, ds_generator_create(ctx, params, &g));
    for (uint32_t i = 0; i < PROMPT; ++i) {
        prompt[i] = (i * 7 + 3) % 60;
    }
    CHECK_OK(ctx, ds_generator_prompt(g, prompt, PROMPT));
    for (int i = 0; i <= STEPS; ++i) {
        uint32_t id = 0;
        const float *row = ds_generator_logits(g, &n);
        assert_true(at + (size_t)n <= room);
        memcpy(rows + at, row, (size_t)n * sizeof *row);
        at += (size_t)n;
        CHECK_OK(ctx, i < STEPS ? ds_generator_next(g, &(ds_sampling){0}, &id) : DS_OK);
    }
    ds_generator_destroy(&g);
    return at;
}

static void same_bits(void **state)
{
    static const char *const names[] = {"gpt2",   "llama3_tied", "mixtral", "qwen3_moe",
                                        "gemma2", "deepseek_v3", "mpt",     "gpt_oss"};
    static const ds_dtype dtypes[] = {DS_DTYPE_F32, DS_DTYPE_BF16, DS_DTYPE_F16};
    static float want[8192], got[8192];
    ds_ctx *ctx = *state;
    char *folder = scratch_make();
    uint64_t seed = 11;
    for (size_t m = 0; m < sizeof names / sizeof *names; ++m) {
        parity_case p;
        parity_open(ctx, names[m], &p);
        ds_generator_params params = {.model = p.model, .weights = p.folder, .max_length = 60};
        for (int i = 0; i < TRIALS; ++i) {
            ds_config *config = NULL;
            params.dtype = dtypes[between(&seed, 0, 2)];
            params.config = NULL;
            const size_t n = logits_of(ctx, &params, want, 8192);
            const bool in_place = between(&seed, 0, 1) == 1;
            draw_config(ctx, in_place ? p.folder : folder, &seed, &config);
            params.config = config;
            assert_int_equal(logits_of(ctx, &params, got, 8192), n);
            if (memcmp(want, got, n * sizeof *want) != 0) {
                fail_msg("%s, trial %d: the logits differ", names[m], i);
            }
            ds_config_destroy(&config);
        }
        parity_close(&p);
    }
    scratch_remove(folder);
}

enum { LOGITS = 4096 };

/* Two sequences of one server, a prompt and some steps: logits, one after the other. */
static void served(ds_ctx *ctx, ds_server *server, int64_t vocab, float *rows_out)
{
    const uint64_t uids[] = {1, 2};
    uint32_t ids[33];
    for (uint32_t k = 0; k < 33; ++k) {
        ids[k] = (k * 5 + 2) % 60;
    }
    for (int step = 0; step < 4; ++step) {
        const size_t prompts[] = {20, 13}, one[] = {1, 1};
        const float *rows = NULL;
        CHECK_OK(ctx, ds_serve_put(server, 2, uids, ids, step == 0 ? prompts : one, &rows));
        memcpy(rows_out + step * 2 * vocab, rows, 2 * (size_t)vocab * sizeof *rows);
    }
}

/* The same of many sequences, keys and values away as well or not, and the bytes are those that
 * were planned. */
static void a_server_has_them_and_what_was_planned(void **state)
{
    static const ds_dtype cells[] = {DS_DTYPE_NONE, DS_DTYPE_I8, DS_DTYPE_F32};
    ds_ctx *ctx = *state;
    char *folder = scratch_make();
    uint64_t seed = 5;
    parity_case p;
    parity_open(ctx, "llama3_tied", &p);
    assert_true(8 * p.vocab <= LOGITS);
    for (int i = 0; i < 3 * TRIALS; ++i) {
        static float want[LOGITS], got[LOGITS];
        ds_serve_params params = {
            .source = {.model = p.model, .dtype = DS_DTYPE_BF16, .max_length = 60},
            .max_sequences = 4,
            .max_batch_tokens = 48,
            .kv_tokens = 256,
            .kv_type = cells[i % 3]};
        for (int away = 0; away < 2; ++away) {
            ds_serve_needs needs;
            ds_server *server = NULL;
            ds_config *config = NULL;
            params.source.weights = NULL;
            if (away == 1) {
                draw_config(ctx, folder, &seed, &config);
            }
            params.source.config = config;
            params.source.offload_kv = away == 1 && between(&seed, 0, 2) > 0;
            CHECK_OK(ctx, ds_serve_plan(ctx, &params, &needs));
            params.source.weights = p.folder;
            CHECK_OK(ctx, ds_serve_create(ctx, &params, &server));
            const size_t drawn = 2 * ((size_t)p.vocab * 18 + 60 * 4) + (size_t)p.vocab * 12;
            const size_t planned = (size_t)(needs.weights + needs.keys_values + needs.batch);
            const dsi_exec *exec = server->generator->exec;
            assert_int_equal(dsi_exec_bytes(exec), planned - drawn);
            assert_int_equal(dsi_exec_disk_bytes_of(exec, DSI_SWAP_PARAMS) +
                                 dsi_exec_disk_bytes_of(exec, DSI_SWAP_KEYS),
                             needs.stored);
            assert_int_equal(needs.keys_values == 0, params.source.offload_kv);
            served(ctx, server, p.vocab, away == 0 ? want : got);
            if (away == 1 && memcmp(want, got, 8 * (size_t)p.vocab * sizeof *want) != 0) {
                fail_msg("trial %d: the logits differ", i);
            }
            ds_serve_destroy(&server);
            ds_config_destroy(&config);
        }
    }
    parity_close(&p);
    scratch_remove(folder);
}

static void refusals(void **state)
{
    ds_ctx *ctx = *state;
    ds_config *config = NULL;
    ds_generator *g = NULL;
    parity_case p;
    static const char text[] =
        "{\"train_micro_batch_size_per_gpu\": 1, \"zero_optimization\": {\"stage\": 3, "
        "\"offload_param\": {\"device\": \"nvme\", \"nvme_path\": \"/nowhere/at/all\", "
        "\"max_in_cpu\": 0}, \"stage3_param_persistence_threshold\": 0}}";
    parity_open(ctx, "gpt2", &p);
    CHECK_OK(ctx, ds_config_load_text(ctx, "test", text, sizeof text - 1, NULL, &config));
    const ds_generator_params params = {.model = p.model, .weights = p.folder, .config = config};
    CHECK_FAILS(ctx, ds_generator_create(ctx, &params, &g), DS_ERR_ARG, "ds_config_resolve");
    CHECK_OK(ctx, ds_config_resolve(config, 1, NULL));
    CHECK_FAILS(ctx, ds_generator_create(ctx, &params, &g), DS_ERR_NOT_FOUND, "offload_param");
    const ds_generator_params kv = {.model = p.model, .weights = p.folder, .offload_kv = true};
    CHECK_FAILS(ctx, ds_generator_create(ctx, &kv, &g), DS_ERR_ARG, "offload_kv");
    ds_config_destroy(&config);
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
        cmocka_unit_test(same_bits),
        cmocka_unit_test(a_server_has_them_and_what_was_planned),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, make_ctx, drop_ctx);
}
