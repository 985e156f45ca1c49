/* SPDX-License-Identifier: Apache-2.0 */
/* Runners by name, and what their commands have in common. See runners.h. */
#include "launch/runners.h"

#include <inttypes.h>
#include <strings.h>

void dsi_runner_add_hosts(const dsi_runner_job *job, bool counts, dsi_words *argv)
{
    dsi_buf list = dsi_buf_make(8 << 20);
    for (size_t i = 0; i < job->hosts->n; ++i) {
        const dsi_host *host = &job->hosts->items[i];
        dsi_buf_printf(&list, "%s%s%s%s", i > 0 ? "," : "", host->user != NULL ? host->user : "",
                       host->user != NULL ? "@" : "", host->name);
        if (counts) {
            dsi_buf_printf(&list, ":%" PRIu32, host->n_slots);
        }
    }
    dsi_words_take(argv, &list);
}

static const dsi_runner *find_in(const dsi_runner *rows, size_t n, const char *name)
{
    for (size_t i = 0; i < n; ++i) {
        if (strcasecmp(rows[i].name, name) == 0) {
            return &rows[i];
        }
    }
    return NULL;
}

const dsi_runner *dsi_runner_find(const char *name)
{
    const dsi_runner *runner = find_in(dsi_node_runners, DSI_N_NODE_RUNNERS, name);
    return runner != NULL ? runner : find_in(dsi_mpi_runners, DSI_N_MPI_RUNNERS, name);
}
