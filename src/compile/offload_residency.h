/* SPDX-License-Identifier: Apache-2.0 */
/* From the configuration to residencies: which cells live in host memory or on disk. */
#ifndef DSI_COMPILE_OFFLOAD_RESIDENCY_H
#define DSI_COMPILE_OFFLOAD_RESIDENCY_H

#include "config/config_values.h"
#include "pass/offload.h"

#include <deepspeed/aio.h>

typedef struct dsi_offload_spec {
    dsi_residency params; /* of parameters */
    dsi_residency states; /* of gradients, master weights and moments */
    dsi_residency chosen; /* of ZenFlow's chosen columns and their moments */
    double ratio;         /* part of the parameters whose states go there */
    bool by_gradient;     /* those that stay are the ones whose gradients come last; else they are
                             spread over all */
    bool choose_ratio;    /* the cost model does, where there is a profile of the device */
    int64_t max_resident; /* elements of parameters that stay on the device all the same */
    int64_t threshold;    /* a parameter with fewer elements stays, with its states */
    dsi_offload how;
    size_t read_ahead;   /* bytes of parameters read ahead of their use */
    size_t update_ahead; /* bytes of states read ahead of their update */
    size_t write_behind; /* bytes of writebacks in flight during computation */
    bool defer;          /* writebacks of states may end in the next step */
    bool write_first;    /* an update's writebacks end before the next update begins */
    char folders[DS_CONFIG_TEXT_BYTES]; /* of the disk; with commas between them */
    char param_folders[DS_CONFIG_TEXT_BYTES],
        activation_folders[DS_CONFIG_TEXT_BYTES]; /* "": as
                                                     folders */
    ds_aio_params aio;
    bool use_gds;    /* the device itself moves what is on disk */
    double patience; /* seconds without progress on the disk until a step fails; 0: nine tenths of
                        the communicator's timeout, so that the rank whose disk it is speaks before
                        those that wait for it */
} dsi_offload_spec;

bool dsi_offload_is_on(const dsi_offload_spec *spec);

/* A parameter whose states may go; end: when its gradient is complete, larger is later. */
typedef struct dsi_late_param {
    ds_cell cell;
    uint32_t end;
    int64_t count; /* elements */
} dsi_late_param;

/* All of these, those whose gradients come last first. The caller frees *params_out. Pure. Errors:
 * ERR_NOMEM. */
ds_status dsi_offload_last_first(const dsi_offload_spec *spec, const ds_cells *cells,
                                 const uint32_t *ends, dsi_late_param **params_out,
                                 uint32_t *n_out);

/* Fills residencies for the cells of the logical table. ends: per cell of a parameter when its
 * gradient is complete, larger is later; of by_gradient, else it may be NULL. Pure. Errors:
 * ERR_NOMEM. */
ds_status dsi_offload_rules(const dsi_offload_spec *spec, const ds_cells *cells,
                            const uint32_t *ends, dsi_residencies *residencies);

enum { DSI_OFFLOAD_PARAMS, DSI_OFFLOAD_STATES, DSI_OFFLOAD_SECTIONS };
enum { DSI_OFFLOAD_WHY_BYTES = 256 };

/* Of each section that asks for a device and moves nothing, one line that says which key keeps
 * everything where it is; "" of the others. residencies: what dsi_offload_rules filled. Pure. */
void dsi_offload_idle(const dsi_offload_spec *spec, const ds_cells *cells,
                      const dsi_residencies *residencies,
                      char why_out[DSI_OFFLOAD_SECTIONS][DSI_OFFLOAD_WHY_BYTES]);

/* Splits folders at its commas, in place; pointers into it. */
uint32_t dsi_offload_folders(char *folders, const char *list[DS_CONFIG_MAX_FOLDERS]);

#endif
