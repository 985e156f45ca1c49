/* The ranks of a job, for programs: who am I, and small agreements. Tensors are moved by the
 * engine.
 *
 *     ds_comm *world;
 *     DS_TRY(ds_comm_open(ctx, &world));      // one rank, when nothing launched this process
 *     params.comm = world;                    // ds_initialize
 *     …
 *     ds_comm_close(&world);
 *
 * The environment is that of the launcher (RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE,
 * MASTER_ADDR, MASTER_PORT), of mpirun or of srun. Calls are collective unless stated: every rank
 * makes them in the same order. One thread at a time.
 */
#ifndef DEEPSPEED_COMM_H
#define DEEPSPEED_COMM_H

#include <deepspeed/context.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dsi_comm ds_comm;

/* Joins the job. The caller owns *comm_out and closes it after every engine that uses it; ctx must
 * outlive it. Errors: ERR_CONFIG (contradicting variables), ERR_PEER (names the ranks that did not
 * come). */
DS_API ds_status ds_comm_open(ds_ctx *ctx, ds_comm **comm_out);
/* Leaves the job. Not collective. Accepts NULL and *comm == NULL. */
DS_API void ds_comm_close(ds_comm **comm);
/* Tells the others that this rank gives up, and why: their next wait ends with ERR_PEER. Not
 * collective. */
DS_API void ds_comm_abort(ds_comm *comm, const char *reason);

DS_API uint32_t ds_comm_rank(const ds_comm *comm); /* not collective; 0 for NULL */
DS_API uint32_t ds_comm_size(const ds_comm *comm); /* not collective; 1 for NULL */

/* Waits for all ranks. Errors: ERR_PEER names who is missing. */
DS_API ds_status ds_comm_barrier(ds_comm *comm);
/* Replaces each of n (at most 64) numbers by its sum over ranks, in the order of DESIGN's tree: the
 * same bits on every rank. Errors: ERR_PEER. */
DS_API ds_status ds_comm_sum(ds_comm *comm, double *values, size_t n);
/* Whether all ranks succeeded: gives DS_OK, the own error, or ERR_PEER naming the first rank that
 * failed. For decisions that all must take alike, such as going on after a file was read. */
DS_API ds_status ds_comm_agree(ds_comm *comm, ds_ctx *ctx, ds_status own);

#ifdef __cplusplus
}
#endif
#endif
