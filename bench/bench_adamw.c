/* SPDX-License-Identifier: Apache-2.0 */
/* AdamW against a loop that only streams the same reads and writes, and against DeepSpeed's.
 *
 * usage: bench_adamw [millions of parameters] [rounds] [threads] [--peer "COMMAND"]
 * Per case both alternate in one process over the same arrays (huge pages), and medians of the
 * rounds count. Streaming is the better of two forms, with and without prefetch. "denormal": a
 * round more whose moments and gradients are denormal numbers, written anew before each update.
 * --peer (peer_cpu_adam.py) joins the rounds of the cases f32 and bf16; see common/peer.h.
 */
#include "accel/cpu/cpu_features.h"
#include "accel/cpu/registry.h"
#include "base/clock.h"
#include "base/half.h"
#include "common/peer.h"
#include "common/stream.h"
#include "common/timing.h"
#include "op/ops.h"

#include <deepspeed/context.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_ROUNDS = 99 };

typedef struct bench_case {
    const char *name;
    ds_dtype half;  /* of gradient and parameter; BF16: the weights are a master copy */
    ds_dtype state; /* of both moments */
    bool peer;      /* has one */
} bench_case;

static const bench_case cases[] = {
    {"bf16", DS_DTYPE_BF16, DS_DTYPE_F32, true},
    {"f32", DS_DTYPE_F32, DS_DTYPE_F32, true},
    {"bf16 states", DS_DTYPE_BF16, DS_DTYPE_BF16, false},
};

typedef struct options {
    size_t n;
    int rounds;
    bench_peer *peer; /* NULL: none */
} options;

typedef struct rounds {
    double plain[MOST_ROUNDS], ahead[MOST_ROUNDS]; /* streaming without and with prefetch */
    double ours[MOST_ROUNDS], denormal[MOST_ROUNDS];
    double peer[MOST_ROUNDS], peer_denormal[MOST_ROUNDS], ratio[MOST_ROUNDS];
} rounds;

static ds_tensor tensor_of(void *data, ds_dtype dtype, size_t n)
{
    return (ds_tensor){data, {dtype, ds_shape_1d((int64_t)n)}};
}

/* Seconds of one update; below 0 when there is no such kernel. */
static double time_adamw(ds_ctx *ctx, const bench_case *c, const bench_stream *a, ds_isa cap,
                         const char **kernel_out)
{
    static const ds_op adam = {.name = "adam"};
    const dsi_optim_attrs attrs = {.eps = 1e-8, .adamw = 1};
    float hyper[DSI_HYPER_COUNT] = {1e-4f, 0.9f, 0.999f, 0.01f, 0.1f, 0.03f};
    float factor = 0.5f;
    const bool master = a->param != NULL;
    ds_tensor in[7] = {tensor_of(master ? a->param : a->weight, c->half, a->n),
                       tensor_of((void *)(uintptr_t)a->grad, c->half, a->n),
                       tensor_of(hyper, DS_DTYPE_F32, DSI_HYPER_COUNT),
                       {&factor, {DS_DTYPE_F32, {0}}},
                       {NULL, {DS_DTYPE_NONE, {0}}},
                       tensor_of(a->m, c->state, a->n),
                       tensor_of(a->v, c->state, a->n)};
    if (master) {
        in[4] = tensor_of(a->weight, DS_DTYPE_F32, a->n);
    }
    const ds_tensor out[4] = {in[0], in[4], in[5], in[6]};
    ds_meta in_meta[7];
    ds_meta out_meta[4];
    for (int i = 0; i < 7; ++i) {
        in_meta[i] = in[i].meta;
    }
    for (int i = 0; i < 4; ++i) {
        out_meta[i] = out[i].meta;
    }
    const ds_kernel_sig sig = {&adam, &attrs, 7, 4, in_meta, out_meta, ds_ctx_n_threads(ctx)};
    const ds_kernel *kernel = dsi_cpu_kernel_choose(&sig, cap);
    if (kernel == NULL) {
        return -1.0;
    }
    *kernel_out = kernel->name;
    const ds_kernel_call call = {ctx, &sig, in, out, NULL};
    const double start = dsi_clock_seconds();
    (void)kernel->run(&call);
    return dsi_clock_seconds() - start;
}

static void set_one(void *array, ds_dtype type, size_t i, float x)
{
    if (type == DS_DTYPE_F32) {
        ((float *)array)[i] = x;
    } else {
        ((uint16_t *)array)[i] = dsi_f32_to_bf16(x);
    }
}

/* Every chunk of an array of n elements gets the values of the first. */
static void repeat(void *array, size_t each, size_t n)
{
    const size_t chunk = BENCH_STREAM_CHUNK * each;
    for (size_t at = chunk; at < n * each; at += chunk) {
        memcpy((char *)array + at, array, chunk);
    }
}

static void fill(const bench_case *c, const bench_stream *a, bool denormal)
{
    uint32_t state = 12345;
    for (size_t i = 0; i < BENCH_STREAM_CHUNK; ++i) {
        state = state * 1664525u + 1013904223u;
        const float unit = (float)(state >> 8) * 0x1p-24f - 0.5f;
        const float x = denormal ? unit * 1e-38f : unit * 0.02f;
        a->weight[i] = unit * 0.02f;
        set_one(a->m, c->state, i, denormal ? x : x * 0.1f);
        set_one(a->v, c->state, i, denormal ? 1e-39f : x * x);
        set_one((void *)(uintptr_t)a->grad, c->half, i, x);
    }
    repeat(a->weight, sizeof *a->weight, a->n);
    repeat(a->m, a->moment_bytes, a->n);
    repeat(a->v, a->moment_bytes, a->n);
    repeat((void *)(uintptr_t)a->grad, a->grad_bytes, a->n);
}

static bench_stream make_arrays(const bench_case *c, size_t n)
{
    const size_t half = c->half == DS_DTYPE_F32 ? 4 : 2;
    const size_t state = c->state == DS_DTYPE_F32 ? 4 : 2;
    bench_stream a = {.n = n, .grad_bytes = half, .moment_bytes = state};
    a.grad = bench_alloc(n * half);
    a.weight = bench_alloc(n * sizeof *a.weight);
    a.m = bench_alloc(n * state);
    a.v = bench_alloc(n * state);
    a.param = half == 2 ? bench_alloc(n * half) : NULL;
    return a;
}

static void free_arrays(bench_stream *a)
{
    free((void *)(uintptr_t)a->grad);
    free(a->weight);
    free(a->m);
    free(a->v);
    free(a->param);
}

static void report(const bench_case *c, const bench_stream *a, const options *o, const char *kernel,
                   rounds *t)
{
    const size_t n = (size_t)o->rounds;
    const double plain = bench_median(t->plain, n);
    const double ahead = bench_median(t->ahead, n);
    const double best = plain < ahead ? plain : ahead;
    const double ours = bench_median(t->ours, n);
    const double gigabytes = 1e-9 * bench_stream_bytes(a);
    (void)printf("%-12s %-7s %8.1f %8.1f %8.1f %8.0f %7.3f %7.1f%% %9.2f\n", c->name, kernel,
                 gigabytes / plain, gigabytes / ahead, gigabytes / ours, 1e-6 * (double)a->n / ours,
                 1e9 * ours / (double)a->n, 100.0 * best / ours,
                 bench_median(t->denormal, n) / ours);
    if (c->peer && o->peer != NULL) {
        const double peer = bench_median(t->peer, n);
        const double ratio = bench_median(t->ratio, n);
        (void)printf("%-12s DeepSpeed's CPUAdam %.0f M parameters/s, %.3f ns; its time over ours, "
                     "of each pair: %.2f (%.2f to %.2f); denormal %.2f times its own\n",
                     "", 1e-6 * (double)a->n / peer, 1e9 * peer / (double)a->n, ratio, t->ratio[0],
                     t->ratio[n - 1], bench_median(t->peer_denormal, n) / peer);
    }
}

static void bench(ds_ctx *ctx, const bench_case *c, const options *o, ds_isa cap)
{
    static rounds t;
    bench_stream a = make_arrays(c, o->n);
    const bool peer = c->peer && o->peer != NULL;
    const char *kernel = "none";
    char what[32];
    fill(c, &a, false);
    (void)time_adamw(ctx, c, &a, cap, &kernel);
    (void)snprintf(what, sizeof what, "%s denormal", c->name);
    for (int r = 0; r < o->rounds; ++r) {
        t.plain[r] = bench_stream_run(ctx, &a, false);
        t.ours[r] = time_adamw(ctx, c, &a, cap, &kernel);
        t.peer[r] = peer ? bench_peer_step(o->peer, c->name) : 0.0;
        t.ahead[r] = bench_stream_run(ctx, &a, true);
        fill(c, &a, true);
        t.denormal[r] = time_adamw(ctx, c, &a, cap, &kernel);
        t.peer_denormal[r] = peer ? bench_peer_step(o->peer, what) : 0.0;
        t.ratio[r] = t.peer[r] / t.ours[r];
        fill(c, &a, false);
    }
    report(c, &a, o, kernel, &t);
    free_arrays(&a);
}

int main(int argc, char **argv)
{
    bench_peer peer;
    options o = {0};
    const bool has_peer = argc > 2 && strcmp(argv[argc - 2], "--peer") == 0;
    const int n_args = has_peer ? argc - 2 : argc;
    const size_t millions = n_args > 1 ? strtoul(argv[1], NULL, 10) : 134;
    const int wanted = n_args > 2 ? atoi(argv[2]) : 11;
    ds_ctx_params params = ds_ctx_params_default();
    params.n_threads = n_args > 3 ? (uint32_t)atoi(argv[3]) : 0;
    ds_ctx *ctx = NULL;
    if (ds_ctx_create(&params, &ctx) != DS_OK) {
        return 1;
    }
    o.rounds = wanted < 1 ? 1 : wanted > MOST_ROUNDS ? MOST_ROUNDS : wanted;
    o.n = (millions * 1000000 + BENCH_STREAM_CHUNK - 1) / BENCH_STREAM_CHUNK * BENCH_STREAM_CHUNK;
    if (has_peer) {
        bench_peer_start(argv[argc - 1], &peer);
        o.peer = &peer;
    }
    (void)printf("%zu parameters, %u threads, median of %d rounds\n", o.n, ds_ctx_n_threads(ctx),
                 o.rounds);
    (void)printf("%-12s %-7s %8s %8s %8s %8s %7s %8s %9s\n", "type", "kernel", "stream", "+prefch",
                 "adamw", "Mparam/s", "ns", "of best", "denormal");
    const ds_isa best = dsi_cpu_isa_capped(DSI_NEEDS_AVX512); /* tiles have no part in this */
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        bench(ctx, &cases[i], &o, best);
        if (best > DSI_NEEDS_AVX2) {
            bench(ctx, &cases[i], &o, DSI_NEEDS_AVX2);
        }
    }
    if (has_peer) {
        bench_peer_stop(&peer);
    } else {
        (void)printf("DeepSpeed's CPUAdam: left out, no --peer was given\n");
    }
    ds_ctx_destroy(&ctx);
    return 0;
}
