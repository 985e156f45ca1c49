/* SPDX-License-Identifier: Apache-2.0 */
/* Which cores each rank of a node gets (--bind_cores_to_rank, --bind_core_list). Made by
 * launch_node.c, applied between fork and exec by process.c.
 *
 * Cores are dealt in order: with C cores and L ranks each rank gets floor(C / L) that follow one
 * another. Without a list the cores are the machine's physical ones that this process may use, in
 * the order of hwloc, with all their hardware threads; a list names processors as the system
 * numbers them. A rank whose cores lie in one NUMA node, of several, gets its memory there too.
 */
#ifndef DSI_LAUNCH_BIND_H
#define DSI_LAUNCH_BIND_H

#include <deepspeed/status.h>
#include <sched.h>
#include <stddef.h>
#include <stdint.h>

typedef struct dsi_binding {
    uint32_t n; /* ranks; 0: nothing is bound */
    uint32_t cores_each;
    size_t cpus_bytes;   /* of one set */
    unsigned char *cpus; /* n sets */
    int *memory;         /* n NUMA nodes, -1: none */
} dsi_binding;

/* list NULL: all cores. Errors: ERR_ARG (the list: where it is wrong, names a processor that is not
 * there; fewer cores than ranks; KMP_AFFINITY is set, which would fight it), ERR_UNSUPPORTED (built
 * without hwloc), ERR_NOMEM. The caller frees *binding_out. */
ds_status dsi_bind(ds_ctx *ctx, const char *list, uint32_t n_ranks, dsi_binding *binding_out);
void dsi_binding_free(dsi_binding *binding);

/* Of local rank `rank`; NULL and -1 when nothing is bound. */
const cpu_set_t *dsi_binding_cpus(const dsi_binding *binding, uint32_t rank);
int dsi_binding_memory(const dsi_binding *binding, uint32_t rank);

/* Reads "0,2-4,6": numbers rise, none twice. Writes at most `max` and their number. Errors:
 * ERR_ARG, ERR_LIMIT. */
ds_status dsi_core_list_parse(ds_ctx *ctx, const char *list, uint32_t *cores, size_t max,
                              size_t *n_out);

#endif
