/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of localize: localize.c walks the nodes, localize_value.c finds what a reader needs,
 * localize_move.c and localize_box.c make nodes of a change of placement, localize_own.c those of
 * ranks' own values, localize_blocks.c those of quantized collectives, localize_bucket.c says which
 * gradients share a collective. See localize.h. */
#ifndef DSI_PLACE_LOCALIZE_IMPL_H
#define DSI_PLACE_LOCALIZE_IMPL_H

#include "ir/rewrite.h"
#include "op/ops.h"
#include "place/localize.h"

/* Another form of a value, made for the newest reader that needed one. */
typedef struct dsi_other_form {
    dsi_placement at;
    ds_value value; /* local; DS_NONE: none yet */
} dsi_other_form;

/* The bucket under construction. */
typedef struct dsi_bucket {
    int64_t id, fill; /* id -1: none yet */
    ds_dtype dtype;   /* NONE: closed */
    int64_t n;        /* numbers given out */
} dsi_bucket;

/* A bucket as one collective: tensors of one bucket may take different ones, or two. */
typedef struct dsi_bucket_use {
    int64_t bucket, id;
    const ds_op *op;
    int64_t axes;
    double factor;
    ds_dtype dtype;
} dsi_bucket_use;

typedef struct dsi_localizing {
    const dsi_localize_params *params;
    const dsi_propagation *placed;
    dsi_rewrite r;
    dsi_moves_memo memo;
    ds_cells *cells;        /* local */
    dsi_other_form *others; /* per value of the logical graph */
    ds_value *outputs;      /* per output of the graph: complete, behind the node that makes it */
    int64_t *bucket_of;     /* per node that completes a gradient */
    dsi_bucket_use *uses;   /* numbers in the local graph: n_uses of them */
    uint32_t n_uses, uses_capacity;
    dsi_bucket bucket;
    /* Parameters that were gathered. Per cell: the newest value, DS_NONE before; and `used`, the
     * elements of parameters used so far, when it was used last. */
    ds_value *gathered;
    ds_phase *gathered_in; /* the phase of its newest use */
    int64_t *used_at;
    int64_t used;
} dsi_localizing;

/* Whether the parts of a value that is placed so have one shape on all ranks. */
bool dsi_parts_are_even(const dsi_mesh *mesh, const dsi_placement *at, ds_shape shape);

/* The bucket of the next tensor: the open one, or a new one when it does not fit. */
int64_t dsi_bucket_next(dsi_bucket *bucket, int64_t count, ds_dtype dtype, int64_t limit);
void dsi_bucket_close(dsi_bucket *bucket);
/* Sets attrs->bucket: the number in the local graph of a bucket's tensors that this operator
 * carries along these axes, with this factor and dtype; -1 for -1. Errors: ERR_NOMEM. */
ds_status dsi_bucket_number(dsi_localizing *l, int64_t bucket, const ds_op *op, ds_dtype dtype,
                            dsi_comm_attrs *attrs);
/* Fills bucket_of: gradients share a bucket in the order in which the backward pass makes them. */
ds_status dsi_bucket_gradients(dsi_localizing *l);

/* The local value of `v`, which is placed `from`, as it is needed. bucket: of a reduction, -1:
 * alone.
 */
ds_status dsi_localize_value(dsi_localizing *l, ds_value v, const dsi_spread *from,
                             const dsi_spread *need, int64_t bucket, ds_value *value_out);

ds_status dsi_localize_apply(dsi_localizing *l, const ds_op *op, const void *attrs, ds_value in,
                             ds_value *value_out);
/* The same without looking for one that was made before: nodes of the change. */
ds_status dsi_localize_move(dsi_localizing *l, ds_value v, const dsi_spread *from,
                            const dsi_spread *need, int64_t bucket, ds_value *value);
/* All ranks' slices along axes, as a tensor of this shape. */
ds_status dsi_localize_gather(dsi_localizing *l, const dsi_axes *axes, ds_shape shape,
                              ds_value *value);
/* A view, where the shape is another. */
ds_status dsi_localize_reshape(dsi_localizing *l, ds_shape shape, ds_value *value);
/* Attributes of a collective along axes. */
dsi_comm_attrs dsi_localize_comm(const dsi_localizing *l, const dsi_axes *axes, int64_t bucket);

/* localize_blocks.c: whether a parameter is gathered as quantized blocks, and the gather of its
 * slices along axes, as a tensor of this shape; whether a gradient's sum is so made, and the sum,
 * into slices. Errors: ERR_UNSUPPORTED names both placements where they are not those. */
bool dsi_blocks_carry_parameter(const dsi_localizing *l, ds_cell cell);
ds_status dsi_blocks_gather(dsi_localizing *l, const dsi_axes *axes, ds_shape shape,
                            ds_value *value);
bool dsi_blocks_carry_gradient(const dsi_localizing *l, ds_value v, const dsi_spread *from);
ds_status dsi_blocks_reduce(dsi_localizing *l, ds_value v, const dsi_spread *from,
                            const dsi_spread *need, int64_t bucket, ds_value *value);

/* localize_own.c: a node between what ranks have of their own and what all have (DS_OP_RANKS): a
 * name for what is there already, or an exchange of signs. */
ds_status dsi_localize_own(dsi_localizing *l, const dsi_node_info *node);
/* Likewise, a node between a rank's own rows and those of all. x: its operand, local. */
ds_status dsi_localize_rows(dsi_localizing *l, const dsi_node_info *node, ds_value x,
                            ds_value *value_out);

/* localize_experts.c: a node between rows that ranks along ep have and those of their experts.
 * in: its operands, local. */
ds_status dsi_localize_experts(dsi_localizing *l, const dsi_node_info *node, const ds_value *in,
                               ds_value *value_out);

/* localize_turn.c: parts of a sequence that go to the next rank. in: the operand, local. */
ds_status dsi_localize_turn(dsi_localizing *l, const dsi_node_info *node, const ds_value *in,
                            ds_value *value_out);

/* localize_box.c: moves of values that are cut along dims; those of flat values are the special
 * case without such a cut. Each may be made where the function before says that it is one. *value:
 * local, in the row-major order of its placement, of whatever shape. */
/* Whether an axis cuts its dim inside of the cut of one behind it (placement.h). */
bool dsi_box_is_inside(const dsi_mesh *mesh, const dsi_placement *p, uint32_t axis);
bool dsi_box_is_slice(const dsi_moves *moves, const dsi_placement *from, const dsi_placement *to);
ds_status dsi_box_slice(dsi_localizing *l, const dsi_moves *moves, const dsi_placement *from,
                        const dsi_placement *to, ds_value *value);
bool dsi_box_is_gather(const dsi_moves *moves, const dsi_placement *from, const dsi_placement *to);
ds_status dsi_box_gather(dsi_localizing *l, const dsi_moves *moves, const dsi_placement *from,
                         const dsi_placement *to, ds_value *value);
bool dsi_box_is_reduce_scatter(const dsi_moves *moves, const dsi_move *move);
ds_status dsi_box_reduce_scatter(dsi_localizing *l, const dsi_moves *moves, const dsi_move *move,
                                 const dsi_comm_attrs *attrs, ds_value *value);
bool dsi_box_is_turned_sum(const dsi_moves *moves, const dsi_move *move);
ds_status dsi_box_turned_sum(dsi_localizing *l, const dsi_moves *moves, const dsi_move *move,
                             const dsi_comm_attrs *attrs, ds_value *value);
bool dsi_box_is_all_to_all(const dsi_moves *moves, const dsi_move *move);
ds_status dsi_box_all_to_all(dsi_localizing *l, const dsi_moves *moves, const dsi_move *move,
                             ds_value *value);

#endif
