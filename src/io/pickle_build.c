/* SPDX-License-Identifier: Apache-2.0 */
/* What the globals of a pickle give: tensors, dicts, tuples, numbers, records. Nothing is called.
 * See pickle_internal.h. */
#include "io/pickle_internal.h"

#include <stdio.h>
#include <string.h>

static ds_status fail_args(const dsi_pickle_machine *m, const dsi_pickle_global *g)
{
    char what[192];
    (void)snprintf(what, sizeof what, "'%.60s %.60s' has other arguments than torch writes",
                   g->module, g->name);
    return dsi_pickle_fail(m, DS_ERR_FORMAT, what);
}

/* ---- storages ---- */

ds_status dsi_pickle_persistent(dsi_pickle_machine *m, const dsi_pickle *id, dsi_pickle **value_out)
{
    const char *word = dsi_pickle_text(dsi_pickle_at(id, 0));
    const dsi_pickle *type = dsi_pickle_at(id, 1);
    const char *key = dsi_pickle_text(dsi_pickle_at(id, 2));
    int64_t count = 0;
    const uint8_t *data = NULL;
    size_t bytes = 0;
    if (!dsi_pickle_is(id, DSI_PICKLE_TUPLE) || dsi_pickle_count(id) != 5 || word == NULL ||
        strcmp(word, "storage") != 0 || !dsi_pickle_is(type, DSI_PICKLE_GLOBAL) || key == NULL ||
        !dsi_pickle_whole(dsi_pickle_at(id, 4), &count) || count < 0) {
        return dsi_pickle_fail(m, DS_ERR_FORMAT, "a persistent id is not that of a storage");
    }
    if (type->global->role != DSI_PICKLE_TYPE) {
        return fail_args(m, type->global);
    }
    if (m->source->find_storage == NULL ||
        !m->source->find_storage(m->source->user, key, &data, &bytes)) {
        return ds_fail(m->ctx, DS_ERR_FORMAT,
                       "%s: byte %zu: the storage '%.60s' is not in the file", m->source->path,
                       m->opcode, key);
    }
    if ((uint64_t)count > bytes / type->global->bytes ||
        (uint64_t)count * type->global->bytes != bytes) {
        return ds_fail(
            m->ctx, DS_ERR_FORMAT,
            "%s: byte %zu: the storage '%.60s' has %zu bytes, not those of %lld elements "
            "of %zu",
            m->source->path, m->opcode, key, bytes, (long long)count, type->global->bytes);
    }
    dsi_pickle *value = dsi_pickle_make(m, DSI_PICKLE_STORAGE);
    if (value == NULL) {
        return DS_ERR_NOMEM;
    }
    value->storage = (dsi_pickle_storage){type->global, data, count};
    *value_out = value;
    return DS_OK;
}

/* ---- tensors ---- */

/* Whether every element lies inside of the storage. Strides are not negative. */
static bool is_inside(const dsi_pickle_tensor *t)
{
    int64_t last = t->offset; /* the largest place of an element */
    bool empty = false;
    for (uint32_t i = 0; i < t->shape.n_dims; ++i) {
        int64_t reach = 0;
        empty = empty || t->shape.dims[i] == 0;
        if (__builtin_mul_overflow(t->shape.dims[i] > 0 ? t->shape.dims[i] - 1 : 0, t->strides[i],
                                   &reach) ||
            __builtin_add_overflow(last, reach, &last)) {
            return false;
        }
    }
    return empty ? t->offset <= t->storage->count : last < t->storage->count;
}

static ds_status read_shape(const dsi_pickle_machine *m, const dsi_pickle *sizes,
                            const dsi_pickle *strides, dsi_pickle_tensor *t)
{
    const size_t n = dsi_pickle_count(sizes);
    int64_t count = 1;
    if (!dsi_pickle_is(sizes, DSI_PICKLE_TUPLE) || !dsi_pickle_is(strides, DSI_PICKLE_TUPLE) ||
        dsi_pickle_count(strides) != n) {
        return dsi_pickle_fail(m, DS_ERR_FORMAT, "a tensor has not as many strides as extents");
    }
    if (n > DS_MAX_DIMS) {
        return dsi_pickle_fail(m, DS_ERR_UNSUPPORTED, "a tensor has more than 8 dims");
    }
    t->shape.n_dims = (uint32_t)n;
    for (size_t i = 0; i < n; ++i) {
        if (!dsi_pickle_whole(dsi_pickle_at(sizes, i), &t->shape.dims[i]) ||
            !dsi_pickle_whole(dsi_pickle_at(strides, i), &t->strides[i]) || t->shape.dims[i] < 0 ||
            t->strides[i] < 0) {
            return dsi_pickle_fail(m, DS_ERR_FORMAT,
                                   "a tensor has an extent or a stride that is no number >= 0");
        }
        t->strides[i] = t->shape.dims[i] > 1 ? t->strides[i] : 0; /* no step is ever made */
        if (__builtin_mul_overflow(count, t->shape.dims[i] > 0 ? t->shape.dims[i] : 1, &count)) {
            return dsi_pickle_fail(m, DS_ERR_FORMAT, "a tensor has more than 2^63 elements");
        }
    }
    /* Overlapping strides make more of a storage than it has: copies are bounded by this. */
    return ds_shape_count(t->shape) <= t->storage->count
               ? DS_OK
               : dsi_pickle_fail(m, DS_ERR_FORMAT, "a tensor has more elements than its storage");
}

static ds_status rebuild(dsi_pickle_machine *m, const dsi_pickle_global *g, const dsi_pickle *args,
                         dsi_pickle **value_out)
{
    const dsi_pickle *storage = dsi_pickle_at(args, 0);
    const size_t n = dsi_pickle_count(args);
    if (n < 6 || n > 7 || !dsi_pickle_is(storage, DSI_PICKLE_STORAGE)) {
        return fail_args(m, g);
    }
    dsi_pickle *value = dsi_pickle_make(m, DSI_PICKLE_TENSOR);
    dsi_pickle_tensor *t = dsi_arena_alloc(m->arena, sizeof *t);
    if (value == NULL || t == NULL) {
        return dsi_pickle_fail(m, DS_ERR_NOMEM, "no memory for a tensor");
    }
    t->storage = &storage->storage;
    if (!dsi_pickle_whole(dsi_pickle_at(args, 1), &t->offset) || t->offset < 0) {
        return dsi_pickle_fail(m, DS_ERR_FORMAT, "the offset of a tensor is no number >= 0");
    }
    DS_TRY(read_shape(m, dsi_pickle_at(args, 2), dsi_pickle_at(args, 3), t));
    if (!is_inside(t)) {
        return dsi_pickle_fail(m, DS_ERR_FORMAT, "a tensor reaches out of its storage");
    }
    value->tensor = t;
    *value_out = value;
    return DS_OK;
}

/* (rebuild, type, arguments, state): what rebuild gives. */
static ds_status typed(dsi_pickle_machine *m, const dsi_pickle_global *g, const dsi_pickle *args,
                       dsi_pickle **value_out)
{
    const dsi_pickle *function = dsi_pickle_at(args, 0);
    const dsi_pickle *inner = dsi_pickle_at(args, 2);
    if (!dsi_pickle_is(function, DSI_PICKLE_GLOBAL) || !dsi_pickle_is(inner, DSI_PICKLE_TUPLE) ||
        function->global->role != DSI_PICKLE_REBUILD) {
        return fail_args(m, g);
    }
    return rebuild(m, function->global, inner, value_out);
}

/* ---- others ---- */

/* () or a list of pairs. */
static ds_status ordered(dsi_pickle_machine *m, const dsi_pickle_global *g, const dsi_pickle *args,
                         dsi_pickle **value_out)
{
    const dsi_pickle *pairs = dsi_pickle_at(args, 0);
    dsi_pickle *dict = dsi_pickle_make(m, DSI_PICKLE_DICT);
    if (dict == NULL) {
        return DS_ERR_NOMEM;
    }
    if (dsi_pickle_count(args) > 1 || (pairs != NULL && !dsi_pickle_is(pairs, DSI_PICKLE_LIST))) {
        return fail_args(m, g);
    }
    for (size_t i = 0; i < dsi_pickle_count(pairs); ++i) {
        const dsi_pickle *pair = dsi_pickle_at(pairs, i);
        if (dsi_pickle_count(pair) != 2 || pair->kind == DSI_PICKLE_DICT) {
            return fail_args(m, g);
        }
        DS_TRY(dsi_pickle_append(m, dict, pair->list.items[0]));
        DS_TRY(dsi_pickle_append(m, dict, pair->list.items[1]));
    }
    *value_out = dict;
    return DS_OK;
}

/* The only argument, of this kind. */
static ds_status only(dsi_pickle_machine *m, const dsi_pickle_global *g, const dsi_pickle *args,
                      dsi_pickle_kind kind, dsi_pickle **value_out)
{
    if (dsi_pickle_count(args) != 1 || args->list.items[0]->kind != kind) {
        return fail_args(m, g);
    }
    *value_out = args->list.items[0];
    return DS_OK;
}

static ds_status record(dsi_pickle_machine *m, const dsi_pickle_global *g, dsi_pickle *args,
                        dsi_pickle **value_out)
{
    dsi_pickle *value = dsi_pickle_make(m, DSI_PICKLE_OBJECT);
    if (value == NULL) {
        return DS_ERR_NOMEM;
    }
    value->object.cls = g;
    value->object.args = args;
    *value_out = value;
    return DS_OK;
}

ds_status dsi_pickle_reduce(dsi_pickle_machine *m, const dsi_pickle *callee, dsi_pickle *args,
                            dsi_pickle **value_out)
{
    const dsi_pickle_global *g = callee->global;
    switch (g->role) {
    case DSI_PICKLE_REBUILD:
        return rebuild(m, g, args, value_out);
    case DSI_PICKLE_PARAMETER:
        if (dsi_pickle_count(args) == 3 && args->list.items[0]->kind == DSI_PICKLE_TENSOR) {
            *value_out = args->list.items[0];
            return DS_OK;
        }
        return fail_args(m, g);
    case DSI_PICKLE_TYPED:
        return typed(m, g, args, value_out);
    case DSI_PICKLE_ORDERED:
        return ordered(m, g, args, value_out);
    case DSI_PICKLE_SIZE:
        return only(m, g, args, DSI_PICKLE_TUPLE, value_out);
    case DSI_PICKLE_ENUM:
        return only(m, g, args, DSI_PICKLE_INT, value_out);
    case DSI_PICKLE_RECORD:
        return record(m, g, args, value_out);
    case DSI_PICKLE_TYPE:
    default:
        return fail_args(m, g);
    }
}

ds_status dsi_pickle_new(dsi_pickle_machine *m, const dsi_pickle *cls, dsi_pickle *args,
                         dsi_pickle **value_out)
{
    return cls->global->role == DSI_PICKLE_RECORD ? record(m, cls->global, args, value_out)
                                                  : fail_args(m, cls->global);
}

ds_status dsi_pickle_set_state(dsi_pickle_machine *m, dsi_pickle *object, dsi_pickle *state)
{
    if (object->kind == DSI_PICKLE_DICT) {
        return DS_OK; /* an OrderedDict's attributes, such as _metadata */
    }
    if (object->kind != DSI_PICKLE_OBJECT) {
        return dsi_pickle_fail(m, DS_ERR_FORMAT, "a state for something that takes none");
    }
    object->object.state = state;
    return DS_OK;
}
