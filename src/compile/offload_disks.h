/* SPDX-License-Identifier: Apache-2.0 */
/* From the configuration's paths to the disks of the executor's swaps. */
#ifndef DSI_COMPILE_OFFLOAD_DISKS_H
#define DSI_COMPILE_OFFLOAD_DISKS_H

#include "compile/offload_residency.h"
#include "exec/swap.h"

/* The folders of each content, as text with commas and as a list. */
typedef struct dsi_offload_disks {
    struct {
        char text[DS_CONFIG_TEXT_BYTES], parts[DS_CONFIG_TEXT_BYTES];
        const char *list[DS_CONFIG_MAX_FOLDERS];
    } of[DSI_SWAP_CONTENTS];
} dsi_offload_disks;

/* Fills both; *swap_out borrows the folders of *disks_out. Pure. */
void dsi_offload_swap_params(const dsi_offload_spec *spec, dsi_offload_disks *disks_out,
                             dsi_swap_params *swap_out);

#endif
