/* SPDX-License-Identifier: Apache-2.0 */
/* linear with a weight in blocks: products of bytes, whose lanes are rows of the weight. The bits
 * of ref_block_linear.c (block_linear.h has the arithmetic). With AVX-512's products of bytes
 * (VNNI), by products of 16 bits elsewhere.
 *
 * First the rows of x are rounded to bytes. Then a task is some panels of the weight and a chunk of
 * rows: for a panel and up to a group of rows, sums stay in registers over all blocks, and each
 * block of the panel is loaded once for these rows.
 */
#include "accel/cpu/block_linear.h"
#include "accel/cpu/simd/simd_kernel.h"

enum {
    CHUNK = 64,   /* rows of a task: their bytes stay in the second-level cache */
    PANELS = 4,   /* of a task */
    AHEAD = 3072, /* bytes of a weight that are asked for before they are read */
    HALVES = DSI_BLOCK_ROWS / VF_WIDTH, /* vectors of a panel's rows */
    STEPS = DSI_BLOCK / 4
};

typedef struct block_job {
    const ds_kernel_call *call;
    block_shape s;
    block_x x;
    int64_t n_chunks;
} block_job;

/* ---- x ---- */
DSI_INLINE void round_block(const block_job *job, int64_t block, ds_dtype type)
{
    enum { N = DSI_BLOCK / VF_WIDTH };
    const vi magnitude = vi_set(0x7fffffff);
    const size_t at = (size_t)block * DSI_BLOCK;
    vf v[N];
    vi top = vi_set(0);
    for (int i = 0; i < N; ++i) {
        v[i] = vf_get(job->call->in[0].data, type, at + (size_t)i * VF_WIDTH);
        top = vi_max(top, vi_and(vf_bits(v[i]), magnitude)); /* of floats as of their bits */
    }
    int32_t lanes[VF_WIDTH];
    int32_t largest = 0;
    vi_store(lanes, top);
    for (int i = 0; i < VF_WIDTH; ++i) {
        largest = lanes[i] > largest ? lanes[i] : largest;
    }
    const bool finite = largest < 0x7f800000;
    float amax;
    memcpy(&amax, &largest, sizeof amax);
    const float inverse = finite && amax >= BLOCK_LEAST ? 127.0f / amax : 0.0f;
    const int64_t to = block_x_index(&job->s, block / job->s.n_blocks, block % job->s.n_blocks);
    int8_t *bytes = job->x.q + to * DSI_BLOCK;
    job->x.scale[to] = finite ? amax / 127.0f : NAN;
    const int parts = dsi_block_parts(job->s.type);
    int32_t sum[2] = {0};
    for (int i = 0; i < N; ++i) {
        int32_t q[VF_WIDTH];
        vi_store(q, finite ? vf_to_int(vf_mul(v[i], vf_set(inverse))) : vi_set(0));
        for (int j = 0; j < VF_WIDTH; ++j) {
            bytes[i * VF_WIDTH + j] = (int8_t)q[j];
            sum[i * parts / N] += q[j];
        }
    }
    for (int part = 0; part < parts; ++part) {
        job->x.correct[to * parts + part] = block_correction(job->s.type, sum[part]);
    }
}

static void round_rows(const void *opaque, size_t begin, size_t end)
{
    const block_job *job = opaque;
    for (size_t block = begin; block < end; ++block) {
        DSI_BY_TYPE(job->call->in[0].meta.dtype, round_block(job, (int64_t)block, T))
    }
}

/* ---- products ---- */
/* A block of a half panel: its scales and minima, and its values as unsigned bytes. */
typedef struct half_block {
    vf scale[2], minimum; /* a scale a part */
    vi w[STEPS];
} half_block;

/* Scales and minima: halves, or of K types bytes that multiply the halves in front. */
DSI_INLINE void load_head(const uint8_t *panel, int64_t b, int half, ds_dtype type, half_block *w)
{
    const bool is_k = dsi_block_is_k(type);
    const int at = half * VF_WIDTH;
    const uint8_t *block = panel + dsi_block_at(type, b);
    const uint8_t *front = is_k ? panel + dsi_block_front_at(type, b) : block;
    const uint16_t *halves = (const uint16_t *)(const void *)front + at;
    const vf scale = vf_load_f16(halves);
    const vf minimum =
        dsi_block_has_minimum(type) ? vf_load_f16(halves + DSI_BLOCK_ROWS) : vf_zero();
    w->scale[0] = scale;
    w->minimum = minimum;
    if (type == DS_DTYPE_Q6_K) {
        w->scale[0] = vf_mul(scale, vf_from_int(vi_load_i8((const int8_t *)block + at)));
        w->scale[1] =
            vf_mul(scale, vf_from_int(vi_load_i8((const int8_t *)block + DSI_BLOCK_ROWS + at)));
    } else if (is_k) {
        const vi mins = vi_load_u8(block + DSI_BLOCK_ROWS + at);
        w->scale[0] = vf_mul(scale, vf_from_int(vi_load_u8(block + at)));
        w->minimum = vf_mul(minimum, vf_from_int(vi_sub(vi_set(0), mins)));
    }
}

/* The bits above four, of step s: one from a word, or two from the first or second one. */
DSI_INLINE vi high_bits(const uint8_t *words, int s, ds_dtype type)
{
    const bool six = type == DS_DTYPE_Q6_K;
    const vi word = vi_load((const int32_t *)(const void *)(words + (six ? s / 4 * 64 : 0)));
    const int shift = six ? 4 - 2 * (s % 4) : 4 - s;
    const vi moved =
        shift >= 0 ? vi_shl(word, (unsigned)shift & 31) : vi_shr(word, (unsigned)-shift & 31);
    return vi_and(moved, vi_set(six ? 0x30303030 : 0x10101010));
}

DSI_INLINE void load_block(const uint8_t *panel, int64_t b, int half, ds_dtype type, half_block *w)
{
    const uint8_t *block = panel + dsi_block_at(type, b);
    const int at = half * 4 * VF_WIDTH;
    const uint8_t *bytes = block + dsi_block_values(type) * DSI_BLOCK_ROWS + at;
    load_head(panel, b, half, type, w);
    if (type == DS_DTYPE_Q8_0) {
#pragma GCC unroll 8
        for (int s = 0; s < STEPS; ++s) {
            w->w[s] = vi_load((const int32_t *)(const void *)(bytes + s * 64));
        }
        return;
    }
    const vi low = vi_set(0x0f0f0f0f);
#pragma GCC unroll 8
    for (int s = 0; s < STEPS; s += 2) {
        const vi both = vi_load((const int32_t *)(const void *)(bytes + s * 32));
        w->w[s] = vi_and(both, low);
        w->w[s + 1] = vi_and(vi_shr(both, 4), low);
    }
    if (dsi_block_has_fifth(type) || type == DS_DTYPE_Q6_K) {
        const uint8_t *words = block + dsi_block_head(type) * DSI_BLOCK_ROWS + at;
#pragma GCC unroll 8
        for (int s = 0; s < STEPS; ++s) {
            w->w[s] = vi_or(w->w[s], high_bits(words, s, type));
        }
    }
}

DSI_INLINE int32_t word_at(const int8_t *q)
{
    int32_t word;
    memcpy(&word, q, sizeof word);
    return word;
}

/* Rows [row,row+rows) of a group and a half panel into y. rows, type: constants. */
DSI_INLINE void dot_rows(const block_job *job, const uint8_t *panel, int half, int64_t row,
                         int rows, ds_dtype type, float y[BLOCK_GROUP][VF_WIDTH])
{
    const block_shape *s = &job->s;
    const int parts = dsi_block_parts(type);
    const bool has_minimum = dsi_block_has_minimum(type);
    const int64_t first = block_x_index(s, row, 0);
    const int64_t stride = block_group_rows(s, row);
    const bool from_memory = row % CHUNK == 0; /* other groups find the panel in a cache */
    vf sum[BLOCK_GROUP];
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) {
        sum[r] = vf_zero();
    }
    for (int64_t b = 0; b < s->n_blocks; ++b) {
        half_block w;
        load_block(panel, b, half, type, &w);
        if (from_memory) {
#pragma GCC unroll 16
            for (int i = 0; i < dsi_block_woven(type) * DSI_BLOCK_ROWS; i += 64) {
                __builtin_prefetch(panel + dsi_block_at(type, b) + AHEAD + i);
            }
        }
        const int64_t at = first + b * stride;
        const int8_t *q = job->x.q + at * DSI_BLOCK;
        const int32_t *correct = job->x.correct + at * parts;
        const float *scales = job->x.scale + at;
#pragma GCC unroll 2
        for (int part = 0; part < parts; ++part) {
            vi dots[BLOCK_GROUP]; /* step by step for all rows: their sums wait for each other less
                                   */
#pragma GCC unroll 8
            for (int r = 0; r < rows; ++r) {
                dots[r] = vi_set(has_minimum ? 0 : correct[r * parts + part]);
            }
#pragma GCC unroll 8
            for (int step = part * STEPS / parts; step < (part + 1) * STEPS / parts; ++step) {
#pragma GCC unroll 8
                for (int r = 0; r < rows; ++r) {
                    dots[r] =
                        vi_dot4(dots[r], w.w[step], vi_set(word_at(q + r * DSI_BLOCK + 4 * step)));
                }
            }
#pragma GCC unroll 8
            for (int r = 0; r < rows; ++r) {
                const vf scale = vf_mul(w.scale[part], vf_set(scales[r]));
                sum[r] = vf_fma(scale, vf_from_int(dots[r]), sum[r]);
            }
        }
#pragma GCC unroll 8
        for (int r = 0; has_minimum && r < rows; ++r) {
            const vf minimum = vf_mul(w.minimum, vf_set(scales[r]));
            sum[r] = vf_fma(minimum, vf_from_int(vi_set(correct[r])), sum[r]);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) {
        vf_store(y[r], sum[r]);
    }
}

/* y of `rows` rows and a half panel, whose first column is o. */
static void store(const block_job *job, int64_t row, int rows, int64_t o,
                  float y[BLOCK_GROUP][VF_WIDTH])
{
    const ds_kernel_call *call = job->call;
    const dsi_linear_attrs *a = call->sig->attrs;
    const block_shape *s = &job->s;
    const int64_t n = s->n - o < VF_WIDTH ? s->n - o : VF_WIDTH;
    const bool plain = a->activation == DSI_ACT_NONE && !ref_has(call, 2) && !ref_has(call, 3);
    for (int r = 0; r < rows && n > 0; ++r) {
        const int64_t at = (row + r) * s->n + o;
        if (plain) {
            vf_put_n(call->out[0].data, call->out[0].meta.dtype, (size_t)at, vf_load(y[r]),
                     (size_t)n);
            continue;
        }
        for (int64_t i = 0; i < n; ++i) {
            block_linear_finish(call, at + i, o + i, y[r][i]);
        }
    }
}

DSI_INLINE void run_half(const block_job *job, const uint8_t *panel, int half, int64_t o,
                         int64_t begin, int64_t end, ds_dtype type)
{
    float y[BLOCK_GROUP][VF_WIDTH];
    int64_t row = begin;
    int n = 0;
    for (; row < end; row += n) {
        switch (end - row) {
        case 1:
            n = 1;
            dot_rows(job, panel, half, row, 1, type, y);
            break;
        case 2:
        case 3:
            n = 2;
            dot_rows(job, panel, half, row, 2, type, y);
            break;
        case 4:
        case 5:
        case 6:
        case 7:
            n = 4;
            dot_rows(job, panel, half, row, 4, type, y);
            break;
        default:
            n = BLOCK_GROUP;
            dot_rows(job, panel, half, row, BLOCK_GROUP, type, y);
        }
        store(job, row, n, o, y);
    }
}

static void run_panels(void *arg, uint32_t task, uint32_t thread)
{
    const block_job *job = arg;
    const block_shape *s = &job->s;
    const int64_t begin = (int64_t)task % job->n_chunks * CHUNK;
    const int64_t end = begin + CHUNK < s->m ? begin + CHUNK : s->m;
    const int64_t first = (int64_t)task / job->n_chunks * PANELS;
    (void)thread;
    for (int64_t p = first; p < first + PANELS && p < s->n_panels; ++p) {
        const uint8_t *panel =
            (const uint8_t *)job->call->in[1].data + (size_t)p * dsi_panel_bytes(s->type, s->k);
        for (int half = 0; half < HALVES; ++half) {
            const int64_t o = p * DSI_BLOCK_ROWS + half * VF_WIDTH;
            switch (s->type) {
            case DS_DTYPE_Q8_0:
                run_half(job, panel, half, o, begin, end, DS_DTYPE_Q8_0);
                break;
            case DS_DTYPE_Q4_0:
                run_half(job, panel, half, o, begin, end, DS_DTYPE_Q4_0);
                break;
            case DS_DTYPE_Q4_1:
                run_half(job, panel, half, o, begin, end, DS_DTYPE_Q4_1);
                break;
            case DS_DTYPE_Q5_0:
                run_half(job, panel, half, o, begin, end, DS_DTYPE_Q5_0);
                break;
            case DS_DTYPE_Q5_1:
                run_half(job, panel, half, o, begin, end, DS_DTYPE_Q5_1);
                break;
            case DS_DTYPE_Q4_K:
                run_half(job, panel, half, o, begin, end, DS_DTYPE_Q4_K);
                break;
            case DS_DTYPE_Q5_K:
                run_half(job, panel, half, o, begin, end, DS_DTYPE_Q5_K);
                break;
            default:
                run_half(job, panel, half, o, begin, end, DS_DTYPE_Q6_K);
            }
        }
    }
}

static size_t work_bytes(const ds_kernel_sig *sig)
{
    const block_shape s = block_shape_of(sig);
    return block_x_bytes(&s);
}

static ds_status run(const ds_kernel_call *call)
{
    block_job job = {.call = call, .s = block_shape_of(call->sig)};
    const int64_t n_tasks = (job.s.n_panels + PANELS - 1) / PANELS;
    job.x = block_x_at(&job.s, call->work);
    job.n_chunks = (job.s.m + CHUNK - 1) / CHUNK;
    for_ranges(call->ctx, (size_t)(job.s.m * job.s.n_blocks), 256, round_rows, &job);
    ds_parallel(call->ctx, run_panels, &job, (uint32_t)(n_tasks * job.n_chunks));
    return DS_OK;
}

static const ds_kernel kernel = {DS_OP_VERSION,         DSI_ISA_TEXT, "linear", DSI_SIMD_ISA,
                                 block_linear_supports, work_bytes,   run};
extern const ds_kernel *const DSI_NAME(dsi_block_family)[];
const ds_kernel *const DSI_NAME(dsi_block_family)[] = {&kernel, NULL};
