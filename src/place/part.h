/* SPDX-License-Identifier: Apache-2.0 */
/* The part of a logical tensor that one rank holds: a box of it, or a range of a box's elements.
 * One dim of the box may be in blocks: as many indices in each of them, at equal distances (a
 * rank's heads of packed q, k, v).
 *
 * Made by placements, read by redistribution (what overlaps with what), by checkpoints (as extents)
 * and by tests. Plain values; elements are opaque bytes.
 *
 * Invariants: the box lies inside of the tensor; [begin, begin + count) lies inside of the box's
 * row-major elements; without `flat` the range is the whole box. Local memory holds the elements in
 * row-major order, then slots - count elements of padding, zero: of a flat part, or of a box whose
 * first dim is padded to the length that all ranks have.
 */
#ifndef DSI_PLACE_PART_H
#define DSI_PLACE_PART_H

#include <deepspeed/checkpoint.h>
#include <deepspeed/tensor.h>

typedef struct dsi_part {
    uint32_t n_dims;
    bool flat;
    int64_t offset[DS_MAX_DIMS];  /* box: first index on each dim … */
    int64_t lengths[DS_MAX_DIMS]; /* … and number of indices; 0 where a rank has nothing */
    uint32_t blocks;              /* of block_dim; 0: no dim is in blocks, else 2 and more */
    uint32_t block_dim;           /* its length is that of all blocks, its offset the first one's */
    int64_t block_stride;         /* indices from one block to the next */
    int64_t padding;              /* indices of dim 0 of the box's memory that are behind the box */
    int64_t begin, count;         /* elements of the box, in row-major order */
    int64_t slots;                /* elements of local memory, padding included */
} dsi_part;

/* All of a tensor. */
dsi_part dsi_part_whole(ds_shape shape);
/* Elements that both have. Pre: parts of one tensor, here and below. */
int64_t dsi_part_common(const dsi_part *a, const dsi_part *b);
/* Whether every element of a is in b. */
bool dsi_part_inside(const dsi_part *a, const dsi_part *b);
/* Whether `a`, inside of `b`, is one range of b's elements; *at_out is where it begins (0 when a is
 * empty). */
bool dsi_part_is_range(const dsi_part *a, const dsi_part *b, int64_t *at_out);

/* Copies the elements that both have from the memory of `from` to that of `to`; returns how many.
 * Either memory may be NULL for "packed": the common elements alone, one after the other. */
int64_t dsi_part_copy(const dsi_part *from, const void *in, const dsi_part *to, void *out,
                      size_t element_bytes);
int64_t dsi_part_pack(const dsi_part *from, const void *in, const dsi_part *to, void *packed,
                      size_t element_bytes);
int64_t dsi_part_unpack(const dsi_part *from, const void *packed, const dsi_part *to, void *out,
                        size_t element_bytes);

/* The runs of elements that both have, in order: n of them at in_a of a's memory and in_b of b's.
 * Ends with the first error that `visit` returns. */
typedef ds_status (*dsi_part_visit_fn)(void *user, int64_t in_a, int64_t in_b, int64_t n);
ds_status dsi_part_visit(const dsi_part *a, const dsi_part *b, dsi_part_visit_fn visit, void *user);

/* The part as extents of a tensor: one where it is a box or where its box is the whole tensor, else
 * at most 2 · n_dims boxes, and of a dim in blocks each of them once for each block. Without blocks
 * they are in row-major order, one behind the other in the part's memory; with blocks they lie
 * there as dsi_part_of_extent() and dsi_part_copy() say. Returns how many; 0 for an empty part. */
enum { DSI_PART_MOST_BLOCKS = 8, DSI_PART_MOST_EXTENTS = 2 * DS_MAX_DIMS * DSI_PART_MOST_BLOCKS };
uint32_t dsi_part_extents(const dsi_part *part, ds_shape shape,
                          ds_extent extents_out[DSI_PART_MOST_EXTENTS]);

/* An extent of a tensor as a part of it. */
dsi_part dsi_part_of_extent(const ds_extent *extent, ds_shape shape);

/* Elements of a part that lie side by side in the tensor too. */
typedef struct dsi_run {
    int64_t begin; /* in the tensor, row-major */
    int64_t local; /* in the part's memory */
    int64_t count;
} dsi_run;
/* The run behind *run, of {0} the first; false: there is none. A flat part of a whole tensor is one
 * run. */
bool dsi_part_next_run(const dsi_part *part, ds_shape shape, dsi_run *run);

/* Shape of the local memory: the box's with its padding, or (slots) when flat. */
ds_shape dsi_part_shape(const dsi_part *part);

#endif
