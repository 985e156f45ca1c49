/* SPDX-License-Identifier: Apache-2.0 */
/* LAW: a step allocates nothing. Every allocating call of every thread, the library's, libc's and
 * other libraries', is counted between the start and the end of engine steps, the first included:
 * batch from the loader, forward, backward, step, evaluation, recorded for a trace; on one rank and
 * on two that share memory, under every stage of ZeRO; with what is offloaded; while a checkpoint
 * is written behind them, too. */
#include "accel/cpu/cpu_features.h"
#include "comm/shm.h"
#include "common/check.h"
#include "common/count_allocations.h"
#include "common/parity.h"
#include "common/scratch.h"
#include "common/small_run.h"
#include "op/isa.h"

#include <deepspeed/data.h>
#include <deepspeed/profile.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#if !CAN_REPLACE_MALLOC
int main(void)
{
    return 77;
}
#else

enum { N_STEPS = 6 };

static ds_ctx *ctx;

static void end_counting(const char *what)
{
    const unsigned n = count_end();
    if (n != 0) {
        fail_msg("%s: %u allocating calls in steps, the first returns to %p", what, n,
                 atomic_load(&first_caller));
    }
}

/* The counter itself must be able to fail: on any thread, in any library. */
static void allocate(void *arg, uint32_t task, uint32_t thread)
{
    (void)thread;
    if (task == *(const uint32_t *)arg) {
        void *volatile p = malloc(32);
        free(p);
    }
}

static void the_counter_counts(void **state)
{
    (void)state;
    for (uint32_t task = 0; task < 2; ++task) {
        count_begin();
        ds_parallel(ctx, allocate, &task, 2);
        assert_int_equal(count_end(), 2);
    }
    count_begin();
    char *copy = strdup("inside of libc");
    free(copy);
    void *map = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    (void)munmap(map, 4096);
    FILE *file = fopen("/dev/null", "w");
    (void)fclose(file);
    assert_true(count_end() >= 6);
}

typedef struct feed {
    ds_loader *loader;
    ds_named_tensor tensors[4];
} feed;

static ds_status next_batch(void *user, ds_batch *batch_out)
{
    feed *f = user;
    ds_loader_batch b;
    DS_TRY(ds_loader_next(f->loader, &b));
    f->tensors[0] = (ds_named_tensor){"input_ids", b.input_ids};
    f->tensors[1] = (ds_named_tensor){"targets", b.targets};
    f->tensors[2] = (ds_named_tensor){"positions", b.positions};
    f->tensors[3] = (ds_named_tensor){"first", b.first};
    *batch_out = (ds_batch){f->tensors, 4};
    return DS_OK;
}

/* Text with ids below the models' vocabulary of 131: ASCII. */
static ds_dataset *open_text(const char *folder, ds_tokenizer *tokenizer, int64_t seq_length)
{
    const char *path = scratch_path(folder, "text.txt");
    const ds_dataset_params params = {
        .files = &path, .n_files = 1, .tokenizer = tokenizer, .seq_length = seq_length};
    ds_dataset *data = NULL;
    char text[997];
    for (size_t i = 0; i < sizeof text; ++i) {
        text[i] = (char)('a' + i * i % 26);
    }
    scratch_write(path, text, sizeof text);
    CHECK_OK(ctx, ds_dataset_open(ctx, &params, &data));
    return data;
}

static void train(ds_engine *engine, feed *f, const char *what)
{
    double loss = 0.0;
    ds_batch batch;
    count_begin();
    for (int step = 0; step < N_STEPS; ++step) {
        CHECK_OK(ctx, ds_engine_train_batch(engine, next_batch, f, &loss));
        CHECK_OK(ctx, next_batch(f, &batch));
        CHECK_OK(ctx, ds_engine_eval_batch(engine, &batch, &loss, NULL));
        CHECK_OK(ctx, ds_engine_forward(engine, &batch)); /* evaluation in between */
        CHECK_OK(ctx, ds_engine_eval_batch(engine, &batch, &loss, NULL));
        CHECK_OK(ctx, ds_engine_backward(engine));
        CHECK_OK(ctx, ds_engine_step(engine));
        CHECK_OK(ctx, next_batch(f, &batch));
        CHECK_OK(ctx, ds_engine_forward(engine, &batch));
        CHECK_OK(ctx, ds_engine_backward(engine));
        CHECK_OK(ctx, ds_engine_step(engine));
    }
    end_counting(what);
}

typedef struct setting {
    const char *model;
    ds_dtype dtype;
    ds_optimizer_kind optimizer;
    ds_isa isa;
    bool zenflow; /* in AVX2's case beside the steps */
} setting;

static void run(const setting *s, ds_dataset *data)
{
    char what[256];
    parity_case p;
    feed f;
    parity_open(ctx, s->model, &p);
    dsi_engine_spec spec = parity_spec(&p, s->dtype, s->isa);
    spec.train.accumulation = 2;
    spec.train.max_norm = 0.5;
    spec.train.optimizer = s->optimizer;
    spec.train.max_coeff = 10.0;
    spec.train.min_coeff = 0.01;
    spec.train.zenflow = (dsi_zenflow_spec){.on = s->zenflow,
                                            .ratio = 0.2,
                                            .weighs = true,
                                            .auto_ratio = 0.9,
                                            .select_every = 3,
                                            .overlap = s->zenflow && s->isa == DSI_NEEDS_AVX2,
                                            .warm_up = 1};
    spec.wall_clock_breakdown = true;
    spec.memory_breakdown = true;
    spec.steps_per_print = 2;
    if (s->dtype == DS_DTYPE_F16) { /* the first steps overflow and are skipped */
        spec.loss_scale = dsi_loss_scale_dynamic(16777216.0 * 65536.0, 2, 1.0, 1, false);
    }
    const ds_loader_params params = {.batch = p.n_batch, .seq_length = p.n_seq, .shuffle = true};
    CHECK_OK(ctx, ds_loader_create(ctx, data, &params, &f.loader));
    ds_engine *engine = parity_engine(ctx, &p, &spec);
    (void)snprintf(what, sizeof what, "%s %s %s", s->model, ds_dtype_name(s->dtype),
                   dsi_isa_print(s->isa).text);
    CHECK_OK(ctx, ds_engine_trace_start(engine, 2, N_STEPS));
    train(engine, &f, what);
    assert_int_equal(ds_engine_global_steps(engine), 2 * N_STEPS);
    assert_true(s->dtype != DS_DTYPE_F16 || ds_engine_skipped_steps(engine) > 0);
    assert_true(ds_loader_epoch(f.loader) > 0); /* the end of an epoch was passed */
    ds_engine_destroy(&engine);
    ds_loader_destroy(&f.loader);
    parity_close(&p);
}

static void steps_allocate_nothing(void **state)
{
    static const setting settings[] = {
        {"gpt2", DS_DTYPE_F32, DS_OPTIMIZER_ADAM, DS_ISA_REF, false},
        {"gpt2", DS_DTYPE_BF16, DS_OPTIMIZER_ADAM, DSI_NEEDS_AMX, true},
        {"llama3_tied", DS_DTYPE_F16, DS_OPTIMIZER_ADAM, DSI_NEEDS_AVX2, true},
        {"gpt2", DS_DTYPE_F32, DS_OPTIMIZER_ADAM, DSI_NEEDS_AMX, false},
        {"gpt2", DS_DTYPE_BF16, DS_OPTIMIZER_LAMB, DSI_NEEDS_AMX, false},
        {"packed_gpt2", DS_DTYPE_BF16, DS_OPTIMIZER_ADAM, DSI_NEEDS_AVX2, false},
        {"qwen3", DS_DTYPE_BF16, DS_OPTIMIZER_SGD, DSI_NEEDS_AMX, false},
        {"llama3", DS_DTYPE_BF16, DS_OPTIMIZER_LION, DS_ISA_REF, false},
        {"rope_dynamic", DS_DTYPE_F32, DS_OPTIMIZER_ADAGRAD, DSI_NEEDS_AMX, false},
        {"llama3_tied", DS_DTYPE_F16, DS_OPTIMIZER_ADAM, DSI_NEEDS_AMX, false},
        {"mixtral", DS_DTYPE_F32, DS_OPTIMIZER_ADAM, DS_ISA_REF, false},
        {"qwen3_moe", DS_DTYPE_BF16, DS_OPTIMIZER_ADAM, DSI_NEEDS_AMX, false},
        {"qwen2_moe", DS_DTYPE_F16, DS_OPTIMIZER_ADAM, DSI_NEEDS_AVX2, false},
        {"gpt_neox", DS_DTYPE_BF16, DS_OPTIMIZER_ADAM, DSI_NEEDS_AMX, false},
        {"phi3", DS_DTYPE_BF16, DS_OPTIMIZER_ADAM, DSI_NEEDS_AVX2, false},
        {"cohere", DS_DTYPE_F32, DS_OPTIMIZER_ADAM, DSI_NEEDS_AMX, false},
    };
    ds_tokenizer *tokenizer = NULL;
    char *folder = scratch_make();
    (void)state;
    CHECK_OK(ctx, ds_tokenizer_open(ctx, "bytes", &tokenizer));
    ds_dataset *data = open_text(folder, tokenizer, 24);
    for (size_t i = 0; i < sizeof settings / sizeof *settings; ++i) {
        setting s = settings[i];
        s.isa = dsi_cpu_isa_capped(s.isa);
        run(&s, data);
    }
    ds_dataset_close(&data);
    ds_tokenizer_close(&tokenizer);
    scratch_remove(folder);
}

static void keep_quiet(void *user, ds_log_level level, const char *line)
{
    (void)user;
    (void)level;
    (void)line;
}

/* ---- ranks, each a process with its own count ------------------------------------------------ */
enum { MOST_RANKS = 2, N_TRIED = 13 };

typedef struct trial {
    uint32_t n_ranks, stage;
    bool overlap;
    bool saves;         /* before each step, written behind it */
    dsi_residency away; /* where states and parameters live, activations too */
    bool quantized;     /* what is sent, with errors kept that begin anew now and then */
    uint32_t ep;        /* 0: as 1, of a model without experts */
} trial;

static const trial tried[N_TRIED] = {
    {.n_ranks = 2, .stage = 0},
    {.n_ranks = 2, .stage = 1, .overlap = true},
    {.n_ranks = 2, .stage = 2, .overlap = true},
    {.n_ranks = 2, .stage = 3, .overlap = true},
    {.n_ranks = 1, .stage = 0, .saves = true},
    {.n_ranks = 2, .stage = 1, .overlap = true, .saves = true},
    {.n_ranks = 2, .stage = 3, .overlap = true, .saves = true},
    {.n_ranks = 1, .stage = 3, .away = DSI_RESIDENCY_HOST},
    {.n_ranks = 1, .stage = 3, .away = DSI_RESIDENCY_DISK},
    {.n_ranks = 2, .stage = 3, .overlap = true, .away = DSI_RESIDENCY_DISK},
    {.n_ranks = 2, .stage = 3, .overlap = true, .quantized = true},
    {.n_ranks = 2, .stage = 1, .overlap = true, .ep = 2},
    {.n_ranks = 2, .stage = 3, .overlap = true, .away = DSI_RESIDENCY_HOST, .ep = 2}};

/* One rank: NULL, or what went wrong. The context is its own: a fork lacks this program's threads.
 */
static const char *rank_steps(ds_ctx *own, ds_comm *comm, const trial *t, const char *folder)
{
    parity_case p;
    parity_open(own, t->ep > 1 ? "qwen3_moe" : "llama3", &p);
    dsi_engine_spec spec = parity_spec(&p, DS_DTYPE_BF16, dsi_cpu_isa());
    const ds_engine_params params = {
        .model = p.model, .seq_length = p.n_seq, .weights = p.folder, .comm = comm};
    ds_engine *engine = NULL;
    double loss = 0.0;
    spec.train.max_norm = 0.5;
    spec.overlap = t->overlap;
    spec.save_behind = t->saves;
    spec.log_comm = true;
    spec.memory_breakdown = true;
    spec.comm_log = (ds_comm_log_params){.all = true, .debug = true};
    spec.prefetch = 4000;
    spec.zero = (dsi_zero_spec){.stage = t->stage,
                                .ep = t->ep,
                                .reduce_each = true,
                                .comm_dtype = spec.train.comm_dtype,
                                .reduce_bucket = 2000,
                                .gather_bucket = 2000,
                                .model_persistence = INT64_MAX,
                                .max_live = 4000,
                                .max_reuse_distance = 4000};
    if (t->quantized) {
        spec.zero.quantized =
            (dsi_quantized){.weights = true, .gradients = true, .errors = true, .beta = 0.8};
        spec.train.loco = (dsi_loco_spec){.on = true, .beta = 0.8, .reset_every = 4};
    }
    spec.offload = small_away(folder, t->away, t->away);
    spec.offload.how = (dsi_offload){.chunk = 3000, .activations = t->away};
    ds_status status = dsi_engine_create(own, &params, &spec, &engine);
    status = status < 0 ? status : ds_engine_trace_start(engine, 2, N_STEPS);
    count_begin();
    for (int step = 0; step < N_STEPS && status >= 0; ++step) {
        atomic_store(&counting, false);
        status = t->saves ? ds_engine_save_checkpoint(engine, folder, NULL, NULL) : DS_OK;
        atomic_store(&counting, true);
        status = status < 0 ? status : ds_engine_forward(engine, &p.batch);
        status = status < 0 ? status : ds_engine_eval_batch(engine, &p.batch, &loss, NULL);
        status = status < 0 ? status : ds_engine_backward(engine);
        status = status < 0 ? status : ds_engine_step(engine);
        if (t->saves) { /* whatever is still written is counted, too */
            (void)nanosleep(&(struct timespec){.tv_nsec = 30000000}, NULL);
        }
    }
    atomic_store(&counting, false);
    status = status < 0 ? status : ds_engine_checkpoint_wait(engine);
    ds_engine_destroy(&engine);
    parity_close(&p);
    return status < 0 ? ds_ctx_error(own) : atomic_load(&n_calls) != 0 ? "steps allocate" : NULL;
}

static void rank_main(uint32_t rank, const trial *t, const char *folder, const char *job)
{
    const ds_ctx_params params = {
        .n_threads = 1, .rank = rank, .world_size = t->n_ranks, .log = keep_quiet};
    const dsi_shm_params shm = {.rank = rank, .size = t->n_ranks, .job = job, .timeout = 60.0};
    ds_ctx *own = NULL;
    ds_comm *comm = NULL;
    if (ds_ctx_create(&params, &own) < 0 || dsi_comm_shm_open(own, &shm, &comm) < 0) {
        (void)fprintf(stderr, "rank %u: %s\n", rank, ds_ctx_error(own));
        _exit(1);
    }
    const char *wrong = rank_steps(own, comm, t, folder);
    if (wrong != NULL) {
        (void)fprintf(stderr,
                      "stage %u, rank %u%s, residency %d: %s: %u calls, the first returns to %p\n",
                      t->stage, rank, t->saves ? ", saving" : "", (int)t->away, wrong,
                      atomic_load(&n_calls), atomic_load(&first_caller));
    }
    dsi_comm_destroy(&comm);
    ds_ctx_destroy(&own);
    _exit(wrong != NULL);
}

static void ranks_allocate_nothing(void **state)
{
    (void)state;
    for (int i = 0; i < N_TRIED; ++i) {
        char job[64];
        char *folder = scratch_make();
        (void)snprintf(job, sizeof job, "no_allocation.%ld.%d", (long)getpid(), i);
        pid_t children[MOST_RANKS];
        for (uint32_t rank = 0; rank < tried[i].n_ranks; ++rank) {
            children[rank] = fork();
            assert_true(children[rank] >= 0);
            if (children[rank] == 0) {
                rank_main(rank, &tried[i], folder, job);
            }
        }
        for (uint32_t rank = 0; rank < tried[i].n_ranks; ++rank) {
            int status = 0;
            assert_int_equal(waitpid(children[rank], &status, 0), children[rank]);
            assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
        }
        assert_int_equal(scratch_count(folder), tried[i].saves ? N_STEPS + 1 : 0);
        scratch_remove(folder);
    }
}

static int make_ctx(void **state)
{
    ds_ctx_params params = ds_ctx_params_default();
    (void)state;
    params.n_threads = 2;
    params.log = keep_quiet;
    return ds_ctx_create(&params, &ctx);
}

static int drop_ctx(void **state)
{
    (void)state;
    ds_ctx_destroy(&ctx);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_counter_counts),
        cmocka_unit_test(steps_allocate_nothing),
        cmocka_unit_test(ranks_allocate_nothing),
    };
    return cmocka_run_group_tests(tests, make_ctx, drop_ctx);
}
#endif
