/* SPDX-License-Identifier: Apache-2.0 */
/* The mesh: the grid of processes, its axes, and the groups of ranks along them.
 *
 * Called by the placement algebra, the rules that read a configuration, and whoever makes
 * communicators. Plain values: no memory, no communication; every rank computes the same.
 *
 * Invariants (dsi_mesh_check):
 *  1. every size is at least 1 and their product is n_ranks, at most DSI_MESH_MOST;
 *  2. rank = the coordinates as digits, the axis listed first the most significant: ranks of one
 *     tp group are neighbours, a pipeline stage is one block of ranks;
 *  3. a group along axes listed in the mesh's order holds ascending ranks.
 */
#ifndef DSI_PLACE_MESH_H
#define DSI_PLACE_MESH_H

#include "base/buf.h"
#include <deepspeed/context.h>

/* Outermost first. Data parallelism is dpr × dps × ep: parameters are sharded on dps and replicated
 * on dpr (hpZ, MiCS; otherwise dpr is 1); ep is carved out of it, so that experts have their own
 * ranks along ep and are data-parallel along dpr × dps only. */
#define DSI_AXIS_LIST(X)                                                                           \
    X(PP, "pp", "pipeline stages")                                                                 \
    X(DPR, "dpr", "data parallel, parameters replicated")                                          \
    X(DPS, "dps", "data parallel, parameters sharded")                                             \
    X(EP, "ep", "expert parallel: data parallel for everything but experts")                       \
    X(SP, "sp", "sequence parallel")                                                               \
    X(TP, "tp", "tensor parallel")

typedef enum dsi_axis {
#define X(id, text, doc) DSI_AXIS_##id,
    DSI_AXIS_LIST(X)
#undef X
        DSI_AXIS_COUNT
} dsi_axis;

enum { DSI_MESH_MOST = 1 << 20 }; /* ranks */

typedef struct dsi_mesh {
    uint32_t n_ranks;
    uint32_t size[DSI_AXIS_COUNT];
} dsi_mesh;

/* What a mesh is made from; 0 means 1. */
typedef struct dsi_mesh_params {
    uint32_t world_size;
    uint32_t pp, ep, sp, tp;
    uint32_t data_parallel; /* when given, checked: what is left for data parallelism */
    uint32_t mics, hpz;     /* ranks that share one copy of the parameters, counted along
                               dps × ep × sp; at most one of the two is above 1 */
} dsi_mesh_params;

/* An ordered tuple of axes, outermost first. {0} is no axis: groups of one rank. */
typedef struct dsi_axes {
    uint32_t n;
    uint8_t axis[DSI_AXIS_COUNT]; /* dsi_axis */
} dsi_axes;

/* The ranks that differ from one rank along a tuple of axes only. */
typedef struct dsi_rank_group {
    dsi_axes axes;
    uint32_t size;
    uint32_t index; /* the place of the rank in it */
    uint32_t color; /* names the group among those of its axes: for dsi_comm_split, key = index */
} dsi_rank_group;

typedef struct dsi_coords {
    uint32_t at[DSI_AXIS_COUNT];
} dsi_coords;

/* Errors: ERR_CONFIG names the keys whose numbers do not fit together, and a remedy. */
ds_status dsi_mesh_make(ds_ctx *ctx, const dsi_mesh_params *params, dsi_mesh *mesh_out);
/* Data parallelism over n ranks and nothing else. */
dsi_mesh dsi_mesh_data(uint32_t n_ranks);
/* From sizes; n_ranks is their product. Errors: ERR_ARG. */
ds_status dsi_mesh_of(ds_ctx *ctx, const uint32_t size[DSI_AXIS_COUNT], dsi_mesh *mesh_out);
ds_status dsi_mesh_check(ds_ctx *ctx, const dsi_mesh *mesh);

dsi_coords dsi_mesh_coords(const dsi_mesh *mesh, uint32_t rank);
uint32_t dsi_mesh_rank(const dsi_mesh *mesh, const dsi_coords *coords);

dsi_rank_group dsi_mesh_group(const dsi_mesh *mesh, const dsi_axes *axes, uint32_t rank);
/* The i-th rank of the group of `rank` along axes. Pre: i < its size. */
uint32_t dsi_mesh_peer(const dsi_mesh *mesh, const dsi_axes *axes, uint32_t rank, uint32_t i);
/* Whether group indices ascend with ranks, without a gap of another group between them. */
bool dsi_mesh_is_block(const dsi_mesh *mesh, const dsi_axes *axes);

/* Tuples. */
bool dsi_axes_has(const dsi_axes *axes, dsi_axis axis);
/* Appends; nothing when it is there. */
void dsi_axes_add(dsi_axes *axes, dsi_axis axis);
bool dsi_axes_equal(const dsi_axes *a, const dsi_axes *b);
/* Whether b begins with all of a. */
bool dsi_axes_begin(const dsi_axes *a, const dsi_axes *b);
/* The axes of b behind the first n. */
dsi_axes dsi_axes_behind(const dsi_axes *b, uint32_t n);
/* From a bit mask (1 << axis), in the mesh's order. */
dsi_axes dsi_axes_of(uint32_t mask);
uint32_t dsi_axes_mask(const dsi_axes *axes);
uint32_t dsi_axes_size(const dsi_mesh *mesh, const dsi_axes *axes); /* ranks of a group */
/* Axes that data parallelism is made of: gradients of dense parameters are Partial on them. */
dsi_axes dsi_axes_data(void);
/* Ranks that have different samples, and the place of a rank among them: what loaders, random
 * numbers and batch sizes count by, where files and diagnoses name the rank of the world. */
uint32_t dsi_mesh_data_size(const dsi_mesh *mesh);
uint32_t dsi_mesh_data_rank(const dsi_mesh *mesh, uint32_t rank);
/* Of the samples of a step, the first of a rank's micro-batch. */
int64_t dsi_mesh_first_sample(const dsi_mesh *mesh, uint32_t rank, int64_t micro_step,
                              int64_t batch);
/* Axes over which ZeRO cuts dense parameters: dps, ep, sp, with dpr first when `whole`. */
dsi_axes dsi_axes_zero(bool whole);

/* A tuple as one number, for attributes of collectives: 0 is all ranks in their order where
 * they are data-parallel alone, else a decimal digit for each axis of several ranks, outermost
 * first. dsi_axes_decode of 0: all axes. */
int64_t dsi_axes_code(const dsi_mesh *mesh, const dsi_axes *axes);
dsi_axes dsi_axes_decode(int64_t code);
/* Its name in reports: "dp" for 0, else "tp", "dps,tp", …; returns text. */
enum { DSI_AXES_LABEL = 32 };
const char *dsi_axes_label(int64_t code, char text[DSI_AXES_LABEL]);

const char *dsi_axis_name(dsi_axis axis);
dsi_axis dsi_axis_from_name(const char *name, size_t n); /* DSI_AXIS_COUNT when unknown */

/* "mesh(dpr=2,tp=2)": axes of size 1 are left out; one rank is "mesh()". */
void dsi_mesh_text(const dsi_mesh *mesh, dsi_buf *buf);
/* "dp 2, tp 1": where a rank stands among those with other samples, and on each other axis of
 * several ranks, and which experts it has; "" where all ranks have other samples and all experts.
 */
void dsi_mesh_coords_text(const dsi_mesh *mesh, uint32_t rank, dsi_buf *buf);
/* "(dps,ep)" */
void dsi_axes_text(const dsi_axes *axes, dsi_buf *buf);
/* Read back. Errors: ERR_FORMAT names the place. */
ds_status dsi_mesh_parse(ds_ctx *ctx, const char *text, dsi_mesh *mesh_out);

#endif
