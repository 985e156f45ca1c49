/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of run_spec.h share. */
#ifndef DSI_COMPILE_RUN_SPEC_IMPL_H
#define DSI_COMPILE_RUN_SPEC_IMPL_H

#include "compile/run_spec.h"

/* run_losses.c: task, mini-batches, preference loss and teacher, and adapters beside them; the rest
 * of spec has been read. Errors: ERR_ARG, ERR_UNSUPPORTED. */
ds_status dsi_run_read_losses(ds_ctx *ctx, const ds_engine_params *params,
                              const ds_config_values *v, dsi_engine_spec *spec);
/* run_offload.c: what updates on the host go with; spec is complete. Errors: ERR_UNSUPPORTED. */
ds_status dsi_run_check_super_offload(ds_ctx *ctx, const ds_config_values *v, bool apart,
                                      const dsi_engine_spec *spec);

#endif
