/* SPDX-License-Identifier: Apache-2.0 */
/* attention_part and attention_part_backward on the kernels of attention.
 *
 * Sample by sample, each run of queries meets each run of keys: a call of the best kernel of
 * attention, which knows by their numbers where queries and keys stand, and a merge of what
 * it gives with what was there, in fp32. Pairs of runs of which nothing is visible are left out.
 * There is a kernel for each level of instruction sets, since the plan's choice holds inside of it
 * too.
 *
 * Invariants:
 *  1. The order of runs and merges follows rows and keys, never threads.
 *  2. The workspace has room for any runs: that of the longest, and of short ones, which other
 *     kernels of attention take. What would not fit is an error.
 */
#include "accel/cpu/ref/ref_list.h"
#include "accel/cpu/ref/ref_split.h"
#include "accel/cpu/registry.h"
#include "base/half.h"
#include "op/ops.h"

#include <math.h>
#include <string.h>

enum { FORWARD_IN = 10, BACKWARD_IN = 13 };
enum { Q, K, V, ROWS, KEYS, FIRST, RNG, HEADS, SEEN_Y, SEEN_LSE, END };
enum { B_DY, B_Q, B_K, B_V, B_Y, B_LSE, B_ROWS, B_KEYS, B_FIRST, B_RNG, B_HEADS };
enum { B_DQ = B_HEADS + 1, B_DK, B_DV, B_END, B_DLSE };

/* ---- what both share ------------------------------------------------------------------------- */

static dsi_attention_attrs plain_attrs(const dsi_attention_part_attrs *a)
{
    return (dsi_attention_attrs){.n_heads = a->n_heads,
                                 .n_kv_heads = a->n_kv_heads,
                                 .head_dim = a->head_dim,
                                 .causal = a->causal,
                                 .window = a->window,
                                 .scale = a->scale,
                                 .dropout = a->dropout,
                                 .site = a->site,
                                 .all_heads = a->all_heads,
                                 .all_keys = a->all_keys,
                                 .cap = a->cap,
                                 .alibi = a->alibi,
                                 .alibi_rounded = a->alibi_rounded};
}

static const void *input(const ds_kernel_call *call, uint32_t i)
{
    return i < call->sig->n_in && call->in[i].meta.dtype != DS_DTYPE_NONE ? call->in[i].data : NULL;
}

static bool is_there(const ds_kernel_sig *sig, uint32_t i)
{
    return i < sig->n_in && sig->in[i].dtype != DS_DTYPE_NONE;
}

/* One call of attention: n_q queries of a sample, n_k keys. */
typedef struct plain {
    dsi_attention_attrs attrs;
    ds_meta in[BACKWARD_IN], out[3];
    ds_kernel_sig sig;
} plain;

static ds_meta meta_of(ds_dtype dtype, ds_shape shape)
{
    return (ds_meta){dtype, shape};
}

/* at: where q is among the inputs, 0 forward, 1 backward. */
static void describe(const ds_kernel_sig *whole, uint32_t at, int64_t n_q, int64_t n_k, plain *p)
{
    const dsi_attention_part_attrs *a = whole->attrs;
    const ds_dtype act = whole->in[at].dtype;
    const ds_meta q = meta_of(act, ds_shape_3d(1, n_q, a->n_heads * a->head_dim));
    const ds_meta kv = meta_of(act, ds_shape_3d(1, n_k, a->n_kv_heads * a->head_dim));
    const ds_meta lse = meta_of(DS_DTYPE_F32, ds_shape_3d(1, a->n_heads, n_q));
    const ds_meta first = meta_of(DS_DTYPE_I32, ds_shape_2d(1, n_q));
    const ds_meta heads = meta_of(DS_DTYPE_I32, ds_shape_1d(a->n_heads));
    const ds_meta rng = meta_of(DS_DTYPE_I64, ds_shape_1d(4));
    const ds_meta rows = meta_of(DS_DTYPE_I32, ds_shape_1d(n_q));
    const ds_meta keys = meta_of(DS_DTYPE_I32, ds_shape_1d(n_k));
    const ds_meta none = {0};
    const bool has_first = is_there(whole, at == 0 ? FIRST : B_FIRST);
    const bool has_rng = is_there(whole, at == 0 ? RNG : B_RNG);
    const bool has_heads = is_there(whole, at == 0 ? HEADS : B_HEADS);
    const ds_meta end = is_there(whole, at == 0 ? END : B_END) ? first : none;
    const ds_meta forward[FORWARD_IN] = {q,
                                         kv,
                                         kv,
                                         has_first ? first : none,
                                         none,
                                         has_rng ? rng : none,
                                         has_heads ? heads : none,
                                         rows,
                                         keys,
                                         end};
    const ds_meta backward[BACKWARD_IN] = {q,
                                           q,
                                           kv,
                                           kv,
                                           q,
                                           lse,
                                           has_first ? first : none,
                                           has_rng ? rng : none,
                                           has_heads ? heads : none,
                                           rows,
                                           keys,
                                           end,
                                           is_there(whole, B_DLSE) && at != 0 ? lse : none};
    *p = (plain){.attrs = plain_attrs(a)};
    memcpy(p->in, at == 0 ? forward : backward, at == 0 ? sizeof forward : sizeof backward);
    p->out[0] = q;
    p->out[1] = at == 0 ? lse : kv;
    p->out[2] = at == 0 ? none : kv;
    p->sig = (ds_kernel_sig){.op = at == 0 ? &dsi_op_attention : &dsi_op_attention_backward,
                             .n_in = at == 0 ? FORWARD_IN : BACKWARD_IN,
                             .n_out = at == 0 ? 2 : 3,
                             .n_threads = whole->n_threads};
    p->sig.attrs = &p->attrs;
    p->sig.in = p->in;
    p->sig.out = p->out;
}

static size_t work_of(const ds_kernel *kernel, const ds_kernel_sig *sig)
{
    return kernel != NULL && kernel->work_bytes != NULL ? kernel->work_bytes(sig) : 0;
}

/* Most that kernels of attention need for runs of up to `part`: few queries go another way. */
static size_t most_work(const ds_kernel_sig *sig, uint32_t at, ds_isa has)
{
    enum { FEW = 16 };
    const dsi_attention_part_attrs *a = sig->attrs;
    size_t most = 0;
    plain p;
    for (int64_t n = 1; n <= a->part; n = n == FEW && a->part > FEW ? a->part : n + 1) {
        describe(sig, at, n, dsi_attention_key_part(a), &p);
        const size_t work = work_of(dsi_cpu_kernel_choose(&p.sig, has), &p.sig);
        most = work > most ? work : most;
    }
    return most;
}

/* Lays out a workspace: base NULL only measures. */
typedef struct carver {
    char *base;
    size_t bytes;
} carver;

static void *carve(carver *c, size_t bytes)
{
    void *at = c->base != NULL ? c->base + c->bytes : NULL;
    c->bytes += (bytes + 63) / 64 * 64;
    return at;
}

/* Numbers [begin,end) of one run from begin on: as far as they ascend by one. */
static int64_t run_end(const int32_t *numbers, int64_t begin, int64_t end)
{
    int64_t i = begin + 1;
    while (i < end && numbers[i] == numbers[i - 1] + 1) {
        ++i;
    }
    return i;
}

/* A pair of runs: queries [q0,q0+n_q) and keys [k0,k0+n_k) of sample b. */
typedef struct pair {
    int64_t b, q0, n_q, k0, n_k;
} pair;

static bool is_visible(const dsi_attention_part_attrs *a, const int32_t *rows, const int32_t *keys,
                       const pair *p)
{
    const int64_t q_first = rows[p->q0];
    const int64_t q_last = q_first + p->n_q - 1;
    const int64_t k_first = keys[p->k0];
    const int64_t k_last = k_first + p->n_k - 1;
    return (a->causal == 0 || q_last >= k_first) &&
           (a->window == 0 || (q_first - a->window < k_last && k_first < q_last + a->window));
}

typedef ds_status (*pair_fn)(void *user, const pair *p);

/* Each visible pair of runs of a sample, in order. */
static ds_status for_pairs(const ds_kernel_call *call, uint32_t rows_at, int64_t b, pair_fn fn,
                           void *user)
{
    const dsi_attention_part_attrs *a = call->sig->attrs;
    const int32_t *rows = call->in[rows_at].data;
    const int32_t *keys = call->in[rows_at + 1].data;
    const int64_t n_parts = call->in[rows_at].meta.shape.dims[0] / a->part;
    const int64_t key_part = dsi_attention_key_part(a);
    for (int64_t part = 0; part < n_parts; ++part) {
        const int64_t q_end = (part + 1) * a->part;
        const int64_t k_end = (part + 1) * key_part;
        for (int64_t q0 = part * a->part, q1; q0 < q_end; q0 = q1) {
            q1 = run_end(rows, q0, q_end);
            for (int64_t k0 = part * key_part, k1; k0 < k_end; k0 = k1) {
                k1 = run_end(keys, k0, k_end);
                const pair p = {b, q0, q1 - q0, k0, k1 - k0};
                if (is_visible(a, rows, keys, &p)) {
                    DS_TRY(fn(user, &p));
                }
            }
        }
    }
    return DS_OK;
}

/* What says which queries and keys a pair has, as attention takes them. */
typedef struct numbers {
    const void *first, *rng, *heads, *rows, *keys, *end;
    int64_t own_rng[4]; /* of the sample */
} numbers;

/* rows_at: where rows is; behind it are keys, first, rng and heads; and where end is. */
static void find_numbers(const ds_kernel_call *call, uint32_t rows_at, uint32_t end_at,
                         const pair *p, numbers *n)
{
    const int32_t *end = input(call, end_at);
    const int64_t length = call->in[rows_at].meta.shape.dims[0];
    const int32_t *first = input(call, rows_at + 2);
    const int64_t *rng = input(call, rows_at + 3);
    for (uint32_t i = 0; i < 4 && rng != NULL; ++i) {
        n->own_rng[i] = rng[i] + (i == 2 ? p->b : 0);
    }
    n->first = first != NULL ? first + p->b * length + p->q0 : NULL;
    n->end = end != NULL ? end + p->b * length + p->q0 : NULL;
    n->rng = rng != NULL ? n->own_rng : NULL;
    n->heads = input(call, rows_at + 4);
    n->rows = (const int32_t *)call->in[rows_at].data + p->q0;
    n->keys = (const int32_t *)call->in[rows_at + 1].data + p->k0;
}

static ds_tensor tensor(const void *data, ds_meta meta)
{
    return (ds_tensor){(void *)(uintptr_t)data, meta}; /* of an input: nobody writes it */
}

static ds_status run_plain(const ds_kernel_call *call, const plain *p, const ds_tensor *in,
                           const ds_tensor *out, ds_isa has, void *work, size_t room)
{
    const ds_kernel *kernel = dsi_cpu_kernel_choose(&p->sig, has);
    if (kernel == NULL || work_of(kernel, &p->sig) > room) {
        return ds_fail(call->ctx, DS_ERR_INTERNAL,
                       "%s: %lld queries and %lld keys need %zu bytes of workspace, of %zu",
                       call->sig->op->name, (long long)p->in[0].shape.dims[1],
                       (long long)p->in[2].shape.dims[1], work_of(kernel, &p->sig), room);
    }
    const ds_kernel_call now = {
        .ctx = call->ctx, .sig = &p->sig, .in = in, .out = out, .work = work};
    return kernel->run(&now);
}

/* Element `at` of a tensor of activations. */
static char *element(const ds_tensor *t, int64_t at)
{
    return (char *)t->data + at * (int64_t)ds_dtype_bytes(t->meta.dtype);
}

static void widen(const void *from, ds_dtype dtype, int64_t at, int64_t n, float *to)
{
    if (dtype == DS_DTYPE_F32) {
        memcpy(to, (const float *)from + at, (size_t)n * sizeof *to);
    }
    for (int64_t i = 0; i < n && dtype != DS_DTYPE_F32; ++i) {
        const uint16_t bits = ((const uint16_t *)from)[at + i];
        to[i] = dtype == DS_DTYPE_BF16 ? dsi_bf16_to_f32(bits) : dsi_f16_to_f32(bits);
    }
}

static void narrow(const float *from, int64_t n, void *to, ds_dtype dtype, int64_t at)
{
    if (dtype == DS_DTYPE_F32) {
        memcpy((float *)to + at, from, (size_t)n * sizeof *from);
    }
    for (int64_t i = 0; i < n && dtype != DS_DTYPE_F32; ++i) {
        ((uint16_t *)to)[at + i] =
            dtype == DS_DTYPE_BF16 ? dsi_f32_to_bf16(from[i]) : dsi_f32_to_f16(from[i]);
    }
}

static bool is_act(ds_dtype dtype)
{
    return dtype == DS_DTYPE_F32 || dtype == DS_DTYPE_BF16 || dtype == DS_DTYPE_F16;
}

/* A level has a kernel of its own where attention has one that needs it. */
static bool supports(const ds_kernel_sig *sig, uint32_t at, ds_isa has)
{
    const dsi_attention_part_attrs *a = sig->attrs;
    const ds_kernel *kernel = NULL;
    plain p;
    if (!is_act(sig->in[at].dtype) || ds_shape_count(sig->in[at].shape) == 0) {
        return false;
    }
    describe(sig, at, a->part, dsi_attention_key_part(a), &p);
    kernel = dsi_cpu_kernel_choose(&p.sig, has);
    return kernel != NULL && kernel->needs == has;
}

/* ---- forward --------------------------------------------------------------------------------- */

typedef struct forward {
    const ds_kernel_call *call;
    ds_isa has;
    void *work;
    size_t room;
    float *y;        /* of a sample (T,H·D), where the output is of another type */
    void *part_y;    /* of a pair, of the activations' type */
    float *part_lse; /* (H,n_q) */
    float *row;      /* a thread: H·D of part_y */
    const pair *now;
    float *sum; /* y of the sample that is merged into */
} forward;

static void forward_carve(const ds_kernel_sig *sig, ds_isa has, carver *c, forward *f)
{
    const dsi_attention_part_attrs *a = sig->attrs;
    const size_t width = (size_t)(a->n_heads * a->head_dim);
    const size_t t = (size_t)sig->in[Q].shape.dims[1];
    const size_t part = (size_t)a->part;
    f->room = most_work(sig, 0, has);
    f->work = carve(c, f->room);
    f->y = carve(c, sig->out[0].dtype != DS_DTYPE_F32 ? t * width * sizeof(float) : 0);
    f->part_y = carve(c, part * width * ds_dtype_bytes(sig->in[Q].dtype));
    f->part_lse = carve(c, part * (size_t)a->n_heads * sizeof(float));
    f->row = carve(c, dsi_ref_slots(sig) * width * sizeof(float));
}

static size_t forward_work(const ds_kernel_sig *sig, ds_isa has)
{
    carver c = {NULL, 0};
    forward f;
    forward_carve(sig, has, &c, &f);
    return c.bytes;
}

/* (y, lse) of a head's query with (part, part_lse), d elements. */
static void merge_head(float *y, float *lse, const float *part, float part_lse, int64_t d)
{
    if (part_lse == -INFINITY) {
        return; /* it saw no key */
    }
    const float top = *lse > part_lse ? *lse : part_lse;
    const float w = expf(*lse - top);
    const float w_part = expf(part_lse - top);
    const float sum = w + w_part;
    const float a = w / sum;
    const float b = w_part / sum;
    for (int64_t c = 0; c < d; ++c) {
        y[c] = a * y[c] + b * part[c];
    }
    *lse = top + logf(sum);
}

/* Queries [begin,end) of the pair. */
static void merge_range(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const forward *f = call->work;
    const dsi_attention_part_attrs *a = call->sig->attrs;
    const int64_t width = a->n_heads * a->head_dim;
    const int64_t t = call->in[Q].meta.shape.dims[1];
    float *row = f->row + slot * width;
    for (int64_t i = begin; i < end; ++i) {
        const int64_t at = f->now->q0 + i;
        widen(f->part_y, call->in[Q].meta.dtype, i * width, width, row);
        for (int64_t h = 0; h < a->n_heads; ++h) {
            float *lse = (float *)call->out[1].data + (f->now->b * a->n_heads + h) * t + at;
            merge_head(f->sum + at * width + h * a->head_dim, lse, row + h * a->head_dim,
                       f->part_lse[h * f->now->n_q + i], a->head_dim);
        }
    }
}

static ds_status forward_pair(void *user, const pair *p)
{
    forward *f = user;
    const ds_kernel_call *call = f->call;
    const dsi_attention_part_attrs *a = call->sig->attrs;
    const int64_t width = a->n_heads * a->head_dim;
    const int64_t kv = a->n_kv_heads * a->head_dim;
    const int64_t t = call->in[Q].meta.shape.dims[1];
    const int64_t k_at = (p->b * call->in[K].meta.shape.dims[1] + p->k0) * kv;
    plain how;
    numbers n;
    describe(call->sig, 0, p->n_q, p->n_k, &how);
    find_numbers(call, ROWS, END, p, &n);
    const ds_tensor in[FORWARD_IN] = {
        tensor(element(&call->in[Q], (p->b * t + p->q0) * width), how.in[0]),
        tensor(element(&call->in[K], k_at), how.in[1]),
        tensor(element(&call->in[V], k_at), how.in[2]),
        tensor(n.first, how.in[3]),
        {0},
        tensor(n.rng, how.in[5]),
        tensor(n.heads, how.in[6]),
        tensor(n.rows, how.in[7]),
        tensor(n.keys, how.in[8]),
        tensor(n.end, how.in[9])};
    const ds_tensor out[2] = {{f->part_y, how.out[0]}, {f->part_lse, how.out[1]}};
    DS_TRY(run_plain(call, &how, in, out, f->has, f->work, f->room));
    f->now = p;
    ds_kernel_call merge = *call;
    merge.work = f;
    dsi_ref_for(&merge, p->n_q, merge_range);
    return DS_OK;
}

/* What was seen before, or nothing. */
static void begin_sample(const forward *f, int64_t b, int64_t count, int64_t n_stats)
{
    const float *y = input(f->call, SEEN_Y);
    const float *lse = input(f->call, SEEN_LSE);
    float *to = (float *)f->call->out[1].data + b * n_stats;
    for (int64_t i = 0; i < n_stats; ++i) {
        to[i] = lse != NULL ? lse[b * n_stats + i] : -INFINITY;
    }
    if (y != NULL) {
        memcpy(f->sum, y + b * count, (size_t)count * sizeof *y);
    } else {
        memset(f->sum, 0, (size_t)count * sizeof *f->sum);
    }
}

static ds_status forward_run(const ds_kernel_call *call, ds_isa has)
{
    const ds_shape shape = call->in[Q].meta.shape;
    const int64_t count = shape.dims[1] * shape.dims[2];
    const int64_t n_stats = call->out[1].meta.shape.dims[1] * shape.dims[1];
    const bool is_f32 = call->out[0].meta.dtype == DS_DTYPE_F32;
    carver c = {call->work, 0};
    forward f = {.call = call, .has = has};
    forward_carve(call->sig, has, &c, &f);
    for (int64_t b = 0; b < shape.dims[0]; ++b) {
        f.sum = is_f32 ? (float *)call->out[0].data + b * count : f.y;
        begin_sample(&f, b, count, n_stats);
        DS_TRY(for_pairs(call, ROWS, b, forward_pair, &f));
        if (!is_f32) {
            narrow(f.sum, count, call->out[0].data, call->out[0].meta.dtype, b * count);
        }
    }
    return DS_OK;
}

/* ---- backward -------------------------------------------------------------------------------- */

typedef struct backward {
    const ds_kernel_call *call;
    ds_isa has;
    void *work;
    size_t room;
    float *dq_sum;      /* of a sample, where the output is of another type */
    void *dq, *dk, *dv; /* of a pair, of the activations' type */
    float *lse, *dlse;  /* (H,n_q) */
    float *row;         /* a thread */
    float *sum;         /* dq of the sample that is added to */
} backward;

static void backward_carve(const ds_kernel_sig *sig, ds_isa has, carver *c, backward *w)
{
    const dsi_attention_part_attrs *a = sig->attrs;
    const size_t width = (size_t)(a->n_heads * a->head_dim);
    const size_t kv = (size_t)(a->n_kv_heads * a->head_dim);
    const size_t t = (size_t)sig->in[B_Q].shape.dims[1];
    const size_t part = (size_t)a->part;
    const size_t keys = (size_t)dsi_attention_key_part(a);
    const size_t each = ds_dtype_bytes(sig->in[B_Q].dtype);
    w->room = most_work(sig, 1, has);
    w->work = carve(c, w->room);
    w->dq_sum = carve(c, sig->out[0].dtype != DS_DTYPE_F32 ? t * width * sizeof(float) : 0);
    w->dq = carve(c, part * width * each);
    w->dk = carve(c, keys * kv * each);
    w->dv = carve(c, keys * kv * each);
    w->lse = carve(c, part * (size_t)a->n_heads * sizeof(float));
    w->dlse = carve(c, part * (size_t)a->n_heads * sizeof(float));
    w->row = carve(c, dsi_ref_slots(sig) * width * sizeof(float));
}

static size_t backward_work(const ds_kernel_sig *sig, ds_isa has)
{
    carver c = {NULL, 0};
    backward w;
    backward_carve(sig, has, &c, &w);
    return c.bytes;
}

/* Rows of a pair's gradient that are added to a sum, from its row `at` on. */
typedef struct addition {
    const void *from;
    float *to;
    float *rows; /* a thread */
    int64_t at, width;
    ds_dtype dtype;
} addition;

static void add_range(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const addition *x = call->work;
    float *row = x->rows + slot * x->width;
    for (int64_t i = begin; i < end; ++i) {
        float *to = x->to + (x->at + i) * x->width;
        widen(x->from, x->dtype, i * x->width, x->width, row);
        for (int64_t c = 0; c < x->width; ++c) {
            to[c] += row[c];
        }
    }
}

static void add_rows(const backward *w, const void *from, float *to, int64_t at, int64_t n,
                     int64_t width)
{
    addition x = {from, to, w->row, at, width, w->call->in[B_Q].meta.dtype};
    ds_kernel_call call = *w->call;
    call.work = &x;
    dsi_ref_for(&call, n, add_range);
}

/* What a pair's queries have of an input (B,H,T), where there is one. */
static void copy_stats(const backward *w, uint32_t in, const pair *p, float *to)
{
    const float *from = input(w->call, in);
    const ds_shape shape = w->call->in[B_LSE].meta.shape;
    const int64_t n_heads = shape.dims[1];
    const int64_t t = shape.dims[2];
    for (int64_t h = 0; h < n_heads && from != NULL; ++h) {
        memcpy(to + h * p->n_q, from + (p->b * n_heads + h) * t + p->q0,
               (size_t)p->n_q * sizeof *to);
    }
}

static ds_status backward_pair(void *user, const pair *p)
{
    backward *w = user;
    const ds_kernel_call *call = w->call;
    const dsi_attention_part_attrs *a = call->sig->attrs;
    const int64_t width = a->n_heads * a->head_dim;
    const int64_t kv = a->n_kv_heads * a->head_dim;
    const int64_t t = call->in[B_Q].meta.shape.dims[1];
    const int64_t q_at = (p->b * t + p->q0) * width;
    const int64_t k_row = p->b * call->in[B_K].meta.shape.dims[1] + p->k0;
    const int64_t k_at = k_row * kv;
    plain how;
    numbers n;
    describe(call->sig, 1, p->n_q, p->n_k, &how);
    find_numbers(call, B_ROWS, B_END, p, &n);
    copy_stats(w, B_LSE, p, w->lse);
    copy_stats(w, B_DLSE, p, w->dlse);
    const ds_tensor in[BACKWARD_IN] = {
        tensor(element(&call->in[B_DY], q_at), how.in[0]),
        tensor(element(&call->in[B_Q], q_at), how.in[1]),
        tensor(element(&call->in[B_K], k_at), how.in[2]),
        tensor(element(&call->in[B_V], k_at), how.in[3]),
        tensor(element(&call->in[B_Y], q_at), how.in[4]),
        tensor(w->lse, how.in[5]),
        tensor(n.first, how.in[6]),
        tensor(n.rng, how.in[7]),
        tensor(n.heads, how.in[8]),
        tensor(n.rows, how.in[9]),
        tensor(n.keys, how.in[10]),
        tensor(n.end, how.in[11]),
        tensor(input(call, B_DLSE) != NULL ? w->dlse : NULL, how.in[12])};
    const ds_tensor out[3] = {{w->dq, how.out[0]}, {w->dk, how.out[1]}, {w->dv, how.out[2]}};
    DS_TRY(run_plain(call, &how, in, out, w->has, w->work, w->room));
    add_rows(w, w->dq, w->sum, p->q0, p->n_q, width);
    add_rows(w, w->dk, call->out[1].data, k_row, p->n_k, kv);
    add_rows(w, w->dv, call->out[2].data, k_row, p->n_k, kv);
    return DS_OK;
}

/* What the steps before have added up, or zeros. */
static void begin_sum(const ds_kernel_call *call, uint32_t in, int64_t at, int64_t n, float *sum)
{
    const float *before = input(call, in);
    if (before != NULL) {
        memcpy(sum, before + at, (size_t)n * sizeof *sum);
    } else {
        memset(sum, 0, (size_t)n * sizeof *sum);
    }
}

static ds_status backward_run(const ds_kernel_call *call, ds_isa has)
{
    const ds_shape shape = call->in[B_Q].meta.shape;
    const int64_t count = shape.dims[1] * shape.dims[2];
    const bool is_f32 = call->out[0].meta.dtype == DS_DTYPE_F32;
    carver c = {call->work, 0};
    backward w = {.call = call, .has = has};
    backward_carve(call->sig, has, &c, &w);
    for (uint32_t o = 1; o < 3; ++o) {
        begin_sum(call, B_DQ + o, 0, ds_shape_count(call->out[o].meta.shape), call->out[o].data);
    }
    for (int64_t b = 0; b < shape.dims[0]; ++b) {
        w.sum = is_f32 ? (float *)call->out[0].data + b * count : w.dq_sum;
        begin_sum(call, B_DQ, b * count, count, w.sum);
        DS_TRY(for_pairs(call, B_ROWS, b, backward_pair, &w));
        if (!is_f32) {
            narrow(w.sum, count, call->out[0].data, call->out[0].meta.dtype, b * count);
        }
    }
    return DS_OK;
}

/* ---- a kernel for each level ----------------------------------------------------------------- */

#define LEVEL(label, isa)                                                                          \
    static bool label##_fits(const ds_kernel_sig *sig)                                             \
    {                                                                                              \
        return supports(sig, 0, (isa));                                                            \
    }                                                                                              \
    static size_t label##_bytes(const ds_kernel_sig *sig)                                          \
    {                                                                                              \
        return forward_work(sig, (isa));                                                           \
    }                                                                                              \
    static ds_status label##_run(const ds_kernel_call *call)                                       \
    {                                                                                              \
        return forward_run(call, (isa));                                                           \
    }                                                                                              \
    static bool label##_back_fits(const ds_kernel_sig *sig)                                        \
    {                                                                                              \
        return supports(sig, 1, (isa));                                                            \
    }                                                                                              \
    static size_t label##_back_bytes(const ds_kernel_sig *sig)                                     \
    {                                                                                              \
        return backward_work(sig, (isa));                                                          \
    }                                                                                              \
    static ds_status label##_back_run(const ds_kernel_call *call)                                  \
    {                                                                                              \
        return backward_run(call, (isa));                                                          \
    }                                                                                              \
    static const ds_kernel label##_kernel = {.version = DS_OP_VERSION,                             \
                                             .name = #label,                                       \
                                             .op = "attention_part",                               \
                                             .needs = (isa),                                       \
                                             .supports = label##_fits,                             \
                                             .work_bytes = label##_bytes,                          \
                                             .run = label##_run};                                  \
    static const ds_kernel label##_back_kernel = {.version = DS_OP_VERSION,                        \
                                                  .name = #label,                                  \
                                                  .op = "attention_part_backward",                 \
                                                  .needs = (isa),                                  \
                                                  .supports = label##_back_fits,                   \
                                                  .work_bytes = label##_back_bytes,                \
                                                  .run = label##_back_run};

LEVEL(amx, DSI_NEEDS_AMX)
LEVEL(avx512_bf16, DSI_NEEDS_AVX512_BF16)
LEVEL(avx512, DSI_NEEDS_AVX512)
LEVEL(avx2, DSI_NEEDS_AVX2)
LEVEL(ref, DS_ISA_REF)

const ds_kernel *const dsi_attention_part_family[] = {&amx_kernel,
                                                      &amx_back_kernel,
                                                      &avx512_bf16_kernel,
                                                      &avx512_bf16_back_kernel,
                                                      &avx512_kernel,
                                                      &avx512_back_kernel,
                                                      &avx2_kernel,
                                                      &avx2_back_kernel,
                                                      NULL};
const ds_kernel *const dsi_ref_attention_part[] = {&ref_kernel, &ref_back_kernel, NULL};
