/* SPDX-License-Identifier: Apache-2.0 */
/* Runs of elements. See extent.h. */
#include "io/extent.h"

#include "io/convert.h"
#include <stdlib.h>
#include <string.h>

/* Walks a part as runs [begin, begin + length) of row-major elements, ascending. */
typedef struct runs {
    int64_t begin, length; /* the present run */
    int64_t at;            /* elements of the part before it */
    bool done;
    uint32_t n_outer; /* dims that are walked; the rest is one run */
    int64_t index[DS_MAX_DIMS];
    int64_t stride[DS_MAX_DIMS];
    const ds_extent *extent;
} runs;

ds_extent ds_extent_whole(ds_shape shape)
{
    return ds_extent_flat(0, ds_shape_count(shape));
}

ds_extent ds_extent_flat(int64_t begin, int64_t count)
{
    return (ds_extent){.flat = true, .begin = begin, .count = count};
}

ds_extent ds_extent_box(uint32_t n_dims, const int64_t *offset, const int64_t *lengths)
{
    ds_extent extent = {0};
    for (uint32_t i = 0; i < n_dims && i < DS_MAX_DIMS; ++i) {
        extent.offset[i] = offset[i];
        extent.lengths[i] = lengths[i];
    }
    return extent;
}

int64_t ds_extent_count(const ds_extent *extent, ds_shape shape)
{
    return extent->flat ? extent->count
                        : ds_shape_count(ds_shape_of(shape.n_dims, extent->lengths));
}

bool dsi_extent_is_inside(const ds_extent *extent, ds_shape shape)
{
    if (extent->flat) {
        const int64_t total = ds_shape_count(shape);
        return extent->begin >= 0 && extent->count >= 0 && extent->begin <= total &&
               extent->count <= total - extent->begin;
    }
    for (uint32_t i = 0; i < shape.n_dims; ++i) {
        if (extent->offset[i] < 0 || extent->lengths[i] < 0 || extent->offset[i] > shape.dims[i] ||
            extent->lengths[i] > shape.dims[i] - extent->offset[i]) {
            return false;
        }
    }
    return true;
}

static runs start_runs(const ds_extent *extent, ds_shape shape)
{
    runs r = {.extent = extent, .done = ds_extent_count(extent, shape) == 0};
    if (extent->flat) {
        r.begin = extent->begin;
        r.length = extent->count;
        return r;
    }
    int64_t stride = 1;
    for (uint32_t i = shape.n_dims; i-- > 0;) {
        r.stride[i] = stride;
        stride *= shape.dims[i] > 0 ? shape.dims[i] : 1;
    }
    r.length = 1;
    r.n_outer = shape.n_dims;
    bool whole = true; /* the dims after the present one are covered in full */
    while (r.n_outer > 0 && whole) {
        const uint32_t d = --r.n_outer;
        r.length *= extent->lengths[d];
        whole = extent->lengths[d] == shape.dims[d];
    }
    for (uint32_t i = 0; i < shape.n_dims; ++i) {
        r.begin += extent->offset[i] * r.stride[i];
    }
    return r;
}

static void next_run(runs *r)
{
    r->at += r->length;
    for (uint32_t i = r->n_outer; i-- > 0;) {
        r->begin += r->stride[i];
        if (++r->index[i] < r->extent->lengths[i]) {
            return;
        }
        r->begin -= r->index[i] * r->stride[i];
        r->index[i] = 0;
    }
    r->done = true;
}

/* From the start to the run that holds `element`, or to the last before it or the first after it,
 * in as many steps as there are dims. */
static void seek(runs *r, int64_t element)
{
    if (r->done || r->n_outer == 0 || r->begin + r->length > element) {
        return;
    }
    bool exact = true;
    bool past =
        false; /* the element lies behind the part in a dim: stand on the last of the rest */
    int64_t nth = 0;
    for (uint32_t i = 0; i < r->n_outer; ++i) {
        const int64_t length = r->extent->lengths[i];
        const int64_t index = element / r->stride[i] - r->extent->offset[i];
        element %= r->stride[i];
        past = exact ? index >= length : past;
        exact = exact && index >= 0 && index < length;
        r->index[i] = exact ? index : past ? length - 1 : 0;
        r->begin += r->index[i] * r->stride[i];
        nth = nth * length + r->index[i];
    }
    r->at = nth * r->length;
}

int64_t dsi_extent_copy_run(dsi_extent_copy *copy)
{
    runs from = start_runs(copy->from, copy->shape);
    runs to = start_runs(copy->to, copy->shape);
    int64_t copied = 0;
    if (!from.done && !to.done) {
        seek(&from, to.begin);
        seek(&to, from.begin);
    }
    while (!from.done && !to.done) {
        const int64_t low = from.begin > to.begin ? from.begin : to.begin;
        const int64_t from_end = from.begin + from.length;
        const int64_t to_end = to.begin + to.length;
        const int64_t high = from_end < to_end ? from_end : to_end;
        if (low < high) {
            copied += high - low;
            if (copy->out != NULL) {
                const size_t in_at = (size_t)(from.at + low - from.begin);
                const size_t out_at = (size_t)(to.at + low - to.begin);
                copy->overflows += dsi_convert(
                    copy->in_dtype, (const char *)copy->in + in_at * ds_dtype_bytes(copy->in_dtype),
                    copy->out_dtype, (char *)copy->out + out_at * ds_dtype_bytes(copy->out_dtype),
                    (size_t)(high - low));
            }
        }
        if (from_end <= to_end) {
            next_run(&from);
        }
        if (to_end <= from_end) {
            next_run(&to);
        }
    }
    return copied;
}

void dsi_extent_span(const ds_extent *extent, ds_shape shape, int64_t *first_out, int64_t *end_out)
{
    const runs r = start_runs(extent, shape);
    *first_out = r.begin;
    *end_out = r.begin + (r.done ? 0 : r.length);
    for (uint32_t i = 0; i < r.n_outer && !r.done; ++i) {
        *end_out += (extent->lengths[i] - 1) * r.stride[i];
    }
}

/* Both have elements, and their spans meet. */
static bool meet(const ds_extent *a, const ds_extent *b, ds_shape shape)
{
    if (!a->flat && !b->flat) {
        for (uint32_t i = 0; i < shape.n_dims; ++i) {
            if (a->offset[i] + a->lengths[i] <= b->offset[i] ||
                b->offset[i] + b->lengths[i] <= a->offset[i]) {
                return false;
            }
        }
        return true;
    }
    dsi_extent_copy count = {.shape = shape, .from = a, .to = b};
    return dsi_extent_copy_run(&count) > 0;
}

typedef struct spanned {
    int64_t first, end;
    const ds_extent *extent;
} spanned;

static int compare_spans(const void *a, const void *b)
{
    const spanned *x = a;
    const spanned *y = b;
    return (x->first > y->first) - (x->first < y->first);
}

/* Whether two of the parts, sorted by their first element, share one. Flat parts are compared with
 * their neighbour only. */
static bool any_meet(const spanned *parts, size_t n, ds_shape shape)
{
    for (size_t i = 0; i < n; ++i) {
        for (size_t k = i + 1; k < n && parts[k].first < parts[i].end; ++k) {
            if (meet(parts[i].extent, parts[k].extent, shape)) {
                return true;
            }
        }
    }
    return false;
}

ds_status dsi_extent_cover(const ds_extent *extents, size_t n, ds_shape shape, dsi_cover *cover_out)
{
    spanned *parts = calloc(n + 1, sizeof *parts);
    int64_t sum = 0;
    size_t n_parts = 0;
    if (parts == NULL) {
        return DS_ERR_NOMEM;
    }
    for (size_t i = 0; i < n; ++i) {
        const int64_t count = ds_extent_count(&extents[i], shape);
        if (count > 0) {
            spanned *p = &parts[n_parts++];
            p->extent = &extents[i];
            dsi_extent_span(p->extent, shape, &p->first, &p->end);
        }
        sum = count <= INT64_MAX - sum ? sum + count : INT64_MAX;
    }
    if (n_parts > 1) {
        qsort(parts, n_parts, sizeof *parts, compare_spans);
    }
    *cover_out = any_meet(parts, n_parts, shape) ? DSI_COVER_TWICE
                 : sum == ds_shape_count(shape)  ? DSI_COVER_EXACT
                                                 : DSI_COVER_GAP;
    free(parts);
    return DS_OK;
}
