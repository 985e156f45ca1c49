/* SPDX-License-Identifier: Apache-2.0 */
/* Times the kernels that are no matrix products at the shapes of GPT-2 124M (4 samples of 1024
 * tokens), against copying as many bytes.
 *
 * usage: bench_kernels [threads] [part of an operator's name]
 * Each line: milliseconds and GB/s (operands once) with operands in cache (right after another run)
 * and from memory (sets in turn, 1 GB in all), the rate of a copy of as many bytes from memory, and
 * the kernel's share of it. The three alternate; medians.
 */
#include "accel/cpu/cpu_features.h"
#include "accel/cpu/registry.h"
#include "base/clock.h"
#include "op/ops.h"

#include <deepspeed/context.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { MOST = 8, MOST_SETS = 64, ROUNDS = 33 };

typedef struct bench_case {
    const char *op;
    const void *attrs;
    ds_meta in[MOST], out[MOST];
    int written[MOST]; /* index + 1 of the input that output i overwrites */
} bench_case;

typedef struct operand_set {
    ds_tensor in[MOST], out[MOST];
} operand_set;

static uint32_t count_metas(const ds_meta *metas)
{
    uint32_t n = MOST;
    while (n > 0 && metas[n - 1].dtype == DS_DTYPE_NONE) {
        --n;
    }
    return n;
}

static ds_tensor allocate(ds_meta meta, uint32_t seed)
{
    const size_t n = (size_t)ds_shape_count(meta.shape);
    const size_t page = (size_t)2 << 20;
    const size_t bytes = (ds_meta_bytes(meta) + page - 1) / page * page;
    if (meta.dtype == DS_DTYPE_NONE) {
        return (ds_tensor){NULL, meta};
    }
    void *data = aligned_alloc(page, bytes);
    if (data == NULL) {
        exit(1);
    }
    (void)madvise(data, bytes, MADV_HUGEPAGE);
    uint32_t state = seed * 2654435761u + 1;
    for (size_t i = 0; i < n; ++i) {
        state = state * 1664525u + 1013904223u;
        const float x = (float)(state >> 8) * 0x1p-23f - 1.0f + 0x1p-12f;
        if (meta.dtype == DS_DTYPE_F32) {
            ((float *)data)[i] = n == 1 ? 2.0f : x; /* a scalar may be a largest magnitude */
        } else if (meta.dtype == DS_DTYPE_BF16) {
            ((uint16_t *)data)[i] = (uint16_t)(0x3f00u | (state >> 16 & 0x807fu));
        } else if (meta.dtype == DS_DTYPE_I32) {
            ((int32_t *)data)[i] = (int32_t)((state >> 8) % 1000);
        } else {
            memset(data, 0, bytes);
            break;
        }
    }
    return (ds_tensor){data, meta};
}

static size_t bytes_of(const bench_case *c)
{
    size_t bytes = 0;
    for (int i = 0; i < MOST; ++i) {
        bytes += c->in[i].dtype == DS_DTYPE_NONE ? 0 : ds_meta_bytes(c->in[i]);
        bytes += c->out[i].dtype == DS_DTYPE_NONE ? 0 : ds_meta_bytes(c->out[i]);
    }
    return bytes;
}

static void make_set(const bench_case *c, operand_set *set, uint32_t seed)
{
    for (uint32_t i = 0; i < MOST; ++i) {
        set->in[i] = allocate(c->in[i], seed * 16 + i);
    }
    for (uint32_t i = 0; i < MOST; ++i) {
        set->out[i] =
            c->written[i] > 0 ? set->in[c->written[i] - 1] : allocate(c->out[i], seed * 16 + 9 + i);
    }
}

static void free_operands(const bench_case *c, operand_set *set)
{
    for (int i = 0; i < MOST; ++i) {
        free(set->in[i].data);
        if (c->written[i] == 0) {
            free(set->out[i].data);
        }
    }
}

static int compare_times(const void *a, const void *b)
{
    const double x = *(const double *)a;
    const double y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The peer: copies as many bytes as a case moves, from and to fresh parts of two large arrays, by
 * the same pool with the same prefetch. */
typedef struct copy_peer {
    char *from, *to;
    size_t bytes, at; /* of each array; where the next copy starts */
    const ds_kernel *kernel;
} copy_peer;

enum { PEER_BYTES = 512 << 20 };

static double time_copy(ds_ctx *ctx, copy_peer *peer, size_t moved)
{
    static const ds_op cast = {.version = DS_OP_VERSION, .name = "cast"};
    static const dsi_cast_attrs attrs = {DS_DTYPE_BF16};
    const size_t half = moved / 2 < peer->bytes ? (moved / 2 + 63) / 64 * 64 : peer->bytes;
    if (peer->at + half > peer->bytes) {
        peer->at = 0;
    }
    const ds_meta meta = {DS_DTYPE_BF16, ds_shape_1d((int64_t)(half / 2))};
    const ds_tensor in = {peer->from + peer->at, meta};
    const ds_tensor out = {peer->to + peer->at, meta};
    const ds_kernel_sig sig = {&cast, &attrs, 1, 1, &meta, &meta, ds_ctx_n_threads(ctx)};
    const ds_kernel_call call = {ctx, &sig, &in, &out, NULL};
    peer->kernel = dsi_cpu_kernel_choose(&sig, dsi_cpu_isa_capped(DSI_NEEDS_AVX512));
    peer->at += half;
    const double start = dsi_clock_seconds();
    (void)peer->kernel->run(&call);
    return (dsi_clock_seconds() - start) * (double)moved / (double)(2 * half);
}

static double time_run(const ds_kernel *kernel, ds_kernel_call *call, const operand_set *set)
{
    call->in = set->in;
    call->out = set->out;
    const double start = dsi_clock_seconds();
    if (kernel->run(call) < 0) {
        (void)fprintf(stderr, "%s: %s\n", kernel->op, ds_ctx_error(call->ctx));
        exit(1);
    }
    return dsi_clock_seconds() - start;
}

static double median(double *times, size_t n)
{
    qsort(times, n, sizeof *times, compare_times);
    return times[n / 2];
}

/* One line. Rounds alternate: the kernel on a set that is in cache, on the next set from memory,
 * and the copy. */
static void bench(ds_ctx *ctx, const bench_case *c, ds_isa cap, copy_peer *peer)
{
    const ds_op op = {.version = DS_OP_VERSION, .name = c->op};
    const ds_kernel_sig sig = {&op,   c->attrs, count_metas(c->in),   count_metas(c->out),
                               c->in, c->out,   ds_ctx_n_threads(ctx)};
    const ds_kernel *kernel = dsi_cpu_kernel_choose(&sig, cap);
    const size_t bytes = bytes_of(c);
    const size_t wanted = ((size_t)1 << 30) / bytes;
    const size_t n_sets = wanted < 2 ? 2 : wanted > MOST_SETS ? MOST_SETS : wanted;
    operand_set sets[MOST_SETS];
    for (size_t s = 0; s < n_sets; ++s) {
        make_set(c, &sets[s], (uint32_t)s);
    }
    const size_t work_bytes = kernel->work_bytes != NULL ? kernel->work_bytes(&sig) : 0;
    void *work = aligned_alloc(64, (work_bytes + 127) / 64 * 64);
    ds_kernel_call call = {ctx, &sig, NULL, NULL, work};
    double hot[ROUNDS];
    double cold[ROUNDS];
    double copy[ROUNDS];
    for (size_t s = 0; s < n_sets; ++s) {
        (void)time_run(kernel, &call, &sets[s]);
    }
    for (size_t r = 0; r < ROUNDS; ++r) {
        cold[r] = time_run(kernel, &call, &sets[r % n_sets]);
        hot[r] = time_run(kernel, &call, &sets[r % n_sets]);
        copy[r] = time_copy(ctx, peer, bytes);
    }
    const double t_hot = median(hot, ROUNDS);
    const double t_cold = median(cold, ROUNDS);
    const double t_copy = median(copy, ROUNDS);
    const double gigabytes = (double)bytes * 1e-9;
    char text[64];
    (void)printf("%-20s %-7s %-20s %8.3f %7.1f %8.3f %7.1f %7.1f %6.0f%%\n", c->op, kernel->name,
                 ds_meta_text(c->in[0], text, sizeof text), t_hot * 1e3, gigabytes / t_hot,
                 t_cold * 1e3, gigabytes / t_cold, gigabytes / t_copy, 100.0 * t_copy / t_cold);
    (void)fflush(stdout);
    for (size_t s = 0; s < n_sets; ++s) {
        free_operands(c, &sets[s]);
    }
    free(work);
}

#define B(...)                                                                                     \
    {                                                                                              \
        DS_DTYPE_BF16,                                                                             \
        {                                                                                          \
            __VA_ARGS__                                                                            \
        }                                                                                          \
    }
#define F(...)                                                                                     \
    {                                                                                              \
        DS_DTYPE_F32,                                                                              \
        {                                                                                          \
            __VA_ARGS__                                                                            \
        }                                                                                          \
    }
#define I(...)                                                                                     \
    {                                                                                              \
        DS_DTYPE_I32,                                                                              \
        {                                                                                          \
            __VA_ARGS__                                                                            \
        }                                                                                          \
    }
#define N 4096
#define MAT(c)                                                                                     \
    2,                                                                                             \
    {                                                                                              \
        N, (c)                                                                                     \
    }
#define VEC(c)                                                                                     \
    1,                                                                                             \
    {                                                                                              \
        (c)                                                                                        \
    }
#define SCALAR                                                                                     \
    0,                                                                                             \
    {                                                                                              \
        0                                                                                          \
    }
#define PARAMS (16 << 20)

static const dsi_norm_attrs norm = {.eps = 1e-5};
static const dsi_norm_backward_attrs with_bias = {1};
static const dsi_act_attrs gelu = {DSI_ACT_GELU_TANH};
static const dsi_act_attrs gelu_erf = {DSI_ACT_GELU_ERF};
static const dsi_act_attrs silu = {DSI_ACT_SILU};
static const dsi_dropout_attrs dropout = {.p = 0.1, .site = 3};
static const dsi_embedding_dw_attrs vocabulary = {50257};
static const dsi_scale_attrs half = {0.5};
static const dsi_cast_attrs to_bf16 = {DS_DTYPE_BF16};
static const dsi_cast_attrs to_f32 = {DS_DTYPE_F32};
static const dsi_permute_attrs heads = {4, {0, 2, 1, 3}};
static const dsi_permute_attrs transposed = {2, {1, 0}};
static const dsi_slice_attrs part = {1, 768, 768};
static const dsi_optim_attrs optim = {.eps = 1e-8, .adamw = 1, .max_coeff = 10, .min_coeff = 0.01};

#define OPTIM(name, ...)                                                                           \
    {                                                                                              \
        name, &optim, {B(VEC(PARAMS)), B(VEC(PARAMS)), F(VEC(8)),  F(SCALAR),                      \
                       F(VEC(PARAMS)), F(VEC(PARAMS)), __VA_ARGS__},                               \
            {B(VEC(PARAMS)), F(VEC(PARAMS)), F(VEC(PARAMS)), __VA_ARGS__}, {1, 5, 6, 7},           \
    }

static const bench_case cases[] = {
    {"cast", &to_bf16, {B(MAT(3072))}, {B(MAT(3072))}, {0}},
    {"layer_norm",
     &norm,
     {B(MAT(768)), B(VEC(768)), B(VEC(768))},
     {B(MAT(768)), F(VEC(N)), F(VEC(N))},
     {0}},
    {"layer_norm_backward",
     &with_bias,
     {B(MAT(768)), B(MAT(768)), B(VEC(768)), F(VEC(N)), F(VEC(N)), B(MAT(768))},
     {B(MAT(768)), F(VEC(768)), F(VEC(768))},
     {0}},
    {"rms_norm", &norm, {B(MAT(768)), B(VEC(768))}, {B(MAT(768)), F(VEC(N))}, {0}},
    {"rms_norm_backward",
     NULL,
     {B(MAT(768)), B(MAT(768)), B(VEC(768)), F(VEC(N)), B(MAT(768))},
     {B(MAT(768)), F(VEC(768))},
     {0}},
    {"activation", &gelu, {B(MAT(3072))}, {B(MAT(3072))}, {0}},
    {"activation", &gelu_erf, {B(MAT(3072))}, {B(MAT(3072))}, {0}},
    {"activation_backward", &gelu, {B(MAT(3072)), B(MAT(3072))}, {B(MAT(3072))}, {0}},
    {"activation_backward", &gelu_erf, {B(MAT(3072)), B(MAT(3072))}, {B(MAT(3072))}, {0}},
    {"glu", &silu, {B(MAT(2048)), B(MAT(2048))}, {B(MAT(2048))}, {0}},
    {"glu_backward",
     &silu,
     {B(MAT(2048)), B(MAT(2048)), B(MAT(2048))},
     {B(MAT(2048)), B(MAT(2048))},
     {0}},
    {"softmax", NULL, {B(MAT(1024))}, {B(MAT(1024))}, {0}},
    {"softmax_backward", NULL, {B(MAT(1024)), B(MAT(1024))}, {B(MAT(1024))}, {0}},
    {"dropout", &dropout, {B(MAT(768)), {DS_DTYPE_I64, {VEC(4)}}}, {B(MAT(768))}, {0}},
    {"embedding",
     NULL,
     {B(2, {50257, 768}), I(VEC(N)), B(2, {1024, 768}), I(VEC(N))},
     {B(MAT(768))},
     {0}},
    {"embedding_dw", &vocabulary, {I(VEC(N)), B(MAT(768))}, {F(2, {50257, 768})}, {0}},
    {"add", NULL, {B(MAT(768)), B(MAT(768))}, {B(MAT(768))}, {0}},
    {"mul", NULL, {B(MAT(768)), B(VEC(768))}, {B(MAT(768))}, {0}},
    {"scale", &half, {B(MAT(768))}, {B(MAT(768))}, {0}},
    {"exp", NULL, {F(MAT(768))}, {F(MAT(768))}, {0}},
    {"tanh", NULL, {F(MAT(768))}, {F(MAT(768))}, {0}},
    {"sigmoid", NULL, {B(MAT(768))}, {B(MAT(768))}, {0}},
    {"sum_all", NULL, {B(MAT(768))}, {F(SCALAR)}, {0}},
    {"sum_last", NULL, {B(MAT(768))}, {F(VEC(N))}, {0}},
    {"sum_rows", NULL, {B(MAT(3072))}, {F(VEC(3072))}, {0}},
    {"cast", &to_bf16, {F(VEC(PARAMS))}, {B(VEC(PARAMS))}, {0}},
    {"cast", &to_f32, {B(VEC(PARAMS))}, {F(VEC(PARAMS))}, {0}},
    {"accumulate", NULL, {F(VEC(PARAMS)), B(VEC(PARAMS))}, {F(VEC(PARAMS))}, {1}},
    {"accumulate", NULL, {F(VEC(PARAMS)), F(VEC(PARAMS))}, {F(VEC(PARAMS))}, {1}},
    {"permute", &heads, {B(4, {4, 1024, 12, 64})}, {B(4, {4, 12, 1024, 64})}, {0}},
    {"permute", &transposed, {B(MAT(768))}, {B(2, {768, N})}, {0}},
    {"slice", &part, {B(MAT(2304))}, {B(MAT(768))}, {0}},
    {"abs_max", NULL, {B(VEC(PARAMS))}, {F(SCALAR)}, {0}},
    {"abs_max", NULL, {F(VEC(PARAMS))}, {F(SCALAR)}, {0}},
    {"sum_squares", NULL, {B(VEC(PARAMS)), F(SCALAR)}, {{DS_DTYPE_F64, {VEC(2)}}}, {0}},
    {"sum_squares", NULL, {F(VEC(PARAMS)), F(SCALAR)}, {{DS_DTYPE_F64, {VEC(2)}}}, {0}},
    OPTIM("adam", F(VEC(PARAMS))),
    OPTIM("sgd", {DS_DTYPE_NONE, {0, {0}}}),
    OPTIM("lion", {DS_DTYPE_NONE, {0, {0}}}),
    OPTIM("adagrad", {DS_DTYPE_NONE, {0, {0}}}),
    {"lamb_moments",
     &optim,
     {F(VEC(PARAMS)),
      B(VEC(PARAMS)),
      F(VEC(8)),
      F(SCALAR),
      {DS_DTYPE_NONE, {0, {0}}},
      F(VEC(PARAMS))},
     {F(VEC(PARAMS)), {DS_DTYPE_NONE, {0, {0}}}, F(VEC(PARAMS))},
     {1, 0, 6}},
    {"lamb_sums",
     &optim,
     {F(VEC(PARAMS)), F(VEC(PARAMS)), F(VEC(PARAMS)), F(VEC(8))},
     {{DS_DTYPE_F64, {VEC(38)}}},
     {0}},
    {"lamb",
     &optim,
     {B(VEC(PARAMS)),
      {DS_DTYPE_F64, {VEC(38)}},
      F(VEC(8)),
      {DS_DTYPE_NONE, {0, {0}}},
      F(VEC(PARAMS)),
      F(VEC(PARAMS)),
      F(VEC(PARAMS))},
     {B(VEC(PARAMS)), F(VEC(PARAMS))},
     {1, 5}},
};

int main(int argc, char **argv)
{
    ds_ctx_params params = ds_ctx_params_default();
    params.n_threads = argc > 1 ? (uint32_t)atoi(argv[1]) : 0;
    const char *wanted = argc > 2 ? argv[2] : "";
    ds_ctx *ctx = NULL;
    if (ds_ctx_create(&params, &ctx) != DS_OK) {
        return 1;
    }
    (void)printf("%u threads, medians of %d\n%-20s %-7s %-20s %8s %7s %8s %7s %7s %7s\n",
                 ds_ctx_n_threads(ctx), ROUNDS, "operator", "kernel", "first operand", "cache ms",
                 "GB/s", "mem ms", "GB/s", "copy", "of copy");
    const ds_isa best = dsi_cpu_isa_capped(DSI_NEEDS_AVX512); /* these operators use no tiles */
    const ds_meta peer_meta = {DS_DTYPE_BF16, {1, {PEER_BYTES / 2}}};
    copy_peer peer = {allocate(peer_meta, 1).data, allocate(peer_meta, 2).data, PEER_BYTES, 0,
                      NULL};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        if (strstr(cases[i].op, wanted) != NULL) {
            bench(ctx, &cases[i], best, &peer);
            if (best > DSI_NEEDS_AVX2) {
                bench(ctx, &cases[i], DSI_NEEDS_AVX2, &peer);
            }
        }
    }
    free(peer.from);
    free(peer.to);
    ds_ctx_destroy(&ctx);
    return 0;
}
