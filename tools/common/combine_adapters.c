/* SPDX-License-Identifier: Apache-2.0 */
/* See combine_adapters.h. */
#include "common/combine_adapters.h"

#include <deepspeed/adapter.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool combine_flags_given(const combine_flags *flags, bool any)
{
    return (any && flags->weights.n > 0) || flags->combination_given || flags->svd_rank_given ||
           flags->density_given || flags->majority_given || flags->seed_given;
}

/* Numbers apart by commas or as words. */
static ds_status read_weights(ds_ctx *ctx, const dsi_arg_list *list, double *weights, size_t n)
{
    size_t have = 0;
    for (size_t i = 0; i < list->n; ++i) {
        const char *at = list->items[i];
        for (char *end = NULL; at != NULL; at = end != NULL && *end == ',' ? end + 1 : NULL) {
            const double one = strtod(at, &end);
            if (end == at || (*end != ',' && *end != '\0')) {
                return ds_fail(ctx, DS_ERR_ARG, "--weights: %s: expected numbers", list->items[i]);
            }
            if (have < n) {
                weights[have] = one;
            }
            ++have;
        }
    }
    return have == n
               ? DS_OK
               : ds_fail(ctx, DS_ERR_ARG,
                         "--weights: %zu numbers for %zu adapters: expected one each", have, n);
}

ds_status merge_list_open(ds_ctx *ctx, const char *const *folders, size_t n,
                          const dsi_arg_list *weights, merge_list *list)
{
    *list = (merge_list){.items = calloc(n, sizeof(ds_adapter *)), .n = n};
    list->weights = weights->n > 0 ? calloc(n, sizeof *list->weights) : NULL;
    if (list->items == NULL || (weights->n > 0 && list->weights == NULL)) {
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory for adapters");
    }
    DS_TRY(weights->n > 0 ? read_weights(ctx, weights, list->weights, n) : DS_OK);
    for (size_t i = 0; i < n; ++i) {
        DS_TRY(ds_adapter_open(ctx, folders[i], &list->items[i]));
    }
    return DS_OK;
}

void merge_list_close(merge_list *list)
{
    for (size_t i = 0; i < list->n && list->items != NULL; ++i) {
        ds_adapter_destroy(&list->items[i]);
    }
    free(list->items);
    free(list->weights);
    *list = (merge_list){0};
}

/* folders[n] as `how` says, whose adapters and weights are set here; weights->n 0: 1 each. */
static ds_status combine_folders(ds_ctx *ctx, const char *const *folders, size_t n,
                                 const dsi_arg_list *weights, ds_adapter_combine_params how)
{
    merge_list list;
    ds_status status = merge_list_open(ctx, folders, n, weights, &list);
    if (status >= 0) {
        how.adapters = (const ds_adapter *const *)list.items;
        how.n_adapters = (uint32_t)n;
        how.weights = list.weights;
        status = ds_adapter_combine(ctx, &how);
    }
    merge_list_close(&list);
    return status;
}

static ds_adapter_combination way_of(const char *name)
{
    static const char *const names[] = {[DS_ADAPTER_LINEAR] = "linear",
                                        [DS_ADAPTER_CAT] = "cat",
                                        [DS_ADAPTER_SVD] = "svd",
                                        [DS_ADAPTER_TIES] = "ties",
                                        [DS_ADAPTER_DARE_LINEAR] = "dare_linear",
                                        [DS_ADAPTER_DARE_TIES] = "dare_ties",
                                        [DS_ADAPTER_MAGNITUDE_PRUNE] = "magnitude_prune"};
    size_t i = 0;
    while (strcmp(names[i], name) != 0) { /* it is one of the flag's choices */
        ++i;
    }
    return (ds_adapter_combination)i;
}

static ds_status check_flags(ds_ctx *ctx, const combine_flags *flags, ds_adapter_combination way)
{
    const bool signs = way == DS_ADAPTER_TIES || way == DS_ADAPTER_DARE_TIES;
    const bool draws = way == DS_ADAPTER_DARE_LINEAR || way == DS_ADAPTER_DARE_TIES;
    const bool sparse = way >= DS_ADAPTER_TIES;
    const char *words =
        flags->svd_rank_given && way != DS_ADAPTER_SVD ? "--svd_rank goes with --combination svd"
        : flags->density_given != sparse
            ? "--density goes with --combination ties, dare_linear, dare_ties and "
              "magnitude_prune, which need it"
        : flags->majority_given && !signs
            ? "--majority_sign_method goes with --combination ties and dare_ties"
        : flags->seed_given && !draws ? "--seed goes with --combination dare_linear and dare_ties"
                                      : NULL;
    return words == NULL ? DS_OK : ds_fail(ctx, DS_ERR_ARG, "%s", words);
}

ds_status combine_adapters(ds_ctx *ctx, const combine_flags *flags, const dsi_arg_list *words)
{
    const size_t n = words->n - 2;
    const ds_adapter_combination way = way_of(flags->combination);
    DS_TRY(check_flags(ctx, flags, way));
    const ds_adapter_combine_params how = {.combination = way,
                                           .rank = flags->svd_rank,
                                           .density = flags->density,
                                           .majority = strcmp(flags->majority, "frequency") == 0
                                                           ? DS_MAJORITY_FREQUENCY
                                                           : DS_MAJORITY_TOTAL,
                                           .seed = (uint64_t)flags->seed,
                                           .folder = words->items[1]};
    DS_TRY(combine_folders(ctx, (const char *const *)words->items + 2, n, &flags->weights, how));
    (void)printf("%s: %zu adapters, %s\n", words->items[1], n, flags->combination);
    return DS_OK;
}

ds_status combine_open(ds_ctx *ctx, const dsi_arg_list *folders, const dsi_arg_list *weights,
                       unpacked *place, ds_adapter **adapter_out)
{
    if (folders->n == 1 && weights->n == 0) {
        return ds_adapter_open(ctx, folders->items[0], adapter_out);
    }
    DS_TRY(unpacked_make(ctx, place, "what the adapters make together"));
    const ds_adapter_combine_params how = {.combination = DS_ADAPTER_CAT, .folder = place->folder};
    DS_TRY(combine_folders(ctx, (const char *const *)folders->items, folders->n, weights, how));
    return ds_adapter_open(ctx, place->folder, adapter_out);
}
