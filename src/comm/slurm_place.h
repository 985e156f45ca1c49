/* SPDX-License-Identifier: Apache-2.0 */
/* Where the ranks of a Slurm step meet when nobody says. Called by net_world.c. */
#ifndef DSI_COMM_SLURM_PLACE_H
#define DSI_COMM_SLURM_PLACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* First host of Slurm's list, "a[01-04,7],b" is a01, cut to n - 1 bytes. False: there is none. */
bool dsi_slurm_first_host(const char *list, char *host, size_t n);

/* The number of a step's tasks on a node, from a list such as "2(x3),1". 0: it does not say. */
uint32_t dsi_slurm_tasks_of(const char *list, uint32_t node);

/* The host of rank 0 (the first of SLURM_STEP_NODELIST) and a port from the numbers of job and
 * step. False outside of a step, and where the numbers are none. */
bool dsi_slurm_place(char *host, size_t n, uint16_t *port_out);

#endif
