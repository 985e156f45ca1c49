/* LAW 1: all ranks have the same plan, or the run does not start. */
#ifndef DSI_EXEC_AGREE_H
#define DSI_EXEC_AGREE_H

#include "comm/comm.h"
#include "plan/plan.h"

/* Compares the plans of all ranks, and of what is not in them: `extra`, a line of text such as the
 * configuration's digest. Collective. comm NULL: one rank. Errors: ERR_PEER on every rank names the
 * first rank that differs from rank 0 and the first line, with both texts. */
ds_status dsi_exec_agree(ds_ctx *ctx, dsi_comm *comm, const dsi_plan *plan, const char *extra);

#endif
