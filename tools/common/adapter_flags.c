/* SPDX-License-Identifier: Apache-2.0 */
/* See adapter_flags.h. */
#include "common/adapter_flags.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

ds_status adapter_flags_check(ds_ctx *ctx, const adapter_flags *f)
{
    const char *other = f->alpha_given     ? "lora_alpha"
                        : f->dropout_given ? "lora_dropout"
                        : f->method_given  ? "lora_method"
                        : f->targets.n > 0 ? "lora_targets"
                        : f->saved.n > 0   ? "modules_to_save"
                                           : NULL;
    if (f->rank > 0 && f->folder != NULL) {
        return ds_fail(ctx, DS_ERR_ARG,
                       "--lora begins an adapter, --adapter goes on with one: give one of them");
    }
    if (other != NULL && f->rank == 0) {
        return ds_fail(ctx, DS_ERR_ARG,
                       f->folder != NULL
                           ? "--%s: what an adapter is stands in the folder of --adapter"
                           : "--%s goes with --lora RANK",
                       other);
    }
    if (f->frozen.n > 0 && f->rank == 0 && f->folder == NULL) {
        return ds_fail(ctx, DS_ERR_ARG,
                       "--frozen_adapters goes with --lora RANK or --adapter DIR: one is trained "
                       "beside them");
    }
    if (f->names.n > 0 && f->rank == 0 && f->folder == NULL) {
        return ds_fail(ctx, DS_ERR_ARG, "--adapters goes with --lora RANK or --adapter DIR");
    }
    if (f->names.n == 1) {
        return ds_fail(ctx, DS_ERR_ARG,
                       "--adapters %s: expected two names or more; one adapter needs no name",
                       f->names.items[0]);
    }
    return packing_flags_check(ctx, &f->packing, f->rank > 0 || f->folder != NULL);
}

static ds_adapter_method method_of(const char *name)
{
    return strcmp(name, "rslora") == 0  ? DS_ADAPTER_RSLORA
           : strcmp(name, "dora") == 0  ? DS_ADAPTER_DORA
           : strcmp(name, "pissa") == 0 ? DS_ADAPTER_PISSA
                                        : DS_ADAPTER_LORA;
}

static ds_status resize(const adapter_flags *f, ds_model **model)
{
    const ds_model_changes changes = {.vocab_size = f->resize_vocab};
    ds_model *made = NULL;
    if (f->resize_vocab == 0) {
        return DS_OK;
    }
    DS_TRY(ds_model_change(*model, &changes, &made));
    ds_model_destroy(model);
    *model = made;
    return DS_OK;
}

/* One of several, in the folder of its name. */
static ds_status open_inside(ds_ctx *ctx, const char *folder, const char *name,
                             ds_adapter **adapter_out)
{
    char *path = NULL;
    if (asprintf(&path, "%s/%s", folder, name) < 0) {
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory for an adapter");
    }
    const ds_status status = ds_adapter_open(ctx, path, adapter_out);
    free(path);
    return status;
}

/* Those of --adapters, as one. */
static ds_status open_several(ds_ctx *ctx, const adapter_flags *f, const ds_adapter_params *params,
                              ds_adapter **adapter_out)
{
    const size_t n = f->names.n;
    ds_adapter **all = calloc(n, sizeof(ds_adapter *));
    ds_status status =
        all != NULL ? DS_OK : ds_fail(ctx, DS_ERR_NOMEM, "no memory for the adapters");
    for (size_t i = 0; i < n && status >= 0; ++i) {
        status = f->folder != NULL ? open_inside(ctx, f->folder, f->names.items[i], &all[i])
                                   : ds_adapter_create(ctx, params, &all[i]);
    }
    if (status >= 0) {
        status = ds_adapter_train_several(all, (const char *const *)f->names.items, (uint32_t)n);
    }
    for (size_t i = 1; i < n && all != NULL; ++i) {
        ds_adapter_destroy(&all[i]);
    }
    *adapter_out = all != NULL ? all[0] : NULL;
    free(all);
    return status;
}

ds_status adapter_flags_open(ds_ctx *ctx, const adapter_flags *f, const char *base, uint32_t task,
                             ds_model **model, ds_adapter **adapter_out)
{
    const ds_adapter_params params = {.method = method_of(f->method),
                                      .rank = f->rank,
                                      .alpha = f->alpha,
                                      .dropout = f->dropout,
                                      .targets = f->targets.items,
                                      .n_targets = (uint32_t)f->targets.n,
                                      .modules_to_save = f->saved.items,
                                      .n_modules_to_save = (uint32_t)f->saved.n,
                                      .base = base,
                                      .task = task,
                                      .pairs = ds_model_get_info(*model)->pairs};
    *adapter_out = NULL;
    DS_TRY(adapter_flags_check(ctx, f));
    DS_TRY(f->names.n > 0      ? open_several(ctx, f, &params, adapter_out)
           : f->folder != NULL ? ds_adapter_open(ctx, f->folder, adapter_out)
           : f->rank > 0       ? ds_adapter_create(ctx, &params, adapter_out)
                               : DS_OK);
    for (size_t i = 0; i < f->frozen.n; ++i) {
        DS_TRY(ds_adapter_add_frozen(*adapter_out, f->frozen.items[i]));
    }
    DS_TRY(resize(f, model));
    DS_TRY(ds_adapter_fit(*adapter_out, model));
    return packing_flags_set(&f->packing, *adapter_out);
}

void adapter_flags_free(adapter_flags *f)
{
    dsi_arg_list_free(&f->targets);
    dsi_arg_list_free(&f->saved);
    dsi_arg_list_free(&f->frozen);
    dsi_arg_list_free(&f->names);
}
