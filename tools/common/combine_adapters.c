/* SPDX-License-Identifier: Apache-2.0 */
/* See combine_adapters.h. */
#include "common/combine_adapters.h"

#include <deepspeed/adapter.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool combine_flags_given(const combine_flags *flags)
{
    return flags->weights.n > 0 || flags->combination_given;
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

/* folders[n] as one in `folder`; weights->n 0: 1 each. */
static ds_status combine_folders(ds_ctx *ctx, const char *const *folders, size_t n,
                                 const dsi_arg_list *weight_texts, ds_adapter_combination how,
                                 const char *folder)
{
    ds_adapter **adapters = calloc(n, sizeof(ds_adapter *));
    double *weights = calloc(n, sizeof *weights);
    ds_status status = adapters != NULL && weights != NULL
                           ? DS_OK
                           : ds_fail(ctx, DS_ERR_NOMEM, "no memory for adapters");
    if (status >= 0 && weight_texts->n > 0) {
        status = read_weights(ctx, weight_texts, weights, n);
    }
    for (size_t i = 0; i < n && status >= 0; ++i) {
        status = ds_adapter_open(ctx, folders[i], &adapters[i]);
    }
    if (status >= 0) {
        const ds_adapter_combine_params params = {.adapters = (const ds_adapter *const *)adapters,
                                                  .n_adapters = (uint32_t)n,
                                                  .weights = weight_texts->n > 0 ? weights : NULL,
                                                  .combination = how,
                                                  .folder = folder};
        status = ds_adapter_combine(ctx, &params);
    }
    for (size_t i = 0; i < n && adapters != NULL; ++i) {
        ds_adapter_destroy(&adapters[i]);
    }
    free(adapters);
    free(weights);
    return status;
}

ds_status combine_adapters(ds_ctx *ctx, const combine_flags *flags, const dsi_arg_list *words)
{
    const size_t n = words->n - 2;
    const bool cat = strcmp(flags->combination, "cat") == 0;
    if (!cat && strcmp(flags->combination, "linear") != 0) {
        return ds_fail(ctx, DS_ERR_ARG, "--combination %s: expected linear or cat",
                       flags->combination);
    }
    DS_TRY(combine_folders(ctx, (const char *const *)words->items + 2, n, &flags->weights,
                           cat ? DS_ADAPTER_CAT : DS_ADAPTER_LINEAR, words->items[1]));
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
                           DS_ADAPTER_CAT, place->folder));
    return ds_adapter_open(ctx, place->folder, adapter_out);
}
