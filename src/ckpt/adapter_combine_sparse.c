/* SPDX-License-Identifier: Apache-2.0 */
/* Sums of which a part of the elements stays: PEFT's ways "magnitude_prune", "ties", "dare_linear"
 * and "dare_ties" of add_weighted_adapter (utils/merge_utils.py). See adapter_combiner.h.
 *
 * All in fp32 and in the order of the adapters, as there. Where elements of one magnitude compete
 * for the last places, the first ones stay; torch does not say which. Where any may stay, PEFT
 * draws them from torch's generator, and here a keyed number says it: as many, but others.
 */
#include "base/rng.h"
#include "ckpt/adapter_combiner.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

bool dsi_combine_is_sparse(ds_adapter_combination way)
{
    return way >= DS_ADAPTER_TIES && way <= DS_ADAPTER_MAGNITUDE_PRUNE;
}

static bool draws(ds_adapter_combination way)
{
    return way == DS_ADAPTER_DARE_LINEAR || way == DS_ADAPTER_DARE_TIES;
}

static int compare_magnitudes(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;
    return (x < y) - (x > y); /* the largest first */
}

/* The n·density elements of the largest magnitude stay. room: n. */
static void keep_largest(float *x, int64_t n, double density, float *room)
{
    const int64_t most = (int64_t)(density * (double)n);
    int64_t above = 0;
    for (int64_t i = 0; i < n; ++i) {
        room[i] = fabsf(x[i]);
    }
    qsort(room, (size_t)n, sizeof *room, compare_magnitudes);
    const float least = most > 0 ? room[most - 1] : INFINITY;
    for (int64_t i = 0; i < n; ++i) {
        above += fabsf(x[i]) > least;
    }
    int64_t left = most - above; /* of those that are just as large */
    for (int64_t i = 0; i < n; ++i) {
        const float size = fabsf(x[i]);
        const bool stays = size > least || (size == least && left-- > 0);
        x[i] = stays ? x[i] : 0.0f;
    }
}

/* Each element stays with the chance `density`, and grows by as much as others leave. */
static void keep_any(float *x, int64_t n, double density, uint64_t seed, uint32_t site,
                     uint32_t adapter)
{
    for (int64_t i = 0; i < n; ++i) {
        const double word = (double)dsi_rng_u32(seed, site, adapter, (uint64_t)i);
        x[i] = word < density * 0x1p32 ? x[i] / (float)density : 0.0f;
    }
}

static float sign_of(float x)
{
    return (float)((x > 0.0f) - (x < 0.0f));
}

/* What the adapters' elements become together. signs: only those of one sign, and their mean. */
static float element(const dsi_combiner *c, const dsi_combine_part *parts, uint32_t n, int64_t i,
                     bool signs)
{
    const bool counts = c->p->majority == DS_MAJORITY_FREQUENCY;
    float votes = 0.0f, sum = 0.0f, kept = 0.0f;
    for (uint32_t k = 0; k < n; ++k) {
        votes += counts ? sign_of(parts[k].data[i]) : parts[k].data[i];
    }
    const float sign = votes >= 0.0f ? 1.0f : -1.0f;
    for (uint32_t k = 0; k < n; ++k) {
        const bool stays = !signs || sign_of(parts[k].data[i]) == sign;
        sum += stays ? parts[k].weight * parts[k].data[i] : 0.0f;
        kept += stays ? 1.0f : 0.0f;
    }
    return signs ? sum / fmaxf(kept, 1.0f) : sum;
}

ds_status dsi_combine_sparse(const dsi_combiner *c, const char *name, dsi_combine_part *parts,
                             uint32_t n, int64_t count, float *out)
{
    const ds_adapter_combination way = c->p->combination;
    const bool signs = way == DS_ADAPTER_TIES || way == DS_ADAPTER_DARE_TIES;
    const uint32_t site = (uint32_t)XXH3_64bits(name, strlen(name));
    float *room = malloc((size_t)count * sizeof *room + 1);
    if (room == NULL) {
        return ds_fail(c->ctx, DS_ERR_NOMEM, "no memory to combine adapters");
    }
    for (uint32_t k = 0; k < n && c->p->density < 1.0; ++k) {
        if (draws(way)) {
            keep_any(parts[k].data, count, c->p->density, c->p->seed, site, parts[k].adapter);
        } else {
            keep_largest(parts[k].data, count, c->p->density, room);
        }
    }
    for (int64_t i = 0; i < count; ++i) {
        out[i] = element(c, parts, n, i, signs);
    }
    free(room);
    return DS_OK;
}

ds_status dsi_combine_check_sparse(ds_ctx *ctx, const ds_adapter_combine_params *p)
{
    const bool sparse = dsi_combine_is_sparse(p->combination);
    const bool signs = p->combination == DS_ADAPTER_TIES || p->combination == DS_ADAPTER_DARE_TIES;
    if (sparse && !(p->density > 0.0 && p->density <= 1.0)) {
        return ds_fail(ctx, DS_ERR_ARG,
                       "ds_adapter_combine_params: density is %g, of what stays of each matrix; "
                       "expected a number above 0, 1 at most",
                       p->density);
    }
    const char *key = !sparse && p->density != 0.0             ? "density"
                      : !signs && p->majority != 0             ? "majority"
                      : !draws(p->combination) && p->seed != 0 ? "seed"
                                                               : NULL;
    if (key != NULL) {
        return ds_fail(ctx, DS_ERR_ARG,
                       "ds_adapter_combine_params: %s means nothing to this combination: density "
                       "is of ties, dare_linear, dare_ties and magnitude_prune, majority of ties "
                       "and dare_ties, seed of dare_linear and dare_ties",
                       key);
    }
    return p->majority <= DS_MAJORITY_FREQUENCY
               ? DS_OK
               : ds_fail(ctx, DS_ERR_ARG, "ds_adapter_combine_params: there is no majority %llu",
                         (unsigned long long)p->majority);
}
