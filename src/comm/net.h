/* SPDX-License-Identifier: Apache-2.0 */
/* The communicator of a job whose ranks are reached over a network: MPI or UCX between nodes,
 * shared memory inside of a node.
 *
 * Called by dsi_comm_open when there are several nodes or the transport is asked for by name.
 * docs/internals/comm_net.md has the protocol.
 */
#ifndef DSI_COMM_NET_H
#define DSI_COMM_NET_H

#include "comm/comm.h"

/* Collective. world->transport:
 *   NULL               MPI if an mpirun or srun with MPI started this process, else UCX; with
 *                      several ranks on a node, shared memory inside of it
 *   "mpi", "ucx"       every message over that, also inside of a node
 *   "shm+mpi", "shm+ucx"   that between nodes, shared memory inside of a node
 * UCX meets at MASTER_ADDR:MASTER_PORT, secured by DS_JOB_SECRET; DS_RENDEZVOUS=launcher says that
 * the launcher holds the rendezvous, else rank 0 does. Under MPI the meeting place is agreed over
 * MPI itself. DS_MPI=openmpi|mpich chooses the module, else the variables of mpirun do;
 * DS_MODULE_PATH is a folder to look for modules first.
 * Errors: ERR_UNSUPPORTED (the module is not installed), ERR_CONFIG (variables), ERR_PEER. */
ds_status dsi_comm_open_net(ds_ctx *ctx, const dsi_comm_world *world, dsi_comm **comm_out);

/* Of dsi_comm_stand_in, see comm.h: joins the rendezvous in that rank's place, or holds it. */
ds_status dsi_net_stand_in(ds_ctx *ctx, const dsi_comm_world *place, const char *text);

/* Whether a module can be loaded: libdeepspeed_mpi_openmpi.so, libdeepspeed_mpi_mpich.so,
 * libdeepspeed_ucx.so. It stays loaded: ask for one only in a process. Errors: ERR_UNSUPPORTED says
 * why not. For reports. */
ds_status dsi_comm_net_probe(ds_ctx *ctx, const char *file);

/* MPI's own collectives, of the MPI whose launcher started this process. For comparisons. Errors:
 * ERR_CONFIG (no mpirun or srun started it), ERR_UNSUPPORTED. */
struct dsi_mpi_peer;
ds_status dsi_comm_mpi_peer(ds_ctx *ctx, const struct dsi_mpi_peer **peer_out);

#endif
