/* SPDX-License-Identifier: Apache-2.0 */
/* dropout: Philox4x32-10 (base/rng.h) on VL_WIDTH counters at a time; the reference's bits.
 *
 * A word is of one element, four elements share a counter; so a block of elements starts at the
 * counter of its first element and skips the words before it.
 */
#include "accel/cpu/simd/simd_kernel.h"

enum { DROPOUT_BLOCK = 512, WORDS = DROPOUT_BLOCK + 4 * VL_WIDTH };

typedef struct dropout_job {
    const void *x;
    void *y;
    ds_dtype type;
    uint64_t seed, first_element;
    size_t sample, all; /* elements of a sample, here and in the whole tensor */
    size_t turn;        /* those of a sample's first run of rows; behind it … */
    uint64_t gap;       /* … so many elements of others lie between */
    uint32_t site, step;
    int32_t threshold; /* kept when word>>8 >= threshold */
    float scale;
} dropout_job;

/* words[0..n_words): those of the counters from `counter`; n_words a multiple of 4·VL_WIDTH. */
static void philox_words(const dropout_job *job, uint64_t counter, size_t n_words, uint32_t *words)
{
    for (size_t w = 0; w < n_words; w += 4 * VL_WIDTH, counter += VL_WIDTH) {
        uint32_t k0 = (uint32_t)job->seed;
        uint32_t k1 = (uint32_t)(job->seed >> 32);
        const vi low = vl_count_from(counter);
        vi x[4] = {low, vl_shr(low, 32), vl_set(job->site), vl_set(job->step)};
        for (int round = 0; round < 10; ++round) {
            const vi p0 = vl_mul_low(x[0], vl_set(0xD2511F53u));
            const vi p1 = vl_mul_low(x[2], vl_set(0xCD9E8D57u));
            x[0] = vi_xor(vi_xor(vl_shr(p1, 32), x[1]), vl_set(k0));
            x[2] = vi_xor(vi_xor(vl_shr(p0, 32), x[3]), vl_set(k1));
            x[1] = p1;
            x[3] = p0;
            k0 += 0x9E3779B9u;
            k1 += 0xBB67AE85u;
        }
        vl_store_quads(words + w, x);
    }
}

/* y of n elements, whose words start at `words`. */
DSI_INLINE void drop(const dropout_job *job, size_t begin, size_t n, const uint32_t *words,
                     ds_dtype type)
{
    const vi least = vi_set(job->threshold - 1);
    const vf scale = vf_set(job->scale);
    for (size_t i = 0; i < n; i += VF_WIDTH) {
        const size_t left = n - i < VF_WIDTH ? n - i : VF_WIDTH;
        vf_fetch(job->x, type, begin + i);
        vf_fetch(job->y, type, begin + i);
        const vi word = vi_load((const int32_t *)(const void *)words + i);
        const vm kept = vi_gt(vi_shr(word, 8), least);
        const vf x = left == VF_WIDTH ? vf_get(job->x, type, begin + i)
                                      : vf_get_n(job->x, type, begin + i, left);
        const vf y = vf_select(kept, vf_mul(x, scale), vf_zero());
        if (left == VF_WIDTH) {
            vf_put(job->y, type, begin + i, y);
        } else {
            vf_put_n(job->y, type, begin + i, y, left);
        }
    }
}

static void dropout_range(const void *opaque, size_t begin, size_t end)
{
    const dropout_job *job = opaque;
    uint32_t words[WORDS + VF_WIDTH];
    for (size_t i = begin, n = 0; i < end; i += n) {
        const size_t b = i / job->sample;
        const size_t turn = b * job->sample + job->turn;
        const bool in_first = i < turn;
        const size_t run = in_first && job->turn < job->sample ? turn : (b + 1) * job->sample;
        const bool is_one = job->all == job->sample && job->turn == job->sample;
        const size_t last = is_one || end < run ? end : run;
        n = last - i < DROPOUT_BLOCK ? last - i : DROPOUT_BLOCK;
        const uint64_t element =
            job->first_element + b * (job->all - job->sample) + i + (in_first ? 0 : job->gap);
        const size_t skip = (size_t)(element & 3);
        const size_t quad = 4 * VL_WIDTH;
        philox_words(job, element >> 2, (skip + n + quad - 1) / quad * quad, words);
        DSI_BY_TYPE(job->type, drop(job, i, n, words + skip, T))
    }
}

/* The first of n rows that does not follow the one before by one; n: none. Not more than one. */
static ds_status find_turn(const ds_kernel_call *call, const int32_t *rows, size_t n,
                           size_t *turn_out)
{
    *turn_out = n;
    for (size_t i = 1; rows != NULL && i < n; ++i) {
        if (rows[i] != rows[i - 1] + 1 && *turn_out < n) {
            return ds_fail(call->ctx, DS_ERR_UNSUPPORTED,
                           "dropout: rows are three runs or more, expected at most two");
        }
        *turn_out = rows[i] != rows[i - 1] + 1 ? i : *turn_out;
    }
    return DS_OK;
}

static ds_status dropout_run(const ds_kernel_call *call)
{
    const dsi_dropout_attrs *attrs = call->sig->attrs;
    const ds_tensor *x = &call->in[0];
    const int64_t *rng = call->in[1].data;
    const size_t n = tensor_count(x);
    if (n == 0) {
        return DS_OK;
    }
    const int64_t *dims = x->meta.shape.dims;
    const size_t sample = n / (size_t)dims[0];
    const size_t row = attrs->n_rows > 0 ? sample / (size_t)dims[1] : 0;
    const size_t all = attrs->n_rows > 0 ? (size_t)attrs->n_rows * row : sample;
    const int32_t *rows = attrs->n_rows > 0 ? call->in[2].data : NULL;
    const size_t n_rows = rows != NULL ? (size_t)dims[1] : 0;
    const size_t first = rows != NULL ? (size_t)rows[0] * row : 0;
    size_t turn = 0;
    DS_TRY(find_turn(call, rows, n_rows, &turn));
    const int64_t gap = turn < n_rows ? (rows[turn] - rows[turn - 1] - 1) * (int64_t)row : 0;
    const float p = (float)attrs->p;
    const double steps = (double)p * 0x1p24; /* word>>8 counts 2^-24 */
    const int32_t whole = (int32_t)steps;
    const dropout_job job = {x->data,
                             call->out[0].data,
                             x->meta.dtype,
                             (uint64_t)rng[0],
                             (uint64_t)rng[2] * all + first,
                             sample,
                             all,
                             turn < n_rows ? turn * row : sample,
                             (uint64_t)gap, /* modulo 2^64, as it may be negative */
                             (uint32_t)attrs->site,
                             (uint32_t)rng[1],
                             (double)whole < steps ? whole + 1 : whole,
                             1.0f / (1.0f - p)};
    for_ranges(call->ctx, n, ELEMENT_GRAIN, dropout_range, &job);
    return DS_OK;
}

static bool dropout_supports(const ds_kernel_sig *sig)
{
    /* numbered columns: the reference */
    return is_act_type(sig->in[0].dtype) && (sig->n_in < 4 || sig->in[3].dtype == DS_DTYPE_NONE);
}

DSI_SIMD_KERNEL(dropout, dropout_supports, NULL, dropout_run);
