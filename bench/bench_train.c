/* SPDX-License-Identifier: Apache-2.0 */
/* Training steps of GPT-2 124M, sequence 1024, micro-batch 4, on random tokens.
 *
 * usage: bench_train [--dtype bf16|fp32] [--steps N] [--threads N] [--profile] [--peer "COMMAND"]
 *
 * Prints the median seconds of forward, backward and update; tokens a second; the bytes of the plan
 * against the memory that the process has in use; the allocations made during the steps (all
 * threads; the allocator's entry points are wrapped in this program); and the step's share of the
 * rate of multiply-adds that stay in registers. --profile adds a table by operator and kernel.
 * --peer starts a command that prints "ready" and then, for each line on its standard input, runs
 * one step of the same model and prints a JSON object with "total": seconds (peer_gpt2_torch.py
 * --stepwise); its steps and ours alternate, and the ratio of each pair counts. Where N steps would
 * take more than a minute and a half, there are fewer, but three at least.
 */
#include "accel/cpu/cpu_features.h"
#include "base/clock.h"
#include "base/context.h"
#include "common/peak.h"
#include "common/peer.h"
#include "common/timing.h"
#include "train/engine.h"

#include <deepspeed/context.h>
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { BATCH = 4, SEQUENCE = 1024, VOCAB = 50257, MOST_STEPS = 99, MOST_ROWS = 128 };
#define STEPS_SECONDS 90.0 /* of the timed steps together, with the peer's */

/* ---- counting allocations: glibc's own entry points, wrapped ---- */

void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t n, size_t bytes);
void *__libc_realloc(void *p, size_t bytes);
void *__libc_memalign(size_t align, size_t bytes);

static atomic_bool counting;
static atomic_ulong n_allocations;

static void count_one(void)
{
    if (atomic_load_explicit(&counting, memory_order_relaxed)) {
        atomic_fetch_add_explicit(&n_allocations, 1, memory_order_relaxed);
    }
}

void *malloc(size_t bytes)
{
    count_one();
    return __libc_malloc(bytes);
}

void *calloc(size_t n, size_t bytes)
{
    count_one();
    return __libc_calloc(n, bytes);
}

void *realloc(void *p, size_t bytes)
{
    count_one();
    return __libc_realloc(p, bytes);
}

void *aligned_alloc(size_t align, size_t bytes)
{
    count_one();
    return __libc_memalign(align, bytes);
}

int posix_memalign(void **p, size_t align, size_t bytes)
{
    count_one();
    *p = __libc_memalign(align, bytes);
    return *p == NULL ? 12 : 0; /* ENOMEM */
}

void *mmap(void *at, size_t bytes, int protection, int flags, int file, off_t offset)
{
    typedef void *(*mmap_fn)(void *, size_t, int, int, int, off_t);
    count_one();
    mmap_fn real = NULL;
    void *symbol = dlsym(RTLD_NEXT, "mmap");
    memcpy(&real, &symbol, sizeof real);
    return real(at, bytes, protection, flags, file, offset);
}

/* ---- profile ---- */

typedef struct row {
    const char *op, *kernel;
    ds_phase phase;
    uint64_t calls;
    double seconds, flops, bytes;
} row;

typedef struct profile {
    row rows[MOST_ROWS];
    uint32_t n_rows;
} profile;

static void trace_step(void *user, const dsi_step *step, const dsi_exec_times *times)
{
    profile *p = user;
    const char *kernel = step->kernel != NULL ? step->kernel->name : "comm";
    uint32_t i = 0;
    while (i < p->n_rows && (p->rows[i].op != step->op->name || p->rows[i].kernel != kernel ||
                             p->rows[i].phase != step->phase)) {
        ++i;
    }
    if (i == MOST_ROWS) {
        return;
    }
    row *r = &p->rows[i];
    if (i == p->n_rows) {
        *r = (row){.op = step->op->name, .kernel = kernel, .phase = step->phase};
        ++p->n_rows;
    }
    ++r->calls;
    r->seconds += times->end - times->begin;
    r->flops += step->cost.flops;
    r->bytes += step->cost.bytes;
}

static int slower_first(const void *a, const void *b)
{
    const double x = ((const row *)a)->seconds;
    const double y = ((const row *)b)->seconds;
    return (x < y) - (x > y);
}

static void print_profile(profile *p, int steps)
{
    static const char *const phases[DS_PHASE_STEP] = {"forward", "backward"};
    double total = 0.0;
    for (uint32_t i = 0; i < p->n_rows; ++i) {
        total += p->rows[i].seconds;
    }
    qsort(p->rows, p->n_rows, sizeof *p->rows, slower_first);
    (void)printf("\n%-26s %-16s %-9s %6s %9s %9s %7s %6s\n", "operator", "kernel", "phase", "calls",
                 "ms", "GFLOP/s", "GB/s", "share");
    for (uint32_t i = 0; i < p->n_rows; ++i) {
        const row *r = &p->rows[i];
        const char *phase = r->phase < DS_PHASE_STEP ? phases[r->phase] : "update";
        (void)printf("%-26s %-16s %-9s %6.0f %9.2f %9.1f %7.1f %5.1f%%\n", r->op, r->kernel, phase,
                     (double)r->calls / steps, 1e3 * r->seconds / steps,
                     1e-9 * r->flops / r->seconds, 1e-9 * r->bytes / r->seconds,
                     100.0 * r->seconds / total);
    }
    (void)printf("sum of the plan's steps: %.1f ms\n\n", 1e3 * total / steps);
}

static void die(const char *what)
{
    (void)fprintf(stderr, "bench_train: %s\n", what);
    exit(1);
}

/* ---- ours ---- */

typedef struct options {
    ds_dtype dtype;
    int steps;
    uint32_t threads;
    bool profile;
    const char *peer;
} options;

typedef struct times {
    double forward[MOST_STEPS], backward[MOST_STEPS], update[MOST_STEPS], total[MOST_STEPS];
    double peer[MOST_STEPS], ratio[MOST_STEPS];
} times;

static ds_model *gpt2(ds_ctx *ctx)
{
    static const char text[] = "{\"model_type\":\"gpt2\",\"architectures\":[\"GPT2LMHeadModel\"],"
                               "\"vocab_size\":50257,\"n_positions\":1024,\"n_embd\":768,"
                               "\"n_layer\":12,\"n_head\":12,"
                               "\"activation_function\":\"gelu_new\",\"resid_pdrop\":0.0,"
                               "\"embd_pdrop\":0.0,\"attn_pdrop\":0.0}";
    char path[] = "bench_train_XXXXXX";
    ds_model *model = NULL;
    const int file = mkstemp(path);
    if (file < 0 || write(file, text, sizeof text - 1) != (ssize_t)(sizeof text - 1)) {
        die("cannot write the model's configuration into the working folder");
    }
    (void)close(file);
    const ds_status status = ds_model_from_config(ctx, path, &model);
    (void)unlink(path);
    if (status != DS_OK) {
        die(ds_ctx_error(ctx));
    }
    return model;
}

static dsi_engine_spec spec_of(ds_dtype dtype)
{
    return (dsi_engine_spec){.train = {.dtype = dtype,
                                       .comm_dtype = dtype,
                                       .accumulate_dtype = dtype,
                                       .state_dtype = DS_DTYPE_F32,
                                       .master = dtype != DS_DTYPE_F32,
                                       .batch = BATCH,
                                       .seq_length = SEQUENCE,
                                       .accumulation = 1,
                                       .optimizer = DS_OPTIMIZER_ADAM,
                                       .eps = 1e-8,
                                       .decoupled_decay = true},
                             .lr = 1e-4,
                             .beta1 = 0.9,
                             .beta2 = 0.999,
                             .weight_decay = 0.01,
                             .decay_all = true,
                             .bias_correction = true,
                             .loss_scale = dsi_loss_scale_none(),
                             .schedule = ds_schedule_default(DS_SCHEDULE_NONE),
                             .isa = dsi_cpu_isa()};
}

/* Kilobytes of a line of /proc/self/status, 0 without it. */
static double status_kilobytes(const char *key)
{
    char line[256];
    double value = 0.0;
    FILE *file = fopen("/proc/self/status", "r");
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

static void fill_batch(int32_t *ids, int32_t *targets, int32_t *positions, int32_t *first,
                       uint64_t seed)
{
    for (int i = 0; i < BATCH * SEQUENCE; ++i) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        ids[i] = (int32_t)((seed >> 33) % VOCAB);
        positions[i] = i % SEQUENCE;
        first[i] = 0;
    }
    for (int i = 0; i < BATCH * SEQUENCE; ++i) {
        targets[i] = i % SEQUENCE == SEQUENCE - 1 ? -100 : ids[i + 1];
    }
}

static void one_step(ds_ctx *ctx, ds_engine *engine, const ds_batch *batch, times *t, int i)
{
    atomic_store(&counting, i >= 0);
    const double t0 = dsi_clock_seconds();
    ds_status status = ds_engine_forward(engine, batch);
    const double t1 = dsi_clock_seconds();
    status = status == DS_OK ? ds_engine_backward(engine) : status;
    const double t2 = dsi_clock_seconds();
    status = status == DS_OK ? ds_engine_step(engine) : status;
    const double t3 = dsi_clock_seconds();
    atomic_store(&counting, false);
    if (status != DS_OK) {
        die(ds_ctx_error(ctx));
    }
    if (i >= 0) {
        t->forward[i] = t1 - t0;
        t->backward[i] = t2 - t1;
        t->update[i] = t3 - t2;
        t->total[i] = t3 - t0;
    }
}

static void report(const options *o, const ds_engine *engine, times *t, double anonymous_before)
{
    const size_t n = (size_t)o->steps;
    const double best = bench_median(t->total, n);
    const double flops = ds_engine_flops(engine);
    const double plan = (double)ds_engine_planned_bytes(engine);
    const double used = 1024.0 * status_kilobytes("RssAnon:");
    (void)printf("forward %.3f s, backward %.3f s, norm and update %.3f s; step %.3f s "
                 "(%.3f to %.3f, of %d), %.0f tokens/s, %.3f TFLOP/s\n",
                 bench_median(t->forward, n), bench_median(t->backward, n),
                 bench_median(t->update, n), best, t->total[0], t->total[n - 1], o->steps,
                 BATCH * SEQUENCE / best, 1e-12 * flops / best);
    if (o->peer != NULL) {
        const double peer_time = bench_median(t->peer, n);
        (void)printf("peer step %.3f s (%.3f to %.3f), %.0f tokens/s; peer/ours of each pair: "
                     "median %.2f (%.2f to %.2f)\n",
                     peer_time, t->peer[0], t->peer[n - 1], BATCH * SEQUENCE / peer_time,
                     bench_median(t->ratio, n), t->ratio[0], t->ratio[n - 1]);
    }
    (void)printf("memory: plan %.1f MB, in use %.1f MB (%.1f before the engine), in use/plan %.4f, "
                 "largest resident %.1f MB\n",
                 1e-6 * plan, 1e-6 * used, 1e-6 * anonymous_before, used / plan,
                 1e-6 * 1024.0 * status_kilobytes("VmHWM:"));
    (void)printf("allocations during the steps: %lu\n", atomic_load(&n_allocations));
}

/* How near the whole step comes to the processor's multiply-adds. */
static void report_peak(ds_ctx *ctx, const options *o, double flops, double seconds)
{
    const bench_peak peak = bench_peak_measure(dsi_ctx_pool(ctx), o->threads, o->dtype);
    (void)printf("step: %.0f %% of the measured peak, %.3f TFLOP/s of %s\n",
                 100.0 * flops / seconds / peak.flops, 1e-12 * peak.flops, peak.name);
}

/* The first step warms up; slow ones are repeated less often. */
static void take_steps(ds_ctx *ctx, ds_engine *engine, options *o, bench_peer *other, times *t,
                       profile *p)
{
    static int32_t data[4][BATCH * SEQUENCE];
    static const char *const names[4] = {"input_ids", "targets", "positions", "first"};
    ds_named_tensor tensors[4];
    for (int i = 0; i < 4; ++i) {
        tensors[i] =
            (ds_named_tensor){names[i], {data[i], {DS_DTYPE_I32, ds_shape_2d(BATCH, SEQUENCE)}}};
    }
    const ds_batch batch = {tensors, 4};
    for (int i = -1; i < o->steps; ++i) {
        const double begin = dsi_clock_seconds();
        fill_batch(data[0], data[1], data[2], data[3], (uint64_t)(i + 2));
        const double peer_time = o->peer != NULL ? bench_peer_step(other, "step") : 0.0;
        if (i == 0 && o->profile) {
            dsi_exec_set_trace(engine->exec, trace_step, p);
        }
        one_step(ctx, engine, &batch, t, i);
        if (i < 0) {
            o->steps = bench_rounds(o->steps, dsi_clock_seconds() - begin, STEPS_SECONDS);
        } else {
            t->peer[i] = peer_time;
            t->ratio[i] = peer_time / t->total[i];
        }
    }
}

static void bench(ds_ctx *ctx, options *o)
{
    static times t;
    static profile p;
    const dsi_engine_spec spec = spec_of(o->dtype);
    ds_engine *engine = NULL;
    bench_peer other = {0};
    if (o->peer != NULL) {
        bench_peer_start(o->peer, &other);
    }
    ds_model *model = gpt2(ctx);
    const ds_engine_params params = {.model = model, .seq_length = SEQUENCE};
    const double before = 1024.0 * status_kilobytes("RssAnon:");
    const double start = dsi_clock_seconds();
    if (dsi_engine_create(ctx, &params, &spec, &engine) != DS_OK) {
        die(ds_ctx_error(ctx));
    }
    (void)printf("GPT-2 124M, %s, %d x %d tokens, %u threads; engine made in %.2f s\n",
                 ds_dtype_name(o->dtype), BATCH, SEQUENCE, ds_ctx_n_threads(ctx),
                 dsi_clock_seconds() - start);
    take_steps(ctx, engine, o, &other, &t, &p);
    if (o->profile) {
        print_profile(&p, o->steps);
    }
    report(o, engine, &t, before);
    const double flops = ds_engine_flops(engine);
    ds_engine_destroy(&engine);
    report_peak(ctx, o, flops, bench_median(t.total, (size_t)o->steps));
    ds_model_destroy(&model);
    if (o->peer != NULL) {
        bench_peer_stop(&other);
    }
}

int main(int argc, char **argv)
{
    options o = {.dtype = DS_DTYPE_BF16, .steps = 5, .threads = 2};
    for (int i = 1; i < argc; ++i) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        if (strcmp(argv[i], "--profile") == 0) {
            o.profile = true;
            continue;
        }
        if (strcmp(argv[i], "--dtype") == 0) {
            o.dtype = strcmp(value, "bf16") == 0 ? DS_DTYPE_BF16 : DS_DTYPE_F32;
        } else if (strcmp(argv[i], "--steps") == 0) {
            o.steps = atoi(value);
        } else if (strcmp(argv[i], "--threads") == 0) {
            o.threads = (uint32_t)atoi(value);
        } else if (strcmp(argv[i], "--peer") == 0) {
            o.peer = value;
        } else {
            die("unknown flag; see the head of bench_train.c");
        }
        ++i;
    }
    o.steps = o.steps < 1 ? 1 : o.steps > MOST_STEPS ? MOST_STEPS : o.steps;
    (void)setvbuf(stdout, NULL, _IOLBF, 0);
    ds_ctx_params params = ds_ctx_params_default();
    params.n_threads = o.threads;
    ds_ctx *ctx = NULL;
    if (ds_ctx_create(&params, &ctx) != DS_OK) {
        die("cannot make a context");
    }
    bench(ctx, &o);
    ds_ctx_destroy(&ctx);
    return 0;
}
