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

static void copy_rows(const void *opaque, size_t first, size_t last, size_t block)
{
    const permute_job *job = opaque;
    const size_t run = job->dims[job->n_dims - 1] * job->bytes;
    (void)block;
    for (size_t row = first; row < last; ++row) {
        size_t x_at;
        size_t y_at;
        locate(job, row, DS_MAX_DIMS, &x_at, &y_at);
        memcpy(job->y + y_at * job->bytes, job->x + x_at * job->bytes, run);
    }
}

DSI_INLINE void copy_tile(const char *x, char *y, size_t n_across, size_t n_last, size_t x_stride,
                          size_t y_stride, size_t bytes)
{
    for (size_t a = 0; a < n_across; ++a) {
        for (size_t b = 0; b < n_last; ++b) {
            memcpy(y + (a * y_stride + b) * bytes, x + (b * x_stride + a) * bytes, bytes);
        }
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
    for (size_t b = 0; b < n_last; b += TILE) {
        copy_tile(x + b * x_stride * bytes, y + b * bytes, left < TILE ? left : TILE,
                  n_last - b < TILE ? n_last - b : TILE, x_stride, y_stride, bytes);
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
