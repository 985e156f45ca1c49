/* SPDX-License-Identifier: Apache-2.0 */
/* Which tensors share a collective. See localize_impl.h. */
#include "place/localize_impl.h"

#include <stdlib.h>

int64_t dsi_bucket_next(dsi_bucket *bucket, int64_t count, ds_dtype dtype, int64_t limit)
{
    if (bucket->id < 0 || dtype != bucket->dtype || count > limit - bucket->fill) {
        bucket->id = bucket->n++;
        bucket->fill = 0;
        bucket->dtype = dtype;
    }
    bucket->fill += count;
    return bucket->id;
}

void dsi_bucket_close(dsi_bucket *bucket)
{
    bucket->dtype = DS_DTYPE_NONE;
}

ds_status dsi_bucket_number(dsi_localizing *l, int64_t bucket, const ds_op *op, ds_dtype dtype,
                            dsi_comm_attrs *attrs)
{
    bool taken = false; /* the bucket's own number */
    attrs->bucket = bucket;
    if (bucket < 0) {
        return DS_OK;
    }
    for (uint32_t i = 0; i < l->n_uses; ++i) {
        const dsi_bucket_use *use = &l->uses[i];
        if (use->bucket == bucket && use->op == op && use->axes == attrs->axes &&
            use->factor == attrs->factor && use->dtype == dtype) {
            attrs->bucket = use->id;
            return DS_OK;
        }
        taken = taken || use->bucket == bucket;
    }
    dsi_bucket_use *uses = dsi_graph_grow(l->uses, &l->uses_capacity, l->n_uses + 1, sizeof *uses);
    if (uses == NULL) {
        return ds_fail(l->r.from->ctx, DS_ERR_NOMEM, "no memory to place the graph");
    }
    l->uses = uses;
    attrs->bucket = taken ? l->bucket.n++ : bucket;
    l->uses[l->n_uses++] =
        (dsi_bucket_use){bucket, attrs->bucket, op, attrs->axes, attrs->factor, dtype};
    return DS_OK;
}

typedef struct arrival {
    ds_node made_by; /* of the gradient */
    ds_node node;    /* that completes it */
    ds_meta meta;
} arrival;

static int by_arrival(const void *a, const void *b)
{
    const arrival *x = a;
    const arrival *y = b;
    if (x->made_by != y->made_by) {
        return x->made_by < y->made_by ? -1 : 1;
    }
    return x->node < y->node ? -1 : 1;
}

ds_status dsi_bucket_gradients(dsi_localizing *l)
{
    const ds_graph *g = l->r.from;
    arrival *arrivals = calloc((size_t)g->n_nodes + 1, sizeof *arrivals);
    uint32_t n = 0;
    if (arrivals == NULL) {
        return ds_fail(g->ctx, DS_ERR_NOMEM, "no memory to place the graph");
    }
    for (ds_node i = 0; i < g->n_nodes; ++i) {
        const dsi_node_info *node = &g->nodes[i];
        const uint32_t at = dsi_completed_input(g, node);
        if (at < node->n_in) {
            const dsi_value_info *gradient = &g->values[dsi_node_in(g, node)[at]];
            arrivals[n++] = (arrival){gradient->producer, i, gradient->meta};
        }
    }
    qsort(arrivals, n, sizeof *arrivals, by_arrival);
    for (uint32_t i = 0; i < n; ++i) {
        const ds_meta meta = arrivals[i].meta;
        l->bucket_of[arrivals[i].node] = dsi_bucket_next(&l->bucket, ds_shape_count(meta.shape),
                                                         meta.dtype, l->params->reduce_bucket);
    }
    dsi_bucket_close(&l->bucket);
    free(arrivals);
    return DS_OK;
}
