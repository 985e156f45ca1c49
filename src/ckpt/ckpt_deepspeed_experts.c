/* SPDX-License-Identifier: Apache-2.0 */
/* Experts of DeepSpeed (deepspeed.moe) at ZeRO 1 and 2; those of AutoEP in universal folders, where
 * a parameter holds all of them. See ckpt_deepspeed.h.
 *
 * Expert parallelism of n on R ranks: rank r has the experts of place r % n, and the R / n ranks of
 * one place cut the optimizer's groups of experts among each other (partition_count by group).
 * param_shapes names a rank's own experts from 0 on; among all they are place * own + i. Weights in
 * layer_L_expert_E_mp_rank_XX_model_states.pt are those in the training dtype, whose masters the
 * optimizer's files have.
 */
#include "ckpt/ckpt_deepspeed.h"

#include <deepspeed/context.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_BYTES = 512, MOST_EXPERTS = 65536 };

static const char own_experts[] = ".deepspeed_experts.";
static const char experts[] = ".experts.";

ds_status dsi_deepspeed_expert_ranks(const dsi_deepspeed *d, int64_t g, uint32_t *n_out)
{
    const dsi_pickle *count = dsi_pickle_get(d->states[0], "partition_count");
    const dsi_pickle *root = d->models[0].root;
    const dsi_pickle *config = dsi_pickle_get(root, "ds_config");
    const dsi_pickle *swapped = dsi_pickle_get(config, "use_data_before_expert_parallelism");
    const dsi_pickle *autoep = dsi_pickle_get(root, "ds_autoep_layers");
    int64_t n = d->n_ranks;
    *n_out = 1;
    if (!d->experts) {
        return DS_OK;
    }
    if (dsi_pickle_is(swapped, DSI_PICKLE_BOOL) && swapped->truth) {
        return ds_fail(d->ctx, DS_ERR_UNSUPPORTED,
                       "%s: experts with use_data_before_expert_parallelism are not read",
                       d->models[0].path);
    }
    if (autoep != NULL && !dsi_pickle_is(autoep, DSI_PICKLE_NONE)) {
        return ds_fail(d->ctx, DS_ERR_UNSUPPORTED,
                       "%s: experts of expert_parallel (AutoEP, ds_autoep_layers) are not read; "
                       "those of deepspeed.moe are",
                       d->models[0].path);
    }
    if (dsi_pickle_is(count, DSI_PICKLE_LIST) &&
        (!dsi_pickle_whole(dsi_pickle_at(count, (size_t)g), &n) || n < 1 ||
         n > (int64_t)d->n_ranks || d->n_ranks % n != 0)) {
        return ds_fail(d->ctx, DS_ERR_FORMAT,
                       "%s: partition_count of group %lld is no part of %u ranks",
                       d->optims[0].path, (long long)g, d->n_ranks);
    }
    *n_out = d->n_ranks / (uint32_t)n;
    return DS_OK;
}

/* The number behind the marker in a name, and where it begins and ends; -1. */
static long number_in(const char *name, const char *marker, const char **begin_out, char **end_out)
{
    const char *at = strstr(name, marker);
    if (at == NULL) {
        return -1;
    }
    *begin_out = at + strlen(marker);
    if (**begin_out < '0' || **begin_out > '9') {
        return -1;
    }
    const long number = strtol(*begin_out, end_out, 10);
    return number < MOST_EXPERTS && **end_out == '.' ? number : -1;
}

ds_status dsi_deepspeed_expert_name(const dsi_deepspeed *d, const dsi_pickle *shapes,
                                    const char **name, uint32_t rank)
{
    const char *begin = NULL;
    char *end = NULL;
    char text[NAME_BYTES];
    const long own = d->experts ? number_in(*name, own_experts, &begin, &end) : -1;
    long n = 0; /* experts of a rank: those of which the group has this parameter */
    bool more = own >= 0 && strlen(*name) < NAME_BYTES - 8;
    if (rank > 0 && !more) {
        return ds_fail(d->ctx, DS_ERR_UNSUPPORTED,
                       "%s: '%.160s' differs between ranks and is no expert of deepspeed.moe "
                       "(its name has no deepspeed_experts.N)",
                       d->models[0].path, *name);
    }
    while (rank > 0 && more) {
        (void)snprintf(text, sizeof text, "%.*s%ld%s", (int)(begin - *name), *name, n, end);
        more = dsi_pickle_get(shapes, text) != NULL;
        n += more;
    }
    if (rank > 0) {
        (void)snprintf(text, sizeof text, "%.*s%ld%s", (int)(begin - *name), *name,
                       own + (long)rank * n, end);
        *name = dsi_arena_strdup(d->m->arena, text);
    }
    return *name != NULL ? DS_OK : ds_fail(d->ctx, DS_ERR_NOMEM, "no memory to read %s", d->folder);
}

ds_status dsi_deepspeed_expert_of(const dsi_deepspeed *d, dsi_arena *arena, const char *name,
                                  int64_t expert, const char **name_out)
{
    const char *leaf = strrchr(name, '.');
    char text[NAME_BYTES];
    const int before = leaf != NULL ? (int)(leaf - name) : 0;
    const int tail = (int)sizeof experts - 2; /* without the dot behind it */
    if (before < tail || memcmp(leaf - tail, experts, (size_t)tail) != 0 ||
        strlen(name) >= NAME_BYTES - 8 || expert >= MOST_EXPERTS) {
        return ds_fail(d->ctx, DS_ERR_UNSUPPORTED,
                       "%s: '%.160s' has is_expert_param, and is none of AutoEP's "
                       "(experts.w1, w2, w3)",
                       d->folder, name);
    }
    (void)snprintf(text, sizeof text, "%.*s.%lld%s", before, name, (long long)expert, leaf);
    *name_out = dsi_arena_strdup(arena, text);
    return *name_out != NULL ? DS_OK
                             : ds_fail(d->ctx, DS_ERR_NOMEM, "no memory to read %s", d->folder);
}

/* ---- stacked ---- */

/* A tensor by what it is without its expert's number. */
typedef struct place {
    const char *key; /* the name with * */
    const char *kind;
    long expert; /* -1: none */
    size_t tensor;
} place;

static int compare_places(const void *a, const void *b)
{
    const place *x = a;
    const place *y = b;
    const int by_key = strcmp(x->key, y->key);
    const int by_kind = by_key != 0 ? by_key : strcmp(x->kind, y->kind);
    return by_kind != 0 ? by_kind : (x->expert > y->expert) - (x->expert < y->expert);
}

static ds_status find_places(dsi_deepspeed *d, place *places)
{
    for (size_t i = 0; i < d->m->n_tensors; ++i) {
        const ds_checkpoint_tensor *t = &d->m->tensors[i];
        const char *begin = NULL;
        char *end = NULL;
        char text[NAME_BYTES];
        places[i] = (place){t->name, t->kind, number_in(t->name, experts, &begin, &end), i};
        if (places[i].expert >= 0 && strlen(t->name) < NAME_BYTES) {
            (void)snprintf(text, sizeof text, "%.*s*%s", (int)(begin - t->name), t->name, end);
            places[i].key = dsi_arena_strdup(d->m->arena, text);
        }
        if (places[i].key == NULL) {
            return ds_fail(d->ctx, DS_ERR_NOMEM, "no memory to read %s", d->folder);
        }
    }
    qsort(places, d->m->n_tensors, sizeof *places, compare_places);
    return DS_OK;
}

/* A part of the newest tensor, which keeps the name that the module has for it. */
static ds_status part_of(dsi_deepspeed *d, const dsi_ckpt_slice *s, const ds_extent *extent)
{
    DS_TRY(dsi_deepspeed_part(d, s->shard, extent, s->stored->data));
    d->m->slices[d->m->n_slices - 1].entry = s->entry;
    return DS_OK;
}

/* n experts, one behind the other, as one tensor. */
static ds_status stack(dsi_deepspeed *d, const ds_checkpoint_tensor *from,
                       const dsi_ckpt_slice *slices, const place *places, size_t n)
{
    const ds_checkpoint_tensor *first = &from[places[0].tensor];
    ds_meta meta = {first->meta.dtype, {.n_dims = first->meta.shape.n_dims + 1}};
    const int64_t count = ds_shape_count(first->meta.shape);
    if (meta.shape.n_dims > DS_MAX_DIMS) {
        return ds_fail(d->ctx, DS_ERR_LIMIT, "%s: %s has too many dims", d->folder, first->name);
    }
    meta.shape.dims[0] = (int64_t)n;
    memcpy(&meta.shape.dims[1], first->meta.shape.dims,
           first->meta.shape.n_dims * sizeof meta.shape.dims[0]);
    DS_TRY(dsi_deepspeed_tensor_of(d, first->kind, places[0].key, meta));
    for (size_t e = 0; e < n; ++e) {
        const ds_checkpoint_tensor *t = &from[places[e].tensor];
        if (places[e].expert != (long)e || t->meta.dtype != meta.dtype ||
            !ds_shape_equal(t->meta.shape, first->meta.shape)) {
            return ds_fail(d->ctx, DS_ERR_FORMAT,
                           "%s: %s is not that of expert %zu, or not of the shape of the first",
                           d->folder, t->name, e);
        }
        for (uint32_t k = 0; k < t->n_slices; ++k) {
            const dsi_ckpt_slice *s = &slices[t->first_slice + k];
            const ds_extent extent =
                ds_extent_flat((int64_t)e * count + s->extent.begin, s->extent.count);
            DS_TRY(part_of(d, s, &extent));
        }
    }
    return dsi_deepspeed_end_tensor(d);
}

static ds_status keep(dsi_deepspeed *d, const ds_checkpoint_tensor *t, const dsi_ckpt_slice *slices)
{
    DS_TRY(dsi_deepspeed_tensor_of(d, t->kind, t->name, t->meta));
    for (uint32_t k = 0; k < t->n_slices; ++k) {
        const dsi_ckpt_slice *s = &slices[t->first_slice + k];
        DS_TRY(part_of(d, s, &s->extent));
    }
    return dsi_deepspeed_end_tensor(d);
}

ds_status dsi_deepspeed_stack(dsi_deepspeed *d)
{
    dsi_ckpt_manifest *m = d->m;
    const size_t n = m->n_tensors;
    const ds_checkpoint_tensor *from = m->tensors;
    const dsi_ckpt_slice *slices = m->slices;
    place *places = dsi_arena_array(m->arena, n + 1, sizeof *places);
    if (places == NULL) {
        return ds_fail(d->ctx, DS_ERR_NOMEM, "no memory to read %s", d->folder);
    }
    DS_TRY(find_places(d, places));
    m->tensors = NULL;
    m->slices = NULL;
    m->n_tensors = m->n_slices = 0;
    d->room_tensors = d->room_slices = 0;
    for (size_t i = 0; i < n;) {
        size_t end = i + 1;
        while (end < n && places[i].expert >= 0 && strcmp(places[end].key, places[i].key) == 0 &&
               strcmp(places[end].kind, places[i].kind) == 0) {
            ++end;
        }
        DS_TRY(places[i].expert < 0 ? keep(d, &from[places[i].tensor], slices)
                                    : stack(d, from, slices, &places[i], end - i));
        i = end;
    }
    return DS_OK;
}
