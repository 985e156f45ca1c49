/* SPDX-License-Identifier: Apache-2.0 */
/* See offload_disks.h. */
#include "compile/offload_disks.h"

#include <stdio.h>
#include <string.h>

/* A content without folders of its own goes where the optimizer's states go. */
static dsi_swap_disk read_folders(dsi_offload_disks *disks, const dsi_offload_spec *spec,
                                  dsi_swap_content content)
{
    const char *own = spec->folders, *key = "zero_optimization.offload_optimizer.nvme_path";
    if ((content == DSI_SWAP_PARAMS || content == DSI_SWAP_KEYS) &&
        spec->param_folders[0] != '\0') {
        own = spec->param_folders;
        key = "zero_optimization.offload_param.nvme_path";
    } else if (content == DSI_SWAP_ACTIVATIONS && spec->activation_folders[0] != '\0') {
        own = spec->activation_folders;
        key = "activation_checkpointing.nvme_path";
    }
    (void)snprintf(disks->of[content].text, sizeof disks->of[content].text, "%s", own);
    memcpy(disks->of[content].parts, disks->of[content].text, sizeof disks->of[content].parts);
    const uint32_t n = dsi_offload_folders(disks->of[content].parts, disks->of[content].list);
    return (dsi_swap_disk){disks->of[content].list, n, key};
}

void dsi_offload_swap_params(const dsi_offload_spec *spec, dsi_offload_disks *disks_out,
                             dsi_swap_params *swap_out)
{
    enum { MOST_REQUESTS = 1024 };
    *swap_out = (dsi_swap_params){.aio = spec->aio,
                                  .use_gds = spec->use_gds,
                                  .max_requests = MOST_REQUESTS,
                                  .patience = spec->patience};
    for (int c = 0; c < DSI_SWAP_CONTENTS; ++c) {
        swap_out->disks[c] = read_folders(disks_out, spec, (dsi_swap_content)c);
    }
}
