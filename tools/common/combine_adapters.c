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

static ds_status open_all(ds_ctx *ctx, const dsi_arg_list *words, ds_adapter **adapters, size_t n)
{
    for (size_t i = 0; i < n; ++i) {
        DS_TRY(ds_adapter_open(ctx, words->items[2 + i], &adapters[i]));
    }
    return DS_OK;
}

ds_status combine_adapters(ds_ctx *ctx, const combine_flags *flags, const dsi_arg_list *words)
{
    const size_t n = words->n - 2;
    const bool cat = strcmp(flags->combination, "cat") == 0;
    ds_adapter **adapters = calloc(n, sizeof(ds_adapter *));
    double *weights = calloc(n, sizeof *weights);
    ds_status status = adapters != NULL && weights != NULL
                           ? DS_OK
                           : ds_fail(ctx, DS_ERR_NOMEM, "no memory for adapters");
    if (status >= 0 && !cat && strcmp(flags->combination, "linear") != 0) {
        status = ds_fail(ctx, DS_ERR_ARG, "--combination %s: expected linear or cat",
                         flags->combination);
    }
    if (status >= 0 && flags->weights.n > 0) {
        status = read_weights(ctx, &flags->weights, weights, n);
    }
    status = status < 0 ? status : open_all(ctx, words, adapters, n);
    if (status >= 0) {
        const ds_adapter_combine_params params = {.adapters = (const ds_adapter *const *)adapters,
                                                  .n_adapters = (uint32_t)n,
                                                  .weights = flags->weights.n > 0 ? weights : NULL,
                                                  .combination =
                                                      cat ? DS_ADAPTER_CAT : DS_ADAPTER_LINEAR,
                                                  .folder = words->items[1]};
        status = ds_adapter_combine(ctx, &params);
    }
    if (status >= 0) {
        (void)printf("%s: %zu adapters, %s\n", words->items[1], n, flags->combination);
    }
    for (size_t i = 0; i < n && adapters != NULL; ++i) {
        ds_adapter_destroy(&adapters[i]);
    }
    free(adapters);
    free(weights);
    return status;
}
