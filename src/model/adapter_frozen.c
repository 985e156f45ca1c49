/* SPDX-License-Identifier: Apache-2.0 */
/* Adapters that are active beside one that is trained, and frozen. See deepspeed/adapter.h.
 *
 * Each is an adapter of its own, whose cells have a prefix, so that graph, weights and digest know
 * them apart: a digest of the frozen model has them, what is saved of the trained one has not.
 */
#include "model/adapter.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PREFIX "frozen."

void dsi_adapter_frozen_prefix(const ds_adapter *a, char prefix[DSI_ADAPTER_FROZEN_BYTES])
{
    prefix[0] = '\0';
    if (a->number > 0) {
        (void)snprintf(prefix, DSI_ADAPTER_FROZEN_BYTES, PREFIX "%u.", a->number);
    }
}

/* The number in a cell's name; 0: none. */
static uint32_t number_of(const char *cell, const char **rest_out)
{
    const size_t n = sizeof PREFIX - 1;
    char *end = NULL;
    *rest_out = cell;
    if (strncmp(cell, PREFIX, n) != 0 || cell[n] < '1' || cell[n] > '9') {
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
    const char *rest = NULL;
    (void)number_of(cell, &rest);
    return rest;
}

bool dsi_adapter_has(const ds_adapter *adapter, const ds_cell_info *cell)
{
    const char *rest = NULL;
    if (cell->kind != DS_CELL_PARAM) {
        return false;
    }
    return cell->of != DS_NONE ? number_of(cell->name, &rest) == adapter->number
                               : dsi_adapter_saves(adapter, cell->name);
}

ds_status dsi_adapter_check_alone(const ds_adapter *a, const char *what)
{
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
