/* SPDX-License-Identifier: Apache-2.0 */
/* attention and attention_backward: every kernel that this machine has, on one shape.
 *
 * usage: bench_attention [options] with B=4 H=12 KV=12 T=1024 TK=0 D=64 WINDOW=0 DROPOUT=0
 *        OFFSET=-1 TYPE=bf16 THREADS=0 ROUNDS=15 PACKED=1, each as NAME=VALUE
 * TK: keys (0: T); OFFSET >= 0 gives the offset operand: generation, forward only. Rounds alternate
 * among kernels; medians are printed, with rates over the visible pairs (4·D operations a pair
 * forward, 10·D backward) and, for generation, over the bytes of the keys and values that are seen.
 */
#include "accel/cpu/cpu_features.h"
#include "accel/cpu/registry.h"
#include "base/clock.h"
#include "base/half.h"
#include "base/rng.h"
#include "op/ops.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_KERNELS = 8, MOST_ROUNDS = 101, N_OPTIONS = 13 };

enum { B, H, KV, T, TK, D, WINDOW, DROPOUT, OFFSET, TYPE, THREADS, ROUNDS, PACKED };

static const char *const option_names[N_OPTIONS] = {
    "B",       "H",      "KV",   "T",       "TK",     "D",     "WINDOW",
    "DROPOUT", "OFFSET", "TYPE", "THREADS", "ROUNDS", "PACKED"};

static void fill(const ds_tensor *t, uint32_t site)
{
    const int64_t n = ds_shape_count(t->meta.shape);
    for (int64_t i = 0; i < n; ++i) {
        const float v = dsi_rng_normal(3, site, (uint64_t)i);
        switch (t->meta.dtype) {
        case DS_DTYPE_BF16:
            ((uint16_t *)t->data)[i] = dsi_f32_to_bf16(v);
            break;
        case DS_DTYPE_F16:
            ((uint16_t *)t->data)[i] = dsi_f32_to_f16(v);
            break;
        default:
            ((float *)t->data)[i] = v;
        }
    }
}

static ds_tensor new_tensor(ds_dtype type, ds_shape shape, uint32_t site)
{
    ds_tensor t = {NULL, {type, shape}};
    t.data = aligned_alloc(64, (ds_meta_bytes(t.meta) + 127) / 64 * 64);
    if (t.data == NULL) {
        exit(1);
    }
    memset(t.data, 0, ds_meta_bytes(t.meta));
    if (type == DS_DTYPE_F32 || type == DS_DTYPE_BF16 || type == DS_DTYPE_F16) {
        fill(&t, site);
    }
    return t;
}

typedef struct operands {
    dsi_attention_attrs attrs;
    ds_tensor in[DS_MAX_IN], out[DS_MAX_OUT];
    ds_meta in_meta[DS_MAX_IN], out_meta[DS_MAX_OUT];
    ds_kernel_sig sig;
} operands;

static void seal(operands *o, const ds_op *op, uint32_t n_in, uint32_t n_out, uint32_t n_threads)
{
    for (uint32_t i = 0; i < n_in; ++i) {
        o->in_meta[i] = o->in[i].meta;
    }
    for (uint32_t i = 0; i < n_out; ++i) {
        o->out_meta[i] = o->out[i].meta;
    }
    o->sig = (ds_kernel_sig){op, &o->attrs, n_in, n_out, o->in_meta, o->out_meta, n_threads};
}

static void forward_operands(operands *o, const double *v, uint32_t n_threads)
{
    const ds_dtype type = (ds_dtype)v[TYPE];
    const int64_t b = (int64_t)v[B];
    const int64_t t = (int64_t)v[T];
    const int64_t tk = v[TK] > 0 ? (int64_t)v[TK] : t;
    const int64_t d = (int64_t)v[D];
    const int64_t h = (int64_t)v[H];
    const int64_t kv = (int64_t)v[KV];
    o->attrs = (dsi_attention_attrs){.n_heads = h,
                                     .n_kv_heads = kv,
                                     .head_dim = d,
                                     .packed = v[PACKED] != 0 && tk == t,
                                     .causal = 1,
                                     .window = (int64_t)v[WINDOW],
                                     .scale = 0.125,
                                     .dropout = v[DROPOUT]};
    if (o->attrs.packed != 0) {
        o->in[0] = new_tensor(type, ds_shape_3d(b, t, (h + 2 * kv) * d), 1);
    } else {
        o->in[0] = new_tensor(type, ds_shape_3d(b, t, h * d), 1);
        o->in[1] = new_tensor(type, ds_shape_3d(b, tk, kv * d), 2);
        o->in[2] = new_tensor(type, ds_shape_3d(b, tk, kv * d), 3);
    }
    if (v[OFFSET] >= 0) {
        o->in[4] = new_tensor(DS_DTYPE_I32, ds_shape_1d(b), 0);
        for (int64_t i = 0; i < b; ++i) {
            ((int32_t *)o->in[4].data)[i] = (int32_t)v[OFFSET];
        }
    }
    if (v[DROPOUT] > 0) {
        o->in[5] = new_tensor(DS_DTYPE_I64, ds_shape_1d(4), 0);
    }
    o->out[0] = new_tensor(type, ds_shape_3d(b, t, h * d), 4);
    o->out[1] = new_tensor(DS_DTYPE_F32, ds_shape_3d(b, h, t), 5);
    seal(o, &dsi_op_attention, 6, 2, n_threads);
}

static void backward_operands(operands *o, const operands *f, uint32_t n_threads)
{
    o->attrs = f->attrs;
    o->in[0] = new_tensor(f->out[0].meta.dtype, f->out[0].meta.shape, 6);
    memcpy(o->in + 1, f->in, 3 * sizeof *o->in);
    memcpy(o->in + 4, f->out, 2 * sizeof *o->in);
    o->in[6] = f->in[3];
    o->in[7] = f->in[5];
    const uint32_t n_out = f->attrs.packed != 0 ? 1 : 3;
    for (uint32_t i = 0; i < n_out; ++i) {
        o->out[i] = new_tensor(f->in[i].meta.dtype, f->in[i].meta.shape, 7);
    }
    seal(o, &dsi_op_attention_backward, 8, n_out, n_threads);
}

static int compare_times(const void *a, const void *b)
{
    const double x = *(const double *)a;
    const double y = *(const double *)b;
    return (x > y) - (x < y);
}

static double run_once(ds_ctx *ctx, const operands *o, const ds_kernel *kernel, void *work)
{
    const ds_kernel_call call = {ctx, &o->sig, o->in, o->out, work};
    const double start = dsi_clock_seconds();
    if (kernel->run(&call) != DS_OK) {
        (void)fprintf(stderr, "%s\n", ds_ctx_error(ctx));
        exit(1);
    }
    return dsi_clock_seconds() - start;
}

static void time_kernels(ds_ctx *ctx, const operands *o, double operations, double bytes,
                         int rounds)
{
    static double times[MOST_KERNELS][MOST_ROUNDS];
    const ds_kernel *kernels[MOST_KERNELS];
    void *work[MOST_KERNELS];
    uint32_t n = 0;
    for (; n < MOST_KERNELS; ++n) {
        kernels[n] = dsi_cpu_kernel_at(&o->sig, dsi_cpu_isa(), n);
        if (kernels[n] == NULL || (n > 0 && kernels[n]->needs == DS_ISA_REF)) {
            break;
        }
        const size_t need = kernels[n]->work_bytes != NULL ? kernels[n]->work_bytes(&o->sig) : 0;
        work[n] = aligned_alloc(64, (need + 127) / 64 * 64);
        (void)run_once(ctx, o, kernels[n], work[n]);
    }
    for (int r = 0; r < rounds; ++r) {
        for (uint32_t k = 0; k < n; ++k) {
            times[k][r] = run_once(ctx, o, kernels[k], work[k]);
        }
    }
    for (uint32_t k = 0; k < n; ++k) {
        qsort(times[k], (size_t)rounds, sizeof(double), compare_times);
        const double t = times[k][rounds / 2];
        (void)printf("%-19s %-7s %10.3f ms (least %.3f) %9.1f GFLOP/s %7.1f GB/s\n",
                     o->sig.op->name, kernels[k]->name, t * 1e3, times[k][0] * 1e3,
                     operations / t * 1e-9, bytes / t * 1e-9);
        free(work[k]);
    }
}

static bool parse(int argc, char **argv, double *v)
{
    for (int i = 1; i < argc; ++i) {
        const char *equals = strchr(argv[i], '=');
        int found = -1;
        for (int k = 0; equals != NULL && k < N_OPTIONS; ++k) {
            const size_t n = strlen(option_names[k]);
            if ((size_t)(equals - argv[i]) == n && strncmp(argv[i], option_names[k], n) == 0) {
                found = k;
            }
        }
        if (found < 0) {
            (void)fprintf(stderr, "%s: not NAME=VALUE of a known name\n", argv[i]);
            return false;
        }
        v[found] =
            found == TYPE ? (double)ds_dtype_from_name(equals + 1) : strtod(equals + 1, NULL);
    }
    return true;
}

static double visible_pairs(const double *v)
{
    double pairs = 0.0;
    const double keys = v[TK] > 0 ? v[TK] : v[T];
    for (double i = 0; i < v[T]; ++i) {
        double seen = i + 1.0 + (v[OFFSET] > 0 ? v[OFFSET] : 0.0);
        seen = seen < keys ? seen : keys;
        pairs += v[WINDOW] > 0 && seen > v[WINDOW] ? v[WINDOW] : seen;
    }
    return pairs * v[B] * v[H];
}

int main(int argc, char **argv)
{
    double v[N_OPTIONS] = {4, 12, 12, 1024, 0, 64, 0, 0, -1, DS_DTYPE_BF16, 0, 15, 1};
    if (!parse(argc, argv, v)) {
        return 2;
    }
    ds_ctx_params params = ds_ctx_params_default();
    params.n_threads = (uint32_t)v[THREADS];
    ds_ctx *ctx = NULL;
    if (ds_ctx_create(&params, &ctx) != DS_OK) {
        return 1;
    }
    const int rounds = v[ROUNDS] < 1 ? 1 : v[ROUNDS] > MOST_ROUNDS ? MOST_ROUNDS : (int)v[ROUNDS];
    static operands forward;
    static operands backward;
    const double pairs = visible_pairs(v);
    const double seen = (v[OFFSET] >= 0 ? v[OFFSET] : 0.0) + v[T];
    const double bytes =
        2.0 * v[B] * v[KV] * seen * v[D] * (double)ds_dtype_bytes((ds_dtype)v[TYPE]);
    forward_operands(&forward, v, ds_ctx_n_threads(ctx));
    time_kernels(ctx, &forward, 4.0 * pairs * v[D], bytes, rounds);
    if (v[OFFSET] < 0) {
        backward_operands(&backward, &forward, ds_ctx_n_threads(ctx));
        time_kernels(ctx, &backward, 10.0 * pairs * v[D], bytes, rounds);
    }
    ds_ctx_destroy(&ctx);
    return 0;
}
