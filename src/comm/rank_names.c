/* SPDX-License-Identifier: Apache-2.0 */
/* Names of ranks. See rank_names.h. */
#include "comm/rank_names.h"

#include <stdio.h>

void dsi_comm_set_names(dsi_comm *comm, const dsi_rank_names *names, uint32_t first, uint32_t step)
{
    comm->names = names;
    comm->names_first = first;
    comm->names_step = step;
    if (comm->transport->named != NULL) {
        comm->transport->named(comm);
    }
}

dsi_rank_name dsi_comm_rank_name_or(const dsi_comm *comm, uint32_t rank, uint32_t number)
{
    dsi_rank_name name;
    if (comm != NULL && comm->names != NULL) {
        return comm->names->name(comm->names, comm->names_first + rank * comm->names_step);
    }
    (void)snprintf(name.text, sizeof name.text, "rank %u", number);
    return name;
}

dsi_rank_name dsi_comm_rank_name(const dsi_comm *comm, uint32_t rank)
{
    return dsi_comm_rank_name_or(comm, rank, rank);
}
