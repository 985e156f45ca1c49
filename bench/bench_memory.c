/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of ranks against what the engine plans: GPT-2 124M (bench/gpt2_124m.json), sequence 1024,
 * bf16, AdamW.
 *
 * usage: bench_memory [--ranks N] [--batch B] [--steps N] [--save FOLDER]
 *                     [--model_config FILE]
 *
 * For each ZeRO stage it starts N processes over shared memory, takes steps of B rows a rank, and
 * prints for each rank, after the steps: the engine's figure (cells, arenas, what peers read, the
 * copy of checkpoints), anonymous resident memory, the proportional share of shared memory, and
 * their sum over the figure (LAW 6: within 5 %). Memory of the steps is mapped once and stays, so
 * what is resident at the end is the peak; VmHWM, with mapped files, stands beside it. --save:
 * checkpoints are written behind the steps, into that folder. */
#include "accel/cpu/cpu_features.h"
#include "comm/shm.h"
#include "train/engine.h"

#include <deepspeed/context.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SEQUENCE = 1024, VOCAB = 50257, MOST_RANKS = 16 };

typedef struct options {
    uint32_t n_ranks, stage;
    int64_t batch;
    int steps;
    const char *save;
    const char *model; /* its config.json */
    char job[64];
} options;

static void quiet(void *user, ds_log_level level, const char *line)
{
    (void)user;
    (void)level;
    (void)line;
}

/* Kilobytes of a line of a file of /proc/self, 0 without it. */
static double proc_kilobytes(const char *path, const char *key)
{
    char line[256];
    double value = 0.0;
    FILE *file = fopen(path, "r");
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        if (strncmp(line, key, strlen(key)) == 0) {
            value = strtod(line + strlen(key), NULL);
        }
    }
    if (file != NULL) {
        (void)fclose(file);
    }
    return value;
}

static dsi_engine_spec spec_of(const options *o)
{
    return (dsi_engine_spec){.train = {.dtype = DS_DTYPE_BF16,
                                       .comm_dtype = DS_DTYPE_BF16,
                                       .accumulate_dtype = DS_DTYPE_BF16,
                                       .state_dtype = DS_DTYPE_F32,
                                       .master = true,
                                       .batch = o->batch,
                                       .seq_length = SEQUENCE,
                                       .accumulation = 1,
                                       .optimizer = DS_OPTIMIZER_ADAM,
                                       .eps = 1e-8,
                                       .max_norm = 1.0,
                                       .decoupled_decay = true},
                             .zero = {.stage = o->stage,
                                      .reduce_each = true,
                                      .comm_dtype = DS_DTYPE_BF16,
                                      .reduce_bucket = 500000000,
                                      .gather_bucket = 500000000,
                                      .persistence_threshold = 100000,
                                      .model_persistence = INT64_MAX,
                                      .max_live = 1000000000,
                                      .max_reuse_distance = 1000000000},
                             .overlap = true,
                             .prefetch = 50000000,
                             .save_behind = o->save != NULL,
                             .lr = 1e-4,
                             .beta1 = 0.9,
                             .beta2 = 0.999,
                             .bias_correction = true,
                             .loss_scale = dsi_loss_scale_none(),
                             .schedule = ds_schedule_default(DS_SCHEDULE_NONE),
                             .isa = dsi_cpu_isa()};
}

static ds_status take_steps(ds_engine *engine, const options *o)
{
    static const char *const names[4] = {"input_ids", "targets", "positions", "first"};
    const size_t n = (size_t)(o->batch * SEQUENCE);
    int32_t *data = calloc(4 * n, sizeof *data);
    ds_named_tensor tensors[4];
    ds_status status = data != NULL ? DS_OK : DS_ERR_NOMEM;
    for (size_t i = 0; i < n && data != NULL; ++i) {
        data[i] = (int32_t)((i * 2654435761u >> 7) % VOCAB);
        data[n + i] = (int32_t)((i * 2246822519u >> 7) % VOCAB);
        data[2 * n + i] = (int32_t)(i % SEQUENCE);
    }
    for (int i = 0; i < 4; ++i) {
        tensors[i] = (ds_named_tensor){
            names[i], {data + (size_t)i * n, {DS_DTYPE_I32, ds_shape_2d(o->batch, SEQUENCE)}}};
    }
    const ds_batch batch = {tensors, 4};
    for (int step = 0; step < o->steps && status == DS_OK; ++step) {
        if (o->save != NULL && step > 0) {
            DS_TRY_GOTO(status, ds_engine_save_checkpoint(engine, o->save, "bench", NULL), done);
        }
        DS_TRY_GOTO(status, ds_engine_forward(engine, &batch), done);
        DS_TRY_GOTO(status, ds_engine_backward(engine), done);
        DS_TRY_GOTO(status, ds_engine_step(engine), done);
    }
done:
    free(data);
    return status;
}

static void print_figures(const ds_engine *engine, const options *o, uint32_t rank)
{
    const double mb = 1e-6;
    const double plan = (double)ds_engine_planned_bytes(engine);
    const double private = 1024.0 * proc_kilobytes("/proc/self/status", "RssAnon:");
    const double shared = 1024.0 * proc_kilobytes("/proc/self/smaps_rollup", "Pss_Shmem:");
    (void)printf("stage %u rank %u: planned %.1f MB; RssAnon %.1f + shared Pss %.1f = %.1f MB; "
                 "measured/planned %.4f; VmHWM %.1f MB\n",
                 o->stage, rank, mb * plan, mb * private, mb * shared, mb * (private + shared),
                 (private + shared) / plan,
                 mb * 1024.0 * proc_kilobytes("/proc/self/status", "VmHWM:"));
    (void)fflush(stdout);
}

static ds_status run(ds_ctx *ctx, dsi_comm *comm, const options *o)
{
    ds_model *model = NULL;
    ds_engine *engine = NULL;
    const dsi_engine_spec spec = spec_of(o);
    DS_TRY(ds_model_from_config(ctx, o->model, &model));
    const ds_engine_params params = {.model = model, .seq_length = SEQUENCE, .comm = comm};
    ds_status status = dsi_engine_create(ctx, &params, &spec, &engine);
    if (status == DS_OK) {
        status = take_steps(engine, o);
    }
    if (status == DS_OK) {
        status = dsi_comm_barrier(comm, "before the figures"); /* nobody has left */
    }
    if (status == DS_OK) {
        print_figures(engine, o, comm->rank);
        status = dsi_comm_barrier(comm, "after the figures");
    }
    ds_engine_destroy(&engine);
    ds_model_destroy(&model);
    return status;
}

static int rank_main(const options *o, uint32_t rank)
{
    const ds_ctx_params params = {
        .n_threads = 1, .rank = rank, .world_size = o->n_ranks, .log = quiet};
    const dsi_shm_params shm = {.rank = rank, .size = o->n_ranks, .job = o->job, .timeout = 120};
    ds_ctx *ctx = NULL;
    dsi_comm *comm = NULL;
    if (ds_ctx_create(&params, &ctx) < 0) {
        return 1;
    }
    ds_status status = dsi_comm_shm_open(ctx, &shm, &comm);
    if (status == DS_OK) {
        status = run(ctx, comm, o);
    }
    if (status < 0) {
        (void)fprintf(stderr, "bench_memory: rank %u: %s\n", rank, ds_ctx_error(ctx));
    }
    dsi_comm_destroy(&comm);
    ds_ctx_destroy(&ctx);
    return status < 0;
}

static int run_stage(const options *o)
{
    int rc = 0;
    for (uint32_t r = 0; r < o->n_ranks; ++r) {
        const pid_t pid = fork();
        if (pid == 0) {
            const int code = rank_main(o, r);
            (void)fflush(NULL);
            _exit(code);
        }
    }
    for (uint32_t r = 0; r < o->n_ranks; ++r) {
        int status = 0;
        rc |= wait(&status) < 0 || !WIFEXITED(status) || WEXITSTATUS(status) != 0;
    }
    return rc;
}

int main(int argc, char **argv)
{
    options o = {.n_ranks = 2, .batch = 2, .steps = 2, .model = "bench/gpt2_124m.json"};
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--ranks") == 0) {
            o.n_ranks = (uint32_t)strtoul(argv[i + 1], NULL, 10);
        } else if (strcmp(argv[i], "--batch") == 0) {
            o.batch = strtol(argv[i + 1], NULL, 10);
        } else if (strcmp(argv[i], "--steps") == 0) {
            o.steps = (int)strtol(argv[i + 1], NULL, 10);
        } else if (strcmp(argv[i], "--save") == 0) {
            o.save = argv[i + 1];
        } else if (strcmp(argv[i], "--model_config") == 0) {
            o.model = argv[i + 1];
        }
    }
    if (o.n_ranks < 1 || o.n_ranks > MOST_RANKS || o.batch < 1 || o.steps < 1 || argc % 2 == 0) {
        (void)fprintf(stderr, "usage: bench_memory [--ranks 1..16] [--batch B] [--steps N] "
                              "[--save FOLDER] [--model_config FILE]\n");
        return 2;
    }
    int rc = 0;
    for (o.stage = 0; o.stage <= 3; ++o.stage) {
        (void)snprintf(o.job, sizeof o.job, "bench-memory-%d-%u", (int)getpid(), o.stage);
        rc |= run_stage(&o);
    }
    return rc;
}
