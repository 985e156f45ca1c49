/* See offload_homes.h. */
#include "train/offload_homes.h"

#include <stdlib.h>
#include <string.h>

bool dsi_offload_is_on(const dsi_offload_spec *spec)
{
    return spec->params != DSI_ON_DEVICE || spec->states != DSI_ON_DEVICE ||
           spec->chosen != DSI_ON_DEVICE || spec->how.activations != DSI_ON_DEVICE;
}

typedef struct chooser {
    const dsi_offload_spec *spec;
    int64_t seen, offloaded; /* elements whose states might go, and do */
    int64_t resident;        /* elements of parameters that stay although they might go */
} chooser;

/* What becomes of one parameter; large ones alone are worth the way. */
static void choose(chooser *c, int64_t count, bool *states, bool *params)
{
    const dsi_offload_spec *s = c->spec;
    const bool large = count >= s->threshold;
    c->seen += large ? count : 0;
    *states = large && s->states != DSI_ON_DEVICE &&
              (double)(c->offloaded + count) <= s->ratio * (double)c->seen + 0.5;
    c->offloaded += *states ? count : 0;
    *params = large && s->params != DSI_ON_DEVICE && c->resident + count > s->max_resident;
    c->resident += large && !*params ? count : 0;
}

ds_status dsi_offload_rules(const dsi_offload_spec *spec, const ds_cells *cells, dsi_homes *homes)
{
    const uint32_t n = ds_cells_count(cells);
    chooser c = {.spec = spec};
    homes->items = calloc((size_t)n + 1, sizeof *homes->items);
    if (homes->items == NULL) {
        return DS_ERR_NOMEM;
    }
    homes->n = n;
    homes->capacity = n + 1;
    bool *states = calloc((size_t)n + 1, sizeof *states); /* of parameters that come first */
    if (states == NULL) {
        return DS_ERR_NOMEM;
    }
    for (ds_cell cell = 0; cell < n; ++cell) {
        const ds_cell_info *info = ds_cells_get(cells, cell);
        dsi_home home = {DSI_ON_DEVICE, DS_NONE, 0};
        bool params = false;
        if (info->kind == DS_CELL_PARAM && !info->frozen) {
            choose(&c, ds_shape_count(info->meta.shape), &states[cell], &params);
            home.residence = params ? spec->params : DSI_ON_DEVICE;
        } else if (info->kind == DS_CELL_PARAM) {
            const bool large = ds_shape_count(info->meta.shape) >= spec->threshold;
            home.residence = large ? spec->params : DSI_ON_DEVICE;
        } else if (info->kind == DS_CELL_CHOSEN) { /* matrices; not the index, which all read */
            home.residence = info->meta.shape.n_dims == 2 ? spec->chosen : DSI_ON_DEVICE;
        } else if (info->of != DS_NONE && info->of < cell && states[info->of]) {
            home.residence = spec->states;
        }
        homes->items[cell] = home;
    }
    free(states);
    return DS_OK;
}

uint32_t dsi_offload_folders(char *folders, const char *list[DS_CONFIG_MAX_FOLDERS])
{
    uint32_t n = 0;
    char *rest = NULL;
    for (char *at = strtok_r(folders, ",", &rest); at != NULL && n < DS_CONFIG_MAX_FOLDERS;
         at = strtok_r(NULL, ",", &rest)) {
        list[n++] = at;
    }
    return n;
}
