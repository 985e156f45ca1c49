/* AdamW against a loop that only streams the same reads and writes.
 *
 * usage: bench_adamw [millions of parameters] [rounds] [threads]
 * Both loops alternate in one process over the same arrays; medians of the rounds are printed. The
 * streaming loop reads gradient, weights and both moments and writes weights, both moments and,
 * with bf16, the rounded parameter, without arithmetic; the better of its two forms, with and
 * without prefetch, counts.
 */
#include "accel/cpu/registry.h"
#include "base/clock.h"
#include "op/ops.h"

#include <deepspeed/context.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum { CHUNK = 65536, MOST_ROUNDS = 99 };

typedef struct arrays {
    size_t n;
    bool bf16; /* gradient and parameter are bf16, the weights a master copy */
    void *grad, *param;
    float *weight, *m, *v; /* weight == param without bf16 */
    bool prefetch;         /* of the streaming loop */
} arrays;

static void *map_array(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) {
        (void)fprintf(stderr, "bench_adamw: cannot map %zu bytes\n", bytes);
        exit(1);
    }
    (void)madvise(p, bytes, MADV_HUGEPAGE);
    return p;
}

#if defined(__x86_64__)
__attribute__((target("avx512f,avx512bw"))) static void stream_avx512(const arrays *a, size_t i,
                                                                      size_t end)
{
    const char *g = a->grad;
    char *p = a->param;
    const size_t g_bytes = a->bf16 ? 2 : 4;
    for (; i < end; i += 32) {
        if (a->prefetch) {
            const size_t ahead = i + 256;
            _mm_prefetch(g + ahead * g_bytes, _MM_HINT_T1);
            _mm_prefetch((const char *)(a->weight + ahead), _MM_HINT_T1);
            _mm_prefetch((const char *)(a->m + ahead), _MM_HINT_T1);
            _mm_prefetch((const char *)(a->v + ahead), _MM_HINT_T1);
            _mm_prefetch((const char *)(a->weight + ahead + 16), _MM_HINT_T1);
            _mm_prefetch((const char *)(a->m + ahead + 16), _MM_HINT_T1);
            _mm_prefetch((const char *)(a->v + ahead + 16), _MM_HINT_T1);
            if (a->bf16) {
                _mm_prefetch(p + ahead * 2, _MM_HINT_T1);
            } else {
                _mm_prefetch(g + ahead * 4 + 64, _MM_HINT_T1);
            }
        }
        __m512i sum = _mm512_loadu_si512(g + i * g_bytes);
        if (!a->bf16) {
            sum = _mm512_xor_si512(sum, _mm512_loadu_si512(g + i * 4 + 64));
        }
        for (size_t j = i; j < i + 32; j += 16) {
            const __m512i w = _mm512_loadu_si512(a->weight + j);
            const __m512i m = _mm512_loadu_si512(a->m + j);
            const __m512i v = _mm512_loadu_si512(a->v + j);
            _mm512_storeu_si512(a->weight + j, m);
            _mm512_storeu_si512(a->m + j, w);
            _mm512_storeu_si512(a->v + j, v);
        }
        if (a->bf16) {
            _mm512_storeu_si512(p + i * 2, sum);
        } else {
            __asm__ volatile("" : : "x"(sum));
        }
    }
}

__attribute__((target("avx2"))) static void stream_avx2(const arrays *a, size_t i, size_t end)
{
    const char *g = a->grad;
    char *p = a->param;
    const size_t g_bytes = a->bf16 ? 2 : 4;
    for (; i < end; i += 16) {
        if (a->prefetch) {
            const size_t ahead = i + 256;
            _mm_prefetch(g + ahead * g_bytes, _MM_HINT_T1);
            _mm_prefetch((const char *)(a->weight + ahead), _MM_HINT_T1);
            _mm_prefetch((const char *)(a->m + ahead), _MM_HINT_T1);
            _mm_prefetch((const char *)(a->v + ahead), _MM_HINT_T1);
        }
        __m256i sum = _mm256_loadu_si256((const __m256i *)(const void *)(g + i * g_bytes));
        if (!a->bf16) {
            sum = _mm256_xor_si256(
                sum, _mm256_loadu_si256((const __m256i *)(const void *)(g + i * 4 + 32)));
        }
        for (size_t j = i; j < i + 16; j += 8) {
            const __m256 w = _mm256_loadu_ps(a->weight + j);
            const __m256 m = _mm256_loadu_ps(a->m + j);
            const __m256 v = _mm256_loadu_ps(a->v + j);
            _mm256_storeu_ps(a->weight + j, m);
            _mm256_storeu_ps(a->m + j, w);
            _mm256_storeu_ps(a->v + j, v);
        }
        if (a->bf16) {
            _mm256_storeu_si256((__m256i *)(void *)(p + i * 2), sum);
        } else {
            __asm__ volatile("" : : "x"(sum));
        }
    }
}
#endif

static void stream_task(void *arg, uint32_t task, uint32_t thread)
{
    const arrays *a = arg;
    const size_t i = (size_t)task * CHUNK;
    (void)thread;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512bw")) {
        stream_avx512(a, i, i + CHUNK);
    } else {
        stream_avx2(a, i, i + CHUNK);
    }
#else
    (void)i;
    (void)a;
#endif
}

static double time_stream(ds_ctx *ctx, arrays *a, bool prefetch)
{
    a->prefetch = prefetch;
    const double start = dsi_clock_seconds();
    ds_parallel(ctx, stream_task, a, (uint32_t)(a->n / CHUNK));
    return dsi_clock_seconds() - start;
}

static ds_tensor tensor_of(void *data, ds_dtype dtype, size_t n)
{
    return (ds_tensor){data, {dtype, ds_shape_1d((int64_t)n)}};
}

static double time_adamw(ds_ctx *ctx, const arrays *a, ds_isa cap, const char **kernel_out)
{
    static const ds_op adam = {.name = "adam"};
    const dsi_optim_attrs attrs = {.eps = 1e-8, .adamw = 1};
    float hyper[DSI_HYPER_COUNT] = {1e-4f, 0.9f, 0.999f, 0.01f, 0.1f, 0.03f};
    float factor = 0.5f;
    const ds_dtype half = a->bf16 ? DS_DTYPE_BF16 : DS_DTYPE_F32;
    ds_tensor in[7] = {tensor_of(a->param, half, a->n),
                       tensor_of(a->grad, half, a->n),
                       tensor_of(hyper, DS_DTYPE_F32, DSI_HYPER_COUNT),
                       {&factor, {DS_DTYPE_F32, {0}}},
                       {NULL, {DS_DTYPE_NONE, {0}}},
                       tensor_of(a->m, DS_DTYPE_F32, a->n),
                       tensor_of(a->v, DS_DTYPE_F32, a->n)};
    if (a->bf16) {
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

static int compare_times(const void *a, const void *b)
{
    const double x = *(const double *)a;
    const double y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *times, int n)
{
    qsort(times, (size_t)n, sizeof *times, compare_times);
    return times[n / 2];
}

static void fill_noise(arrays *a)
{
    uint32_t state = 12345;
    for (size_t i = 0; i < a->n; ++i) {
        state = state * 1664525u + 1013904223u;
        const float x = ((float)(state >> 8) * 0x1p-24f - 0.5f) * 0.02f;
        a->weight[i] = x;
        a->m[i] = x * 0.1f;
        a->v[i] = x * x;
        if (a->bf16) {
            ((uint16_t *)a->grad)[i] = (uint16_t)(0x3a00u | (state & 0x80ffu));
        } else {
            ((float *)a->grad)[i] = x;
        }
    }
}

/* One table line a case. The streaming loop swaps weight and m, harmless to timing. */
static void bench(ds_ctx *ctx, size_t n, bool bf16, int rounds, ds_isa cap)
{
    const size_t half = bf16 ? 2 : 4;
    arrays a = {.n = n, .bf16 = bf16};
    a.grad = map_array(n * half);
    a.weight = map_array(n * 4);
    a.m = map_array(n * 4);
    a.v = map_array(n * 4);
    a.param = bf16 ? map_array(n * 2) : a.weight;
    fill_noise(&a);
    const char *kernel = "none";
    double plain[MOST_ROUNDS];
    double ahead[MOST_ROUNDS];
    double ours[MOST_ROUNDS];
    (void)time_adamw(ctx, &a, cap, &kernel);
    for (int r = 0; r < rounds; ++r) {
        plain[r] = time_stream(ctx, &a, false);
        ours[r] = time_adamw(ctx, &a, cap, &kernel);
        ahead[r] = time_stream(ctx, &a, true);
    }
    const double t_plain = median(plain, rounds);
    const double t_ahead = median(ahead, rounds);
    const double t_stream = t_plain < t_ahead ? t_plain : t_ahead;
    const double t_ours = median(ours, rounds);
    const double gigabytes = (double)n * (24.0 + (double)half + (bf16 ? 2.0 : 0.0)) * 1e-9;
    (void)printf("%-5s %-7s %8.1f %8.1f %8.1f %8.1f %7.3f %7.1f%%\n", bf16 ? "bf16" : "f32", kernel,
                 gigabytes / t_plain, gigabytes / t_ahead, gigabytes / t_ours,
                 (double)n / t_ours * 1e-6, t_ours / (double)n * 1e9, 100.0 * t_stream / t_ours);
    (void)munmap(a.grad, n * half);
    (void)munmap(a.weight, n * 4);
    (void)munmap(a.m, n * 4);
    (void)munmap(a.v, n * 4);
    if (bf16) {
        (void)munmap(a.param, n * 2);
    }
}

int main(int argc, char **argv)
{
    const size_t millions = argc > 1 ? strtoul(argv[1], NULL, 10) : 134;
    const int wanted = argc > 2 ? atoi(argv[2]) : 11;
    const int rounds = wanted < 1 ? 1 : wanted > MOST_ROUNDS ? MOST_ROUNDS : wanted;
    ds_ctx_params params = ds_ctx_params_default();
    params.n_threads = argc > 3 ? (uint32_t)atoi(argv[3]) : 0;
    ds_ctx *ctx = NULL;
    if (ds_ctx_create(&params, &ctx) != DS_OK) {
        return 1;
    }
    const size_t n = (millions * 1000000 + CHUNK - 1) / CHUNK * CHUNK;
    (void)printf("%zu parameters, %u threads, median of %d rounds\n", n, ds_ctx_n_threads(ctx),
                 rounds);
    (void)printf("%-5s %-7s %8s %8s %8s %8s %7s %8s\n", "type", "kernel", "stream", "+prefch",
                 "adamw", "Mparam/s", "ns", "of best");
    for (int bf16 = 1; bf16 >= 0; --bf16) {
        bench(ctx, n, bf16 != 0, rounds, DS_ISA_AVX512);
        bench(ctx, n, bf16 != 0, rounds, DS_ISA_AVX2);
    }
    ds_ctx_destroy(&ctx);
    return 0;
}
