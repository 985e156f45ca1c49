/* SPDX-License-Identifier: Apache-2.0 */
/* permute: any element type, by its size. Where the last dim stays last whole rows are copied;
 * elsewhere squares of TILE by TILE elements, whose lines stay in the L1 cache.
 */
#include "accel/cpu/simd/simd_kernel.h"

enum { TILE = 32 };

typedef struct permute_job {
    const char *x;
    char *y;
    uint32_t n_dims;
    uint32_t across;               /* y's dim that is x's last one */
    size_t dims[DS_MAX_DIMS];      /* of y */
    size_t x_strides[DS_MAX_DIMS]; /* elements, of y's dims */
    size_t y_strides[DS_MAX_DIMS];
    size_t n_tiles; /* of dim across */
    size_t bytes;   /* an element */
} permute_job;

/* Offsets of the place-th combination of y's dims other than the last and `skip`. */
static void locate(const permute_job *job, size_t place, uint32_t skip, size_t *x_out,
                   size_t *y_out)
{
    *x_out = 0;
    *y_out = 0;
    for (uint32_t d = job->n_dims - 1; d-- > 0;) {
        if (d != skip) {
            const size_t at = place % job->dims[d];
            *x_out += at * job->x_strides[d];
            *y_out += at * job->y_strides[d];
            place /= job->dims[d];
        }
    }
}

/* Rows that follow one another in y's last dim but one lie a fixed stride apart in x: read 8 of
 * them ahead, as hardware does not foresee such steps. */
enum { ROWS_AHEAD = 8, SHORT_ROW = 512 };

DSI_INLINE void copy_run(const char *x, char *y, size_t n, size_t x_step, size_t bytes)
{
    for (size_t i = 0; i < n; ++i, x += x_step, y += bytes) {
        if (bytes > SHORT_ROW || bytes % 32 != 0) {
            memcpy(y, x, bytes);
            continue;
        }
        for (size_t at = 0; at < bytes; at += 64) {
            _mm_prefetch(x + ROWS_AHEAD * x_step + at, _MM_HINT_T0);
        }
        for (size_t at = 0; at < bytes; at += 32) {
            const __m256i part = _mm256_loadu_si256((const __m256i *)(const void *)(x + at));
            _mm256_storeu_si256((__m256i *)(void *)(y + at), part);
        }
    }
}

static void copy_rows(const void *opaque, size_t first, size_t last, size_t block)
{
    const permute_job *job = opaque;
    const size_t bytes = job->dims[job->n_dims - 1] * job->bytes;
    const size_t inner = job->n_dims > 1 ? job->dims[job->n_dims - 2] : 1;
    const size_t x_step = job->n_dims > 1 ? job->x_strides[job->n_dims - 2] * job->bytes : 0;
    (void)block;
    for (size_t row = first; row < last;) {
        const size_t left = inner - row % inner;
        const size_t n = last - row < left ? last - row : left;
        size_t x_at;
        size_t y_at;
        locate(job, row, DS_MAX_DIMS, &x_at, &y_at);
        copy_run(job->x + x_at * job->bytes, job->y + y_at * job->bytes, n, x_step, bytes);
        row += n;
    }
}

DSI_INLINE void copy_elements(const char *x, char *y, size_t n_across, size_t n_last,
                              size_t x_stride, size_t y_stride, size_t bytes)
{
    for (size_t a = 0; a < n_across; ++a) {
        for (size_t b = 0; b < n_last; ++b) {
            memcpy(y + (a * y_stride + b) * bytes, x + (b * x_stride + a) * bytes, bytes);
        }
    }
}

/* 8 rows of 8 elements of 2 bytes; strides in bytes. Each round doubles the length of the runs that
 * come from one column. */
DSI_INLINE void turn_8x8(const char *x, char *y, size_t x_stride, size_t y_stride)
{
    __m128i r[8];
    __m128i s[8];
    for (size_t i = 0; i < 8; ++i) {
        r[i] = _mm_loadu_si128((const __m128i *)(const void *)(x + i * x_stride));
    }
    for (size_t i = 0; i < 4; ++i) { /* rows 2i and 2i+1: columns 0-3, then 4-7 */
        s[i] = _mm_unpacklo_epi16(r[2 * i], r[2 * i + 1]);
        s[i + 4] = _mm_unpackhi_epi16(r[2 * i], r[2 * i + 1]);
    }
    for (size_t i = 0; i < 4; ++i) { /* rows 0-3 or 4-7, two columns each */
        const size_t at = i / 2 * 4 + i % 2 * 2;
        r[2 * i] = _mm_unpacklo_epi32(s[at], s[at + 1]);
        r[2 * i + 1] = _mm_unpackhi_epi32(s[at], s[at + 1]);
    }
    for (size_t i = 0; i < 4; ++i) { /* columns 2i and 2i+1 */
        const size_t at = i / 2 * 4 + i % 2;
        s[2 * i] = _mm_unpacklo_epi64(r[at], r[at + 2]);
        s[2 * i + 1] = _mm_unpackhi_epi64(r[at], r[at + 2]);
    }
    for (size_t i = 0; i < 8; ++i) {
        _mm_storeu_si128((__m128i *)(void *)(y + i * y_stride), s[i]);
    }
}

/* 4 rows of 4 elements of 4 bytes; strides in bytes. */
DSI_INLINE void turn_4x4(const char *x, char *y, size_t x_stride, size_t y_stride)
{
    __m128i r[4];
    for (size_t i = 0; i < 4; ++i) {
        r[i] = _mm_loadu_si128((const __m128i *)(const void *)(x + i * x_stride));
    }
    const __m128i low_a = _mm_unpacklo_epi32(r[0], r[1]);
    const __m128i low_b = _mm_unpacklo_epi32(r[2], r[3]);
    const __m128i high_a = _mm_unpackhi_epi32(r[0], r[1]);
    const __m128i high_b = _mm_unpackhi_epi32(r[2], r[3]);
    const __m128i turned[4] = {_mm_unpacklo_epi64(low_a, low_b), _mm_unpackhi_epi64(low_a, low_b),
                               _mm_unpacklo_epi64(high_a, high_b),
                               _mm_unpackhi_epi64(high_a, high_b)};
    for (size_t i = 0; i < 4; ++i) {
        _mm_storeu_si128((__m128i *)(void *)(y + i * y_stride), turned[i]);
    }
}

/* Squares of `side` elements; the lines of y are finished before the next: they may all lie in one
 * set of the L1 cache. */
DSI_INLINE void copy_tile(const char *x, char *y, size_t n_across, size_t n_last, size_t x_stride,
                          size_t y_stride, size_t bytes)
{
    const size_t side = bytes == 2 ? 8 : 4;
    const size_t whole = bytes == 2 || bytes == 4 ? n_last / side * side : 0;
    size_t a = 0;
    for (; whole > 0 && a + side <= n_across; a += side) {
        for (size_t b = 0; b < whole; b += side) {
            const char *from = x + (b * x_stride + a) * bytes;
            char *to = y + (a * y_stride + b) * bytes;
            if (bytes == 2) {
                turn_8x8(from, to, x_stride * bytes, y_stride * bytes);
            } else {
                turn_4x4(from, to, x_stride * bytes, y_stride * bytes);
            }
        }
        copy_elements(x + (whole * x_stride + a) * bytes, y + (a * y_stride + whole) * bytes, side,
                      n_last - whole, x_stride, y_stride, bytes);
    }
    copy_elements(x + a * bytes, y + a * y_stride * bytes, n_across - a, n_last, x_stride, y_stride,
                  bytes);
}

/* The next tile of a strip: rows of x, which are far apart, and lines of y. */
DSI_INLINE void fetch_tile(const char *x, const char *y, size_t n_across, size_t n_last,
                           size_t x_stride, size_t y_stride, size_t bytes)
{
    for (size_t b = 0; b < n_last; ++b) {
        _mm_prefetch(x + b * x_stride * bytes, _MM_HINT_T0);
    }
    for (size_t a = 0; a < n_across; ++a) {
        _mm_prefetch(y + a * y_stride * bytes, _MM_HINT_T0);
    }
}

/* All tiles along the last dim of one strip: item = place · n_tiles + tile of dim across. */
DSI_INLINE void copy_strip(const permute_job *job, size_t item, size_t bytes)
{
    const size_t n_last = job->dims[job->n_dims - 1];
    const size_t x_stride = job->x_strides[job->n_dims - 1];
    const size_t y_stride = job->y_strides[job->across];
    const size_t from = item % job->n_tiles * TILE;
    const size_t left = job->dims[job->across] - from;
    size_t x_at;
    size_t y_at;
    locate(job, item / job->n_tiles, job->across, &x_at, &y_at);
    const char *x = job->x + (x_at + from) * bytes;
    char *y = job->y + (y_at + from * y_stride) * bytes;
    const size_t n_across = left < TILE ? left : TILE;
    for (size_t b = 0; b < n_last; b += TILE) {
        const size_t n = n_last - b < TILE ? n_last - b : TILE;
        const size_t next = b + n;
        fetch_tile(x + next * x_stride * bytes, y + next * bytes, n_across,
                   n_last - next < TILE ? n_last - next : TILE, x_stride, y_stride, bytes);
        copy_tile(x + b * x_stride * bytes, y + b * bytes, n_across, n, x_stride, y_stride, bytes);
    }
}

static void copy_strips(const void *opaque, size_t first, size_t last, size_t block)
{
    const permute_job *job = opaque;
    (void)block;
    for (size_t item = first; item < last; ++item) {
        if (job->bytes == 2) {
            copy_strip(job, item, 2);
        } else if (job->bytes == 4) {
            copy_strip(job, item, 4);
        } else {
            copy_strip(job, item, job->bytes);
        }
    }
}

static permute_job permute_job_of(const ds_kernel_call *call)
{
    const dsi_permute_attrs *attrs = call->sig->attrs;
    const ds_shape *from = &call->in[0].meta.shape;
    const ds_shape *to = &call->out[0].meta.shape;
    permute_job job = {.x = call->in[0].data,
                       .y = call->out[0].data,
                       .n_dims = from->n_dims,
                       .bytes = ds_dtype_bytes(call->in[0].meta.dtype)};
    size_t strides[DS_MAX_DIMS];
    size_t x_stride = 1;
    size_t y_stride = 1;
    for (uint32_t d = from->n_dims; d-- > 0;) {
        strides[d] = x_stride;
        x_stride *= (size_t)from->dims[d];
        job.y_strides[d] = y_stride;
        y_stride *= (size_t)to->dims[d];
    }
    for (uint32_t d = 0; d < from->n_dims; ++d) {
        job.dims[d] = (size_t)to->dims[d];
        job.x_strides[d] = strides[attrs->order[d]];
        if (attrs->order[d] == (int64_t)from->n_dims - 1) {
            job.across = d;
        }
    }
    job.n_tiles = (job.dims[job.across] + TILE - 1) / TILE;
    return job;
}

static ds_status permute_run(const ds_kernel_call *call)
{
    const size_t count = tensor_count(&call->out[0]);
    if (count == 0) {
        return DS_OK;
    }
    if (call->in[0].meta.shape.n_dims == 0) {
        memcpy(call->out[0].data, call->in[0].data, ds_dtype_bytes(call->in[0].meta.dtype));
        return DS_OK;
    }
    const permute_job job = permute_job_of(call);
    const size_t n_last = job.dims[job.n_dims - 1];
    if (job.across == job.n_dims - 1) {
        const size_t n = count / n_last;
        for_rows(call->ctx, n, row_blocks(n, n_last, ELEMENT_GRAIN, 1024), copy_rows, &job);
    } else {
        const size_t n = count / n_last / job.dims[job.across] * job.n_tiles;
        const size_t strip = TILE * n_last;
        for_rows(call->ctx, n, row_blocks(n, strip, ELEMENT_GRAIN, 1024), copy_strips, &job);
    }
    return DS_OK;
}

static bool permute_supports(const ds_kernel_sig *sig)
{
    return sig->in[0].dtype != DS_DTYPE_NONE;
}

DSI_SIMD_KERNEL(permute, permute_supports, NULL, permute_run);
