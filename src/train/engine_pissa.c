/* SPDX-License-Identifier: Apache-2.0 */
/* PiSSA (Meng et al., "PiSSA", 2024): A and B begin as the largest singular values and vectors of
 * the weight, which keeps the rest: W becomes W - scale·B·A. See engine.h.
 *
 * Every rank makes the same numbers from the whole weight. A folder of PEFT's holds what was
 * trained against the weights as they were: A over the first A, and B beside minus the first B, of
 * twice the rank, so that any model as it is stored takes it. The first ones are kept for that.
 */
#include "base/top_svd.h"
#include "model/adapter.h"
#include "op/ops.h"
#include "train/engine.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_BYTES = 1200 };

struct dsi_pissa {
    float **first; /* per cell: A or B as it began, NULL: none */
    uint32_t n;
};

/* By the layer's product in a forward pass, beside which those of A and B stand, which are not. */
bool dsi_engine_is_turned(const ds_engine *engine, const ds_cell_info *weight)
{
    const dsi_plan *plan = engine->train_plan;
    const size_t n = strlen(weight->name) - strlen(".weight");
    bool turned = weight->packed.transposed != 0;
    for (ds_phase phase = 0; phase < plan->phases.n; ++phase) {
        const bool forward = dsi_phase_is_forward(&plan->phases, phase);
        const uint32_t end = forward ? plan->phase_begin[phase + 1] : 0;
        for (uint32_t s = plan->phase_begin[phase]; s < end && !turned; ++s) {
            const dsi_step *step = &plan->steps[s];
            turned = weight->packed.format == DS_PACKING_NONE && step->op == &dsi_op_linear &&
                     ((const dsi_linear_attrs *)step->attrs)->transposed != 0 &&
                     step->scope != NULL && strlen(step->scope) == n &&
                     strncmp(step->scope, weight->name, n) == 0;
        }
    }
    return turned;
}

static ds_status no_memory(const ds_engine *engine)
{
    dsi_comm_abort(engine->comm, "out of memory for the begin of an adapter");
    return ds_fail(engine->ctx, DS_ERR_NOMEM, "no memory for the begin of an adapter");
}

/* One layer on its way: w (out,in) and as it is stored. */
typedef struct layer {
    ds_cell weight, a, b;
    int64_t out, in, rank;
    double scale;
    bool turned;
    float *w, *stored;
    double *u, *s, *v;
} layer;

static void turn(const layer *l, const float *from, float *to, bool back)
{
    for (int64_t o = 0; o < l->out; ++o) {
        for (int64_t i = 0; i < l->in; ++i) {
            const int64_t plain = o * l->in + i;
            const int64_t at = l->turned ? i * l->out + o : plain;
            to[back ? at : plain] = from[back ? plain : at];
        }
    }
}

/* A (rank,in) and B (out,rank), of which scale·B·A is taken out of w. */
static void split(const layer *l, float *a, float *b)
{
    for (int64_t r = 0; r < l->rank; ++r) {
        const double root = sqrt(l->s[r] / l->scale);
        for (int64_t i = 0; i < l->in; ++i) {
            a[r * l->in + i] = (float)(root * l->v[r * l->in + i]);
        }
        for (int64_t o = 0; o < l->out; ++o) {
            b[o * l->rank + r] = (float)(root * l->u[r * l->out + o]);
        }
    }
    for (int64_t o = 0; o < l->out; ++o) {
        for (int64_t i = 0; i < l->in; ++i) {
            float sum = 0.0f;
            for (int64_t r = 0; r < l->rank; ++r) {
                sum += b[o * l->rank + r] * a[r * l->in + i];
            }
            l->w[o * l->in + i] -= (float)l->scale * sum;
        }
    }
}

/* Collective. */
static ds_status begin(ds_engine *engine, layer *l)
{
    float **first = engine->pissa->first;
    const size_t count = (size_t)(l->out * l->in), rank = (size_t)l->rank;
    const char *name = ds_cells_get(engine->cells, l->weight)->name;
    l->w = malloc(count * sizeof *l->w + 1);
    l->stored = malloc(count * sizeof *l->stored + 1);
    l->u = malloc((rank * (size_t)l->out + 1) * sizeof *l->u);
    l->v = malloc((rank * (size_t)l->in + 1) * sizeof *l->v);
    l->s = malloc((rank + 1) * sizeof *l->s);
    first[l->a] = malloc((rank * (size_t)l->in + 1) * sizeof **first);
    first[l->b] = malloc((rank * (size_t)l->out + 1) * sizeof **first);
    if (l->w == NULL || l->stored == NULL || l->u == NULL || l->v == NULL || l->s == NULL ||
        first[l->a] == NULL || first[l->b] == NULL) {
        return no_memory(engine);
    }
    DS_TRY(ds_engine_get(engine, DS_CELL_PARAM, name, l->stored, count));
    turn(l, l->stored, l->w, false);
    DS_TRY(dsi_top_svd(engine->ctx, l->w, l->out, l->in, l->rank, l->u, l->s, l->v));
    split(l, first[l->a], first[l->b]);
    turn(l, l->w, l->stored, true);
    DS_TRY(dsi_engine_put(engine, l->weight, 0, l->out * l->in, l->stored, DS_DTYPE_F32));
    DS_TRY(dsi_engine_put(engine, l->a, 0, l->rank * l->in, first[l->a], DS_DTYPE_F32));
    return dsi_engine_put(engine, l->b, 0, l->rank * l->out, first[l->b], DS_DTYPE_F32);
}

/* The layer of a cell lora_A. */
static ds_status begin_cell(ds_engine *engine, ds_cell a)
{
    static const char end[] = ".lora_A.weight";
    const ds_cell_info *own = ds_cells_get(engine->cells, a);
    const ds_cell_info *weight = ds_cells_get(engine->cells, own->of);
    char name[NAME_BYTES];
    dsi_adapter_layer how;
    bool on = false;
    const int n = (int)(strlen(own->name) - (sizeof end - 1));
    layer l = {.weight = own->of,
               .a = a,
               .rank = own->meta.shape.dims[0],
               .in = own->meta.shape.dims[1],
               .turned = dsi_engine_is_turned(engine, weight)};
    (void)snprintf(name, sizeof name, "%.*s", n, own->name);
    DS_TRY(dsi_adapter_match(engine->spec.train.adapter, name, false, &on, &how));
    l.scale = how.scale;
    (void)snprintf(name, sizeof name, "%.*s.lora_B.weight", n, own->name);
    l.b = ds_cells_find(engine->cells, DS_CELL_PARAM, name);
    l.out = ds_cells_get(engine->cells, l.b)->meta.shape.dims[0];
    if (l.rank > l.in || l.rank > l.out) {
        return ds_fail(engine->ctx, DS_ERR_ARG,
                       "PiSSA of rank %lld: %s is %lld x %lld and has fewer singular values",
                       (long long)l.rank, weight->name, (long long)l.out, (long long)l.in);
    }
    const ds_status status = begin(engine, &l);
    free(l.w);
    free(l.stored);
    free(l.u);
    free(l.v);
    free(l.s);
    return status;
}

ds_status dsi_engine_begin_pissa(ds_engine *engine)
{
    const ds_adapter *adapter = engine->spec.train.adapter;
    const uint32_t n = ds_cells_count(engine->cells);
    if (adapter == NULL || !adapter->pissa) {
        return DS_OK;
    }
    engine->pissa = calloc(1, sizeof *engine->pissa);
    if (engine->pissa == NULL ||
        (engine->pissa->first = calloc((size_t)n + 1, sizeof *engine->pissa->first)) == NULL) {
        return no_memory(engine);
    }
    engine->pissa->n = n;
    for (ds_cell c = 0; c < n; ++c) {
        const ds_cell_info *cell = ds_cells_get(engine->cells, c);
        if (dsi_adapter_has(adapter, cell) && cell->of != DS_NONE &&
            strstr(cell->name, ".lora_A.weight") != NULL) {
            DS_TRY(begin_cell(engine, c));
        }
    }
    return DS_OK;
}

bool dsi_engine_join_first(const ds_engine *engine, ds_cell c, ds_shape *shape, float *data)
{
    const float *first = engine->pissa != NULL ? engine->pissa->first[c] : NULL;
    const int64_t rows = shape->dims[0], columns = shape->dims[1];
    if (first == NULL) {
        return false;
    }
    if (strstr(ds_cells_get(engine->cells, c)->name, ".lora_A.weight") != NULL) {
        memcpy(data + rows * columns, first, (size_t)(rows * columns) * sizeof *data);
        shape->dims[0] = 2 * rows;
        return true;
    }
    for (int64_t r = rows; r-- > 0;) { /* from the end, since rows become longer in place */
        for (int64_t k = columns; k-- > 0;) {
            const float own = data[r * columns + k];
            data[r * 2 * columns + columns + k] = -first[r * columns + k];
            data[r * 2 * columns + k] = own;
        }
    }
    shape->dims[1] = 2 * columns;
    return true;
}

void dsi_engine_end_pissa(ds_engine *engine)
{
    for (uint32_t c = 0; engine->pissa != NULL && c < engine->pissa->n; ++c) {
        free(engine->pissa->first[c]);
    }
    if (engine->pissa != NULL) {
        free(engine->pissa->first);
    }
    free(engine->pissa);
    engine->pissa = NULL;
}
