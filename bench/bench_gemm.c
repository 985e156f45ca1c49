/* SPDX-License-Identifier: Apache-2.0 */
/* Matrix products of one GPT-2 124M training step (4096 tokens), ours against oneDNN.
 *
 * oneDNN's matmul gets its best case: weights already in the layout that it asks for, no bias, its
 * reordering not timed. Ours gets the tensors as they lie in memory, and packs inside the time.
 * Both are timed alternately; the figures are medians. Data is random and never zero. Where oneDNN
 * lacks a dtype, it multiplies the same values in fp32, and a line says so. `peak` is the share of
 * the rate of multiply-adds that stay in registers, by the machine's fastest instructions for the
 * dtype.
 *
 *   bench_gemm [--filter TEXT] [--dtype bf16|f32] [--repeats N] [--threads N]
 */
#include "accel/cpu/cpu_features.h"
#include "accel/cpu/gemm_impl.h"
#include "base/clock.h"
#include "common/peak.h"
#include "common/read_rate.h"
#include "common/timing.h"

#include <dnnl.h>
#include <immintrin.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct shape {
    const char *name;
    int64_t m, n, k;
    bool a_transposed, b_transposed;
    int count; /* in a step */
} shape;

enum { TOKENS = 4096, VOCABULARY = 50257, CHUNK = 8192, MAX_REPEATS = 101 };

#define SHAPE_SECONDS 5.0 /* of both together */

static const shape shapes[] = {
    {"qkv fwd", TOKENS, 2304, 768, false, false, 12},
    {"proj fwd", TOKENS, 768, 768, false, false, 12},
    {"fc fwd", TOKENS, 3072, 768, false, false, 12},
    {"fcproj fwd", TOKENS, 768, 3072, false, false, 12},
    {"qkv dx", TOKENS, 768, 2304, false, true, 12},
    {"proj dx", TOKENS, 768, 768, false, true, 12},
    {"fc dx", TOKENS, 768, 3072, false, true, 12},
    {"fcproj dx", TOKENS, 3072, 768, false, true, 12},
    {"qkv dw", 768, 2304, TOKENS, true, false, 12},
    {"proj dw", 768, 768, TOKENS, true, false, 12},
    {"fc dw", 768, 3072, TOKENS, true, false, 12},
    {"fcproj dw", 3072, 768, TOKENS, true, false, 12},
    {"vocab fwd", TOKENS, VOCABULARY, 768, false, true, 1},
    {"vocab dx", TOKENS, 768, VOCABULARY, false, false, 1},
    {"vocab dw", VOCABULARY, 768, TOKENS, true, false, 1},
    {"chunk fwd", TOKENS, CHUNK, 768, false, true, 0},
    {"chunk dx", TOKENS, 768, CHUNK, false, false, 0},
    {"chunk dw", CHUNK, 768, TOKENS, true, false, 0},
};

enum { N_SHAPES = sizeof shapes / sizeof shapes[0] };

typedef struct options {
    const char *filter;
    ds_dtype dtype; /* NONE: both */
    int repeats;
    uint32_t threads;
} options;

/* Of operands and of the product; the peer's differ where it lacks ours. */
typedef struct dtypes {
    ds_dtype ours, our_out, peer, peer_out;
} dtypes;

/* peer_a, peer_b: the same values in the peer's dtype. */
typedef struct data {
    void *a, *b, *c, *peer_a, *peer_b, *peer_c, *work;
} data;

/* oneDNN 2.6 takes the number of the tile palette from CPUID leaf 0x1D; where a hypervisor hides
 * that leaf it configures palette 0 and dies of an illegal instruction. This replaces its function,
 * so that the peer runs at its full speed there too. */
void _ZN4dnnl4impl3cpu3x6418amx_tile_configureEPKc(const char *palette);
__attribute__((target("amx-tile"), visibility("default"))) void
_ZN4dnnl4impl3cpu3x6418amx_tile_configureEPKc(const char *palette)
{
    static _Thread_local _Alignas(64) char config[64];
    memcpy(config, palette, sizeof config);
    config[0] = 1;
    __asm__ volatile("" ::: "memory");
    _tile_loadconfig(config);
}

/* ---- oneDNN -----------------------------------------------------------------------------------
 */
typedef struct peer {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    dnnl_primitive_t matmul;
    dnnl_memory_t src, weights, dst;
} peer;

static void must(dnnl_status_t status, const char *what)
{
    if (status != dnnl_success) {
        (void)fprintf(stderr, "oneDNN: %s: status %d\n", what, (int)status);
        exit(1);
    }
}

static dnnl_memory_desc_t describe(int64_t rows, int64_t columns, dnnl_data_type_t type,
                                   dnnl_format_tag_t tag)
{
    dnnl_memory_desc_t desc;
    const dnnl_dims_t dims = {rows, columns};
    must(dnnl_memory_desc_init_by_tag(&desc, 2, dims, type, tag), "describe");
    return desc;
}

static void reorder(peer *q, dnnl_memory_t from, const dnnl_memory_desc_t *from_desc,
                    dnnl_memory_t to, const dnnl_memory_desc_t *to_desc)
{
    dnnl_primitive_desc_t desc;
    dnnl_primitive_t primitive;
    must(dnnl_reorder_primitive_desc_create(&desc, from_desc, q->engine, to_desc, q->engine, NULL),
         "reorder");
    must(dnnl_primitive_create(&primitive, desc), "reorder");
    const dnnl_exec_arg_t args[] = {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}};
    must(dnnl_primitive_execute(primitive, q->stream, 2, args), "reorder");
    must(dnnl_stream_wait(q->stream), "reorder");
    (void)dnnl_primitive_destroy(primitive);
    (void)dnnl_primitive_desc_destroy(desc);
}

static void peer_create(peer *q, const shape *s, dnnl_data_type_t type, dnnl_data_type_t out,
                        const data *d)
{
    must(dnnl_engine_create(&q->engine, dnnl_cpu, 0), "engine");
    must(dnnl_stream_create(&q->stream, q->engine, dnnl_stream_default_flags), "stream");
    const dnnl_memory_desc_t src = describe(s->m, s->k, type, s->a_transposed ? dnnl_ba : dnnl_ab);
    const dnnl_memory_desc_t plain =
        describe(s->k, s->n, type, s->b_transposed ? dnnl_ba : dnnl_ab);
    const dnnl_memory_desc_t any = describe(s->k, s->n, type, dnnl_format_tag_any);
    const dnnl_memory_desc_t dst = describe(s->m, s->n, out, dnnl_ab);
    dnnl_matmul_desc_t matmul;
    dnnl_primitive_desc_t desc;
    must(dnnl_matmul_desc_init(&matmul, &src, &any, NULL, &dst), "matmul");
    must(dnnl_primitive_desc_create(&desc, &matmul, NULL, q->engine, NULL), "matmul");
    const dnnl_memory_desc_t *packed = dnnl_primitive_desc_query_md(desc, dnnl_query_weights_md, 0);
    dnnl_memory_t plain_memory;
    must(dnnl_memory_create(&q->src, &src, q->engine, d->peer_a), "src");
    must(dnnl_memory_create(&plain_memory, &plain, q->engine, d->peer_b), "weights");
    must(dnnl_memory_create(&q->weights, packed, q->engine, DNNL_MEMORY_ALLOCATE), "weights");
    must(dnnl_memory_create(&q->dst, &dst, q->engine, d->peer_c), "dst");
    reorder(q, plain_memory, &plain, q->weights, packed);
    must(dnnl_primitive_create(&q->matmul, desc), "matmul");
    (void)dnnl_memory_destroy(plain_memory);
    (void)dnnl_primitive_desc_destroy(desc);
}

static void peer_run(const peer *q)
{
    const dnnl_exec_arg_t args[] = {
        {DNNL_ARG_SRC, q->src}, {DNNL_ARG_WEIGHTS, q->weights}, {DNNL_ARG_DST, q->dst}};
    must(dnnl_primitive_execute(q->matmul, q->stream, 3, args), "execute");
    must(dnnl_stream_wait(q->stream), "wait");
}

static void peer_destroy(peer *q)
{
    (void)dnnl_primitive_destroy(q->matmul);
    (void)dnnl_memory_destroy(q->src);
    (void)dnnl_memory_destroy(q->weights);
    (void)dnnl_memory_destroy(q->dst);
    (void)dnnl_stream_destroy(q->stream);
    (void)dnnl_engine_destroy(q->engine);
}

/* Whether it has products of the dtype: without AVX-512 it has none of bf16. */
static bool peer_can(dnnl_data_type_t type)
{
    dnnl_engine_t engine;
    dnnl_matmul_desc_t matmul;
    dnnl_primitive_desc_t desc = NULL;
    const dnnl_memory_desc_t square = describe(64, 64, type, dnnl_ab);
    must(dnnl_engine_create(&engine, dnnl_cpu, 0), "engine");
    must(dnnl_matmul_desc_init(&matmul, &square, &square, NULL, &square), "matmul");
    const dnnl_status_t status = dnnl_primitive_desc_create(&desc, &matmul, NULL, engine, NULL);
    if (status != dnnl_unimplemented) {
        must(status, "matmul");
    }
    (void)dnnl_primitive_desc_destroy(desc);
    (void)dnnl_engine_destroy(engine);
    return status == dnnl_success;
}

static dnnl_data_type_t peer_type(ds_dtype type)
{
    return type == DS_DTYPE_BF16 ? dnnl_bf16 : dnnl_f32;
}

/* ---- one shape ---------------------------------------------------------------------------------
 */
static dsi_gemm_params params_of(const shape *s, ds_dtype type, ds_dtype out, uint32_t threads)
{
    dsi_gemm_params p = dsi_gemm_params_default();
    p.m = s->m;
    p.n = s->n;
    p.k = s->k;
    p.a_dtype = type;
    p.b_dtype = type;
    p.c_dtype = out;
    p.a_transposed = s->a_transposed;
    p.b_transposed = s->b_transposed;
    p.lda = s->a_transposed ? s->m : s->k;
    p.ldb = s->b_transposed ? s->k : s->n;
    p.ldc = s->n;
    p.n_threads = threads;
    return p;
}

static void *filled(int64_t n, ds_dtype type, uint64_t seed)
{
    void *out = bench_alloc((size_t)n * ds_dtype_bytes(type));
    if (type == DS_DTYPE_F32) {
        bench_fill_f32(out, (size_t)n, seed);
    } else {
        bench_fill_bf16(out, (size_t)n, seed);
    }
    return out;
}

/* The values in the peer's dtype: themselves, or a widened copy. */
static void *for_peer(void *values, int64_t n, ds_dtype type, ds_dtype wanted)
{
    if (type == wanted) {
        return values;
    }
    float *wide = bench_alloc((size_t)n * sizeof *wide);
    for (int64_t i = 0; i < n; ++i) {
        wide[i] = dsi_gemm_load(values, type, i);
    }
    return wide;
}

static data make_data(const shape *s, const dtypes *t, size_t work_bytes)
{
    data d = {.a = filled(s->m * s->k, t->ours, 1), .b = filled(s->k * s->n, t->ours, 2)};
    d.peer_a = for_peer(d.a, s->m * s->k, t->ours, t->peer);
    d.peer_b = for_peer(d.b, s->k * s->n, t->ours, t->peer);
    d.c = bench_alloc((size_t)(s->m * s->n) * ds_dtype_bytes(t->our_out));
    d.peer_c = bench_alloc((size_t)(s->m * s->n) * ds_dtype_bytes(t->peer_out));
    d.work = bench_alloc(work_bytes + 64);
    return d;
}

static void free_data(data *d)
{
    if (d->peer_a != d->a) {
        free(d->peer_a);
        free(d->peer_b);
    }
    free(d->a);
    free(d->b);
    free(d->c);
    free(d->peer_c);
    free(d->work);
}

/* Largest difference of sampled elements over the largest magnitude. */
static double difference(const data *d, int64_t n, const dtypes *t)
{
    double worst = 0.0;
    double largest = 1e-30;
    for (int64_t i = 0; i < n; i += 97) {
        const double x = (double)dsi_gemm_load(d->c, t->our_out, i);
        const double y = (double)dsi_gemm_load(d->peer_c, t->peer_out, i);
        worst = x - y > worst ? x - y : y - x > worst ? y - x : worst;
        largest = y > largest ? y : largest;
    }
    return worst / largest;
}

typedef struct total {
    double ours, peer, flops;
} total;

/* Medians of alternating runs; as many as asked for, fewer when they take long. */
static void time_both(dsi_pool *pool, const dsi_gemm_params *p, const data *d, const peer *q,
                      int repeats, double *ours_out, double *peer_out)
{
    double ours[MAX_REPEATS];
    double theirs[MAX_REPEATS];
    for (int i = -1; i < repeats; ++i) { /* the first round warms up */
        const double t0 = dsi_clock_seconds();
        dsi_gemm(pool, p, d->work);
        const double t1 = dsi_clock_seconds();
        peer_run(q);
        const double t2 = dsi_clock_seconds();
        if (i < 0) {
            repeats = bench_rounds(repeats, t2 - t0, SHAPE_SECONDS);
        } else {
            ours[i] = t1 - t0;
            theirs[i] = t2 - t1;
        }
    }
    *ours_out = bench_median(ours, (size_t)repeats);
    *peer_out = bench_median(theirs, (size_t)repeats);
}

static void run_shape(const shape *s, dtypes t, const options *o, dsi_pool *pool, double peak,
                      total *sum)
{
    double mine;
    double other;
    t.our_out = s->a_transposed ? DS_DTYPE_F32 : t.ours;
    t.peer_out = s->a_transposed ? DS_DTYPE_F32 : t.peer;
    dsi_gemm_params p = params_of(s, t.ours, t.our_out, o->threads);
    data d = make_data(s, &t, dsi_gemm_work_bytes(&p));
    p.a = d.a;
    p.b = d.b;
    p.c = d.c;
    peer q;
    peer_create(&q, s, peer_type(t.peer), peer_type(t.peer_out), &d);
    time_both(pool, &p, &d, &q, o->repeats, &mine, &other);
    const double flops = 2.0 * (double)s->m * (double)s->n * (double)s->k;
    (void)printf("%-11s %-4s %6ld %6ld %6ld  %8.3f %8.3f  %5.2f  %6.3f %6.3f  %4.0f %%  %.1e\n",
                 s->name, ds_dtype_name(t.ours), (long)s->m, (long)s->n, (long)s->k, mine * 1e3,
                 other * 1e3, other / mine, flops / mine * 1e-12, flops / other * 1e-12,
                 100.0 * flops / mine / peak, difference(&d, s->m * s->n, &t));
    (void)fflush(stdout);
    sum->ours += s->count * mine;
    sum->peer += s->count * other;
    sum->flops += s->count * flops;
    peer_destroy(&q);
    free_data(&d);
}

static void run_dtype(ds_dtype type, const options *o, dsi_pool *pool)
{
    total sum = {0};
    const dtypes t = {.ours = type, .peer = peer_can(peer_type(type)) ? type : DS_DTYPE_F32};
    const bench_peak peak = bench_peak_measure(pool, o->threads, type);
    (void)printf("\n%s: peak of %u threads %.3f TFLOP/s, %s on random data\n", ds_dtype_name(type),
                 o->threads, peak.flops * 1e-12, peak.name);
    if (t.peer != type) {
        (void)printf("%s: oneDNN has no such product here, it multiplies the same values as %s\n",
                     ds_dtype_name(type), ds_dtype_name(t.peer));
    }
    (void)printf("%-11s %-4s %6s %6s %6s  %8s %8s  %5s  %6s %6s  %6s  %s\n", "product", "type", "M",
                 "N", "K", "ours ms", "peer ms", "ratio", "TFLOPS", "peer", "peak", "diff");
    for (int i = 0; i < N_SHAPES; ++i) {
        if (o->filter == NULL || strstr(shapes[i].name, o->filter) != NULL) {
            run_shape(&shapes[i], t, o, pool, peak.flops, &sum);
        }
    }
    if (sum.flops > 0.0) {
        (void)printf("step: ours %.1f ms, oneDNN %s %.1f ms, ratio %.2f, %.3f against %.3f "
                     "TFLOP/s\n",
                     sum.ours * 1e3, ds_dtype_name(t.peer), sum.peer * 1e3, sum.peer / sum.ours,
                     sum.flops / sum.ours * 1e-12, sum.flops / sum.peer * 1e-12);
    }
}

static options read_options(int argc, char **argv)
{
    options o = {.repeats = 9, .threads = 2};
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--filter") == 0) {
            o.filter = argv[i + 1];
        } else if (strcmp(argv[i], "--dtype") == 0) {
            o.dtype = ds_dtype_from_name(argv[i + 1]);
        } else if (strcmp(argv[i], "--repeats") == 0) {
            o.repeats = atoi(argv[i + 1]);
        } else if (strcmp(argv[i], "--threads") == 0) {
            o.threads = (uint32_t)atoi(argv[i + 1]);
        }
    }
    o.repeats = o.repeats < 1 ? 1 : o.repeats > MAX_REPEATS ? MAX_REPEATS : o.repeats;
    return o;
}

int main(int argc, char **argv)
{
    if (getenv("OMP_WAIT_POLICY") == NULL) { /* its threads must not spin while ours work */
        (void)setenv("OMP_WAIT_POLICY", "passive", 1);
        (void)execv("/proc/self/exe", argv);
    }
    const options o = read_options(argc, argv);
    omp_set_num_threads((int)o.threads);
    dsi_pool *pool = NULL;
    if (dsi_pool_create(o.threads, &pool) != DS_OK) {
        return 1;
    }
    (void)printf("%u threads, read %.1f GB/s\n", o.threads,
                 bench_read_rate_huge(pool, o.threads, (size_t)1 << 30) * 1e-9);
    if (o.dtype != DS_DTYPE_F32) {
        run_dtype(DS_DTYPE_BF16, &o, pool);
    }
    if (o.dtype != DS_DTYPE_BF16) {
        run_dtype(DS_DTYPE_F32, &o, pool);
    }
    dsi_pool_destroy(&pool);
    return 0;
}
