/* SPDX-License-Identifier: Apache-2.0 */
/* LAW 5: what could differ between ranks is compared before the first step.
 *
 * A text of lines stands for what must be the same everywhere: "rms_norm_eps: 1e-06", the step of a
 * plan, a flag. One comparison serves plans, models, configurations and flags.
 */
#ifndef DSI_COMM_SAME_TEXT_H
#define DSI_COMM_SAME_TEXT_H

#include "comm/comm.h"

/* Compares the texts of all ranks. Collective. comm NULL: one rank. what: what the text is, as in
 * "another PLAN than rank 0"; remedy: what should be the same, behind a semicolon. Errors: ERR_PEER
 * on every rank names the first rank that differs from rank 0, and the first line with both texts.
 */
ds_status dsi_same_text(ds_ctx *ctx, dsi_comm *comm, const char *text, const char *what,
                        const char *remedy);

#endif
