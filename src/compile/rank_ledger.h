/* SPDX-License-Identifier: Apache-2.0 */
/* The ledger of a rank: cells, the arena over the training plan, and what its host holds. Its sum
 * at any step is what the executor maps for cells and arenas, byte for byte, plus the host's share.
 */
#ifndef DSI_COMPILE_RANK_LEDGER_H
#define DSI_COMPILE_RANK_LEDGER_H

#include "compile/rank_plan.h"
#include "cost/ledger.h"

/* Kinds GAPS (so that the sum at the peak is what is mapped: an arena is not given back) and, on
 * the host, HOST_STATE (plans, tables) and PROCESS (program, libraries, communicator) are entered
 * too. The caller destroys *ledger_out; names are borrowed from the plan. */
ds_status dsi_rank_ledger(const dsi_rank_plan *plan, uint32_t n_ranks, bool own_device,
                          dsi_ledger **ledger_out);

/* What a process takes of a device with memory of its own beside cells and arenas: assumed. */
size_t dsi_rank_context_bytes(uint32_t n_ranks);

#endif
