/* SPDX-License-Identifier: Apache-2.0 */
/* See adapter_sum.h. */
#include "train/adapter_sum.h"

#include "io/convert.h"

#include <math.h>
#include <stdlib.h>

dsi_adapter_term *dsi_adapter_sum_add(dsi_adapter_sum *sum)
{
    dsi_adapter_term *term = calloc(1, sizeof *term);
    if (term != NULL && sum->last != NULL) {
        sum->last->next = term;
    } else if (term != NULL) {
        sum->first = term;
    }
    sum->last = term != NULL ? term : sum->last;
    return term;
}

/* Elements of one row from `column` on. */
static void add_row(const dsi_adapter_sum *s, const dsi_adapter_term *t, int64_t row,
                    int64_t column, int64_t n, float *out)
{
    const float *a = t->a + row / (s->rows / s->experts) * t->rank * s->columns;
    for (int64_t i = 0; i < n; ++i) {
        float sum = 0.0f;
        for (int64_t k = 0; k < t->rank; ++k) {
            sum += t->b[row * t->rank + k] * a[k * s->columns + column + i];
        }
        out[i] += (float)t->scale * sum;
    }
}

/* Of a stored row and column. */
static int64_t output_of(const dsi_adapter_sum *s, int64_t row, int64_t column)
{
    return s->turned ? column : row;
}

/* Elements [first, first + count) of what the terms from one on make of the weight. */
static void add_elements(const dsi_adapter_sum *s, const dsi_adapter_term *from, size_t first,
                         size_t count, float *out)
{
    const size_t width = ds_dtype_bytes(s->weight->meta.dtype);
    (void)dsi_convert(s->weight->meta.dtype, (const char *)s->weight->data + first * width,
                      DS_DTYPE_F32, out, count);
    for (const dsi_adapter_term *t = from; t != NULL; t = t->next) {
        for (size_t at = 0; at < count;) {
            const int64_t row = (int64_t)(first + at) / s->columns;
            const int64_t column = (int64_t)(first + at) % s->columns;
            const int64_t rest = s->columns - column;
            const int64_t part = rest < (int64_t)(count - at) ? rest : (int64_t)(count - at);
            add_row(s, t, row, column, part, out + at);
            at += (size_t)part;
        }
        for (size_t i = 0; i < count && t->lengths != NULL; ++i) {
            const int64_t at = (int64_t)(first + i);
            out[i] *= t->lengths[output_of(s, at / s->columns, at % s->columns)];
        }
    }
}

ds_status dsi_adapter_sum_lengths(ds_ctx *ctx, dsi_adapter_sum *s, float *lengths)
{
    const int64_t n = s->turned ? s->columns : s->rows;
    double *sums = calloc((size_t)n + 1, sizeof *sums);
    float *row = malloc(((size_t)s->columns + 1) * sizeof *row);
    for (int64_t r = 0; r < s->rows && sums != NULL && row != NULL; ++r) {
        add_elements(s, s->last, (size_t)(r * s->columns), (size_t)s->columns, row);
        for (int64_t c = 0; c < s->columns; ++c) {
            sums[output_of(s, r, c)] += (double)row[c] * (double)row[c];
        }
    }
    for (int64_t o = 0; o < n && sums != NULL; ++o) {
        lengths[o] = lengths[o] / (float)sqrt(sums[o]);
    }
    const bool room = sums != NULL && row != NULL;
    free(sums);
    free(row);
    s->last->lengths = lengths;
    return room ? DS_OK : ds_fail(ctx, DS_ERR_NOMEM, "no memory to merge an adapter");
}

ds_status dsi_adapter_sum_fill(void *sum, size_t offset, void *data, size_t n)
{
    const dsi_adapter_sum *s = sum;
    add_elements(s, s->first, offset / sizeof(float), n / sizeof(float), data);
    return DS_OK;
}

void dsi_adapter_sum_free(dsi_adapter_sum *s)
{
    for (dsi_adapter_term *t = s->first; t != NULL;) {
        dsi_adapter_term *next = t->next;
        free(t->a);
        free(t->b);
        free(t->lengths);
        free(t);
        t = next;
    }
    s->first = s->last = NULL;
}
