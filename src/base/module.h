/* SPDX-License-Identifier: Apache-2.0 */
/* Shared objects that are installed beside the library and loaded when somebody needs one, such as
 * those of MPI, UCX and CUDA. A loaded one stays until the process ends.
 */
#ifndef DSI_BASE_MODULE_H
#define DSI_BASE_MODULE_H

#include <deepspeed/context.h>

typedef enum dsi_module_scope {
    DSI_MODULE_LOCAL,
    DSI_MODULE_GLOBAL /* what it links against sees its symbols: Open MPI's plug-ins need them */
} dsi_module_scope;

/* Looks in the folder that DS_MODULE_PATH names, beside the library or program, in ../lib of that,
 * and where the system has libraries. A file in DS_MODULE_PATH that cannot be loaded is the error.
 * Errors: ERR_UNSUPPORTED says what each place lacked. */
ds_status dsi_module_load(ds_ctx *ctx, const char *file, dsi_module_scope scope, void **object_out);

#endif
