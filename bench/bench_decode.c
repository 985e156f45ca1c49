/* SPDX-License-Identifier: Apache-2.0 */
/* Decoding of GPT-2 124M in bf16, one token at a time, against reading its weights.
 *
 * usage: bench_decode [tokens a round] [rounds] [threads]
 * Writes a model folder with random weights into the working folder, maps it as ds_generate does,
 * and alternates a round of greedy decoding with reading as many bytes by all threads as the
 * weights have: of the same file through a map of the same kind, and of huge pages. The limit is
 * the better of the two read rates over these bytes: a bound that no decoder passes which reads
 * each weight once a token. */
#include "accel/cpu/cpu_features.h"
#include "base/clock.h"
#include "base/pool.h"
#include "common/read_rate.h"
#include "common/timing.h"

#include "io/file.h"
#include "train/engine.h"
#include <deepspeed/context.h>
#include <deepspeed/engine.h>
#include <deepspeed/infer.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MOST_ROUNDS = 99, PROMPT = 16 };

static void die(const char *what)
{
    (void)fprintf(stderr, "bench_decode: %s\n", what);
    exit(1);
}

static const char config_text[] =
    "{\"model_type\":\"gpt2\",\"architectures\":[\"GPT2LMHeadModel\"],\"vocab_size\":50257,"
    "\"n_positions\":1024,\"n_embd\":768,\"n_layer\":12,\"n_head\":12,\"torch_dtype\":\"bfloat16\","
    "\"activation_function\":\"gelu_new\",\"resid_pdrop\":0.0,\"embd_pdrop\":0.0,"
    "\"attn_pdrop\":0.0}";

/* Random weights as a model folder, through a small engine. *bytes_out: of the weights in bf16. */
static void write_folder(ds_ctx *ctx, const char *dir, ds_model **model_out, double *bytes_out)
{
    char path[256];
    (void)snprintf(path, sizeof path, "%s/config.json", dir);
    FILE *file = fopen(path, "w");
    if (file == NULL || fputs(config_text, file) < 0 || fclose(file) != 0) {
        die("cannot write the model folder");
    }
    const dsi_engine_spec spec = {.train = {.dtype = DS_DTYPE_BF16,
                                            .comm_dtype = DS_DTYPE_BF16,
                                            .accumulate_dtype = DS_DTYPE_BF16,
                                            .state_dtype = DS_DTYPE_F32,
                                            .master = true,
                                            .batch = 1,
                                            .seq_length = 8,
                                            .accumulation = 1,
                                            .optimizer = DS_OPTIMIZER_ADAM,
                                            .eps = 1e-8},
                                  .lr = 1e-4,
                                  .beta1 = 0.9,
                                  .beta2 = 0.999,
                                  .loss_scale = dsi_loss_scale_none(),
                                  .schedule = ds_schedule_default(DS_SCHEDULE_NONE),
                                  .isa = dsi_cpu_isa()};
    ds_engine *engine = NULL;
    if (ds_model_from_config(ctx, path, model_out) != DS_OK) {
        die(ds_ctx_error(ctx));
    }
    const ds_engine_params params = {.model = *model_out, .seq_length = 8};
    if (dsi_engine_create(ctx, &params, &spec, &engine) != DS_OK ||
        ds_engine_save_16bit_model(engine, dir, NULL) != DS_OK) {
        die(ds_ctx_error(ctx));
    }
    *bytes_out = 2.0 * (double)ds_engine_n_parameters(engine);
    ds_engine_destroy(&engine);
}

typedef struct rounds {
    double decode[MOST_ROUNDS]; /* tokens a second */
    double mapped[MOST_ROUNDS]; /* bytes a second */
    double huge[MOST_ROUNDS];
    double share[MOST_ROUNDS];
} rounds;

static double decode(ds_ctx *ctx, ds_generator *generator, int tokens)
{
    const ds_sampling greedy = {0};
    const double start = dsi_clock_seconds();
    for (int i = 0; i < tokens; ++i) {
        uint32_t id;
        if (ds_generator_next(generator, &greedy, &id) != DS_OK) {
            die(ds_ctx_error(ctx));
        }
    }
    return tokens / (dsi_clock_seconds() - start);
}

static void bench(ds_ctx *ctx, ds_generator *generator, const dsi_map *weights, double bytes,
                  int tokens, size_t n)
{
    static rounds all;
    const uint32_t n_threads = ds_ctx_n_threads(ctx);
    uint32_t ids[PROMPT];
    dsi_pool *pool = NULL;
    if (dsi_pool_create(n_threads, &pool) != DS_OK) {
        die("cannot start threads");
    }
    for (uint32_t i = 0; i < PROMPT; ++i) {
        ids[i] = 1000 + 7 * i;
    }
    for (size_t turn = 0; turn <= n; ++turn) { /* the first one warms up */
        const size_t r = turn > 0 ? turn - 1 : 0;
        if (ds_generator_prompt(generator, ids, PROMPT) != DS_OK) {
            die(ds_ctx_error(ctx));
        }
        all.huge[r] = bench_read_rate_huge(pool, n_threads, (size_t)bytes);
        all.mapped[r] = bench_read_rate(pool, n_threads, weights->data, (size_t)bytes);
        all.decode[r] = decode(ctx, generator, tokens);
        const double limit = all.huge[r] > all.mapped[r] ? all.huge[r] : all.mapped[r];
        all.share[r] = all.decode[r] * bytes / limit;
    }
    dsi_pool_destroy(&pool);
    const double speed = bench_median(all.decode, n);
    const double mapped = bench_median(all.mapped, n);
    const double huge = bench_median(all.huge, n);
    const double share = bench_median(all.share, n);
    (void)printf("decode: %.1f tokens/s (%.1f to %.1f), %.1f MB of weights a token: %.1f GB/s\n",
                 speed, all.decode[0], all.decode[n - 1], 1e-6 * bytes, 1e-9 * speed * bytes);
    (void)printf("read, mapped file: %.1f GB/s (%.1f to %.1f), %.1f tokens/s\n", 1e-9 * mapped,
                 1e-9 * all.mapped[0], 1e-9 * all.mapped[n - 1], mapped / bytes);
    (void)printf("read, huge pages: %.1f GB/s (%.1f to %.1f), %.1f tokens/s\n", 1e-9 * huge,
                 1e-9 * all.huge[0], 1e-9 * all.huge[n - 1], huge / bytes);
    (void)printf("decode/limit (the better read) of each round: median %.0f %% (%.0f to %.0f)\n",
                 100.0 * share, 100.0 * all.share[0], 100.0 * all.share[n - 1]);
}

int main(int argc, char **argv)
{
    const int tokens = argc > 1 ? atoi(argv[1]) : 64;
    const int wanted = argc > 2 ? atoi(argv[2]) : 7;
    const int n_rounds = wanted < 1 ? 1 : wanted > MOST_ROUNDS ? MOST_ROUNDS : wanted;
    ds_ctx_params params = ds_ctx_params_default();
    params.n_threads = argc > 3 ? (uint32_t)atoi(argv[3]) : 2;
    ds_ctx *ctx = NULL;
    ds_model *model = NULL;
    ds_generator *generator = NULL;
    char dir[] = "bench_decode_XXXXXX";
    if (ds_ctx_create(&params, &ctx) != DS_OK || mkdtemp(dir) == NULL) {
        die("cannot make a context and a folder");
    }
    double bytes = 0.0;
    write_folder(ctx, dir, &model, &bytes);
    const ds_generator_params generation = {.model = model, .weights = dir, .max_length = 1024};
    if (ds_generator_create(ctx, &generation, &generator) != DS_OK) {
        die(ds_ctx_error(ctx));
    }
    (void)printf("GPT-2 124M, %s, %u threads, prompt of %d, rounds of %d tokens\n",
                 ds_dtype_name(ds_generator_dtype(generator)), ds_ctx_n_threads(ctx), PROMPT,
                 tokens);
    char weights[64];
    dsi_map map = {0};
    (void)snprintf(weights, sizeof weights, "%s/model.safetensors", dir);
    if (dsi_map_open(ctx, weights, 0, &map) != DS_OK) {
        die(ds_ctx_error(ctx));
    }
    if ((double)map.size < bytes) {
        die("the file of weights is too short");
    }
    bench(ctx, generator, &map, bytes, tokens, (size_t)n_rounds);
    dsi_map_close(&map);
    ds_generator_destroy(&generator);
    ds_model_destroy(&model);
    static const char *const files[] = {"config.json", "model.safetensors",
                                        "generation_config.json"};
    for (size_t i = 0; i < sizeof files / sizeof *files; ++i) {
        char path[256];
        (void)snprintf(path, sizeof path, "%s/%s", dir, files[i]);
        (void)unlink(path);
    }
    (void)rmdir(dir);
    ds_ctx_destroy(&ctx);
    return 0;
}
