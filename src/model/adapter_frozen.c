/* SPDX-License-Identifier: Apache-2.0 */
/* Adapters beside another: active and frozen, or trained in the same run, each of tokens of its
 * own. See deepspeed/adapter.h.
 *
 * Each is an adapter of its own, whose cells have a prefix, so that graph, weights and digest know
 * them apart: a digest of the frozen model has the frozen ones, what is saved has those that are
 * trained.
 */
#include "model/adapter.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_TRAINED = 64 };

static const char *const prefixes[] = {[false] = "frozen.", [true] = "trained."};

void dsi_adapter_cell_prefix(const ds_adapter *a, char prefix[DSI_ADAPTER_PREFIX_BYTES])
{
    prefix[0] = '\0';
    if (a->number > 0) {
        (void)snprintf(prefix, DSI_ADAPTER_PREFIX_BYTES, "%s%u.", prefixes[a->trained], a->number);
    }
}

/* The number in a cell's name behind a prefix; 0: it has another name. */
static uint32_t number_of(const char *cell, const char *prefix, const char **rest_out)
{
    const size_t n = strlen(prefix);
    char *end = NULL;
    if (strncmp(cell, prefix, n) != 0 || cell[n] < '1' || cell[n] > '9') {
        return 0;
    }
    const unsigned long number = strtoul(cell + n, &end, 10);
    if (*end != '.' || number > UINT32_MAX) {
        return 0;
    }
    *rest_out = end + 1;
    return (uint32_t)number;
}

const char *dsi_adapter_plain_name(const char *cell)
{
    const char *rest = cell;
    if (number_of(cell, prefixes[false], &rest) == 0) {
        (void)number_of(cell, prefixes[true], &rest);
    }
    return rest;
}

/* Whether the cell's name has the adapter's prefix, or, of the first, none. */
static bool is_own(const ds_adapter *a, const char *cell)
{
    const char *rest = NULL;
    const uint32_t frozen = number_of(cell, prefixes[false], &rest);
    const uint32_t trained = number_of(cell, prefixes[true], &rest);
    return a->trained ? trained == a->number : frozen == a->number && trained == 0;
}

bool dsi_adapter_has(const ds_adapter *adapter, const ds_cell_info *cell)
{
    if (cell->kind != DS_CELL_PARAM) {
        return false;
    }
    return cell->of != DS_NONE ? is_own(adapter, cell->name)
                               : dsi_adapter_saves(adapter, cell->name);
}

const ds_adapter *dsi_adapter_trained(const ds_adapter *a, uint32_t i)
{
    return i == 0 ? a : a->others[i - 1];
}

bool dsi_adapter_has_rows(const ds_adapter *a)
{
    return a->trained || a->n_others > 0;
}

bool dsi_adapter_trains(const ds_adapter *a, const ds_cell_info *cell)
{
    bool has = false;
    for (uint32_t i = 0; i <= a->n_others && !has; ++i) {
        has = dsi_adapter_has(dsi_adapter_trained(a, i), cell);
    }
    return has;
}

ds_status dsi_adapter_check_alone(const ds_adapter *a, const char *what)
{
    if (a != NULL && a->n_others > 0) {
        return ds_fail(a->ctx, DS_ERR_UNSUPPORTED,
                       "%s: several adapters, each of tokens of its own, are known to training "
                       "alone: open the folder of one",
                       what);
    }
    return a == NULL || a->n_frozen == 0
               ? DS_OK
               : ds_fail(a->ctx, DS_ERR_UNSUPPORTED,
                         "%s: frozen adapters beside another are known to training alone: combine "
                         "them (ds_adapter_combine), or merge one after the other",
                         what);
}

static ds_status check(const ds_adapter *a, const ds_adapter *frozen)
{
    const bool saves = json_array_size(json_object_get(frozen->config, "modules_to_save")) > 0;
    const char *key = frozen->dora ? "use_dora"
                      : saves      ? "modules_to_save"
                      : !frozen->any_task && !a->any_task &&
                              (frozen->task != a->task || frozen->pairs != a->pairs)
                          ? "task_type"
                          : NULL;
    return key == NULL ? DS_OK
                       : ds_fail(a->ctx, DS_ERR_UNSUPPORTED,
                                 "%s/%s: \"%s\": an adapter that is frozen beside another %s",
                                 frozen->folder, DSI_ADAPTER_CONFIG, key,
                                 frozen->dora ? "is no DoRA: it would scale what the other adds"
                                 : saves      ? "takes the place of no module: one can"
                                              : "is for the same task");
}

ds_status ds_adapter_add_frozen(ds_adapter *a, const char *folder)
{
    ds_adapter *frozen = NULL;
    if (dsi_adapter_has_rows(a)) {
        return ds_fail(a->ctx, DS_ERR_UNSUPPORTED,
                       "%s: an adapter that is frozen beside several that are trained is not "
                       "built: leave one of the two",
                       folder);
    }
    DS_TRY(ds_adapter_open(a->ctx, folder, &frozen));
    const ds_status status = check(a, frozen);
    ds_adapter **all =
        status < 0 ? NULL : realloc(a->frozen, (a->n_frozen + 1) * sizeof(ds_adapter *));
    if (all == NULL) {
        ds_adapter_destroy(&frozen);
        return status < 0 ? status : ds_fail(a->ctx, DS_ERR_NOMEM, "no memory for an adapter");
    }
    a->frozen = all;
    all[a->n_frozen++] = frozen;
    frozen->number = a->n_frozen;
    return DS_OK;
}

/* ---- several that are trained ---------------------------------------------------------------- */

/* Why an adapter cannot be one of several; NULL: it can. */
static const char *key_alone(const ds_adapter *a, const char **why_out)
{
    const bool saves = json_array_size(json_object_get(a->config, "modules_to_save")) > 0;
    const bool parameters = dsi_adapter_parameter_at(a, 0) != NULL;
    *why_out = a->dora           ? "scales the whole layer, for tokens of others too"
               : a->pissa        ? "begins by changing the weights that all have in common"
               : parameters      ? "is of routers and experts, whose rows are in another order"
               : a->n_frozen > 0 ? "is not built beside several"
               : a->task != DS_TASK_TOKENS || a->pairs
                   ? "is of classes, or of sources and targets, and is trained alone"
                   : "takes the place of a module, which one adapter can";
    return a->dora                                 ? "use_dora"
           : a->pissa                              ? "init_lora_weights"
           : parameters                            ? "target_parameters"
           : a->n_frozen > 0                       ? "a frozen adapter"
           : saves                                 ? "modules_to_save"
           : a->task != DS_TASK_TOKENS || a->pairs ? "task_type"
                                                   : NULL;
}

/* A name is that of a folder inside another. */
static ds_status check_name(ds_ctx *ctx, const char *const *names, uint32_t i)
{
    const char *name = names[i];
    const bool fits = name != NULL && name[0] != '\0' && name[0] != '.' &&
                      strchr(name, '/') == NULL && strlen(name) <= 100;
    bool again = false;
    for (uint32_t k = 0; k < i && fits; ++k) {
        again = again || strcmp(names[k], name) == 0;
    }
    return fits && !again ? DS_OK
                          : ds_fail(ctx, DS_ERR_ARG, "ds_adapter_train_several: the name \"%s\" %s",
                                    name != NULL ? name : "",
                                    again ? "is there twice"
                                          : "is that of no folder: expected no \"/\", no dot in "
                                            "front, 100 letters at most");
}

static ds_status check_several(ds_adapter *const *adapters, const char *const *names, uint32_t n)
{
    ds_ctx *ctx = adapters[0]->ctx;
    if (n < 2 || n > MOST_TRAINED) {
        return ds_fail(ctx, DS_ERR_ARG, "ds_adapter_train_several: %u adapters: expected 2 to %d",
                       n, MOST_TRAINED);
    }
    for (uint32_t i = 0; i < n; ++i) {
        const char *why = NULL;
        const char *key = key_alone(adapters[i], &why);
        DS_TRY(check_name(ctx, names, i));
        if (key != NULL) {
            return ds_fail(ctx, DS_ERR_UNSUPPORTED, "adapter %s of several: \"%s\" %s", names[i],
                           key, why);
        }
        if (dsi_adapter_has_rows(adapters[i])) {
            return ds_fail(ctx, DS_ERR_ARG,
                           "ds_adapter_train_several: adapter %s is one of several already",
                           names[i]);
        }
    }
    return DS_OK;
}

ds_status ds_adapter_train_several(ds_adapter **adapters, const char *const *names, uint32_t n)
{
    DS_TRY(check_several(adapters, names, n));
    ds_adapter *first = adapters[0];
    ds_adapter **others = calloc(n, sizeof(ds_adapter *));
    bool whole = others != NULL;
    for (uint32_t i = 0; i < n && whole; ++i) {
        adapters[i]->name = strdup(names[i]);
        whole = adapters[i]->name != NULL;
    }
    if (!whole) {
        free(others);
        return ds_fail(first->ctx, DS_ERR_NOMEM, "no memory for adapters");
    }
    for (uint32_t i = 1; i < n; ++i) {
        others[i - 1] = adapters[i];
        adapters[i]->number = i;
        adapters[i]->trained = true;
        adapters[i] = NULL;
    }
    first->others = others;
    first->n_others = n - 1;
    return DS_OK;
}
