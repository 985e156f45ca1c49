/* SPDX-License-Identifier: Apache-2.0 */
/* See combine_adapters.h. */
#include "common/combine_adapters.h"

#include <deepspeed/adapter.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool combine_flags_given(const combine_flags *flags, bool any)
{
    return (any && flags->weights.n > 0) || flags->combination_given || flags->svd_rank_given;
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

/* folders[n] as one in `folder`; weights->n 0: 1 each. */
static ds_status combine_folders(ds_ctx *ctx, const char *const *folders, size_t n,
                                 const dsi_arg_list *weights, ds_adapter_combination how,
                                 int64_t rank, const char *folder)
{
    merge_list list;
    ds_status status = merge_list_open(ctx, folders, n, weights, &list);
    if (status >= 0) {
        const ds_adapter_combine_params params = {.adapters = (const ds_adapter *const *)list.items,
                                                  .n_adapters = (uint32_t)n,
                                                  .weights = list.weights,
                                                  .combination = how,
                                                  .rank = rank,
                                                  .folder = folder};
        status = ds_adapter_combine(ctx, &params);
    }
    merge_list_close(&list);
    return status;
}

ds_status combine_adapters(ds_ctx *ctx, const combine_flags *flags, const dsi_arg_list *words)
{
    const size_t n = words->n - 2;
    const bool svd = strcmp(flags->combination, "svd") == 0;
    const ds_adapter_combination how = svd                                      ? DS_ADAPTER_SVD
                                       : strcmp(flags->combination, "cat") == 0 ? DS_ADAPTER_CAT
                                                                                : DS_ADAPTER_LINEAR;
    if (flags->svd_rank_given && !svd) {
        return ds_fail(ctx, DS_ERR_ARG, "--svd_rank goes with --combination svd");
    }
    DS_TRY(combine_folders(ctx, (const char *const *)words->items + 2, n, &flags->weights, how,
                           flags->svd_rank, words->items[1]));
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
    DS_TRY(combine_folders(ctx, (const char *const *)folders->items, folders->n, weights,
                           DS_ADAPTER_CAT, 0, place->folder));
    return ds_adapter_open(ctx, place->folder, adapter_out);
}
