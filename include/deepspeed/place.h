/* SPDX-License-Identifier: Apache-2.0 */
/* Place rules: how the work of an operator may be split over the ranks along an axis of the mesh.
 *
 * Along the data-parallel axes nothing needs to be said: each rank runs the operator on its own
 * samples, whatever it is, and gradients are averaged. A rule says what else is possible where a
 * tensor is split inside one rank's batch (tensor and sequence parallelism), where a value is a sum
 * of which each rank has a term, and where it is stored in flat slices (ZeRO).
 *
 * A rule names the dims of operands by letters, as an einsum does. From it follow the ways to run
 * one node on one axis: on replicated inputs; with one letter split (every operand that has the
 * letter is split there, the others are replicated; an output without it is a sum of what the ranks
 * have, which is allowed for letters in `sums` only); or by passing terms of a sum through inputs
 * in which the operator is linear. Nothing else is done: what fits no rule is an error that names
 * the operator, the value and both placements.
 *
 * `in` and `out` have a word for each operand, separated by blanks, and in a word a letter for each
 * dim: `a` to `z` a dim; `*` all leading dims, alike in all operands; `_` a dim that is never
 * split;
 * `.` a scalar. The last word of `in` stands for all further inputs. A word of `out` may end in
 * what the output is computed from: `ok<01+2` is computed from inputs 0 and 1, and input 2 is added
 * to it (default: computed from all). Inputs are hex digits.
 *
 *     x (..,k) times w (o,k), plus a bias (o):
 *         .in = "*k ok o", .out = "*o<01+2", .split = "*ok", .sums = "k", .linear = "02|12"
 *     a function of each row:
 *         .in = "*_", .out = "*_", .split = "*"
 */
#ifndef DEEPSPEED_PLACE_H
#define DEEPSPEED_PLACE_H

#include <deepspeed/tensor.h>
#include <deepspeed/version.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DS_MAX_IN  16 /* operands of an operator */
#define DS_MAX_OUT 8

enum { DS_PLACE_NUMBERED = 4 };
enum { DS_PLACE_LETTERS = 24, DS_PLACE_GROUPS = 3 };

enum {
    DS_PLACE_ELEMENTS = 1,   /* element by element, and 0 from zeros: runs on flat slices */
    DS_PLACE_ADDS_ALL = 2,   /* adds up input 0 whatever its shape: a term of each flat slice */
    DS_PLACE_VIEW = 4,       /* the same elements in the same order: a flat slice stays one */
    DS_PLACE_MEAN_ROWS = 16, /* `means` are means over rows, which may be the ranks' own */
    DS_PLACE_MEAN = 32,      /* `means` are means over all elements: equal parts only */
    DS_PLACE_SAMPLES = 64,   /* draws random numbers by sample: split only between samples, which
                                are letter b, or the first leading dim */
    DS_PLACE_MAX = 128,      /* its sums are maxima */
    DS_PLACE_UPDATE = 256,   /* of a replicated cell beside flat states it may update a slice, which
                                is gathered afterwards */
    DS_PLACE_INTERNAL = 0x7fff0000 /* flags of the engine's own operators */
};

typedef struct ds_op ds_op;
typedef struct ds_infer ds_infer;
struct ds_place_case;

typedef struct ds_place_rule {
    const char *in, *out;
    const char *split;  /* letters that may be split, the preferred first; `*`: leading dims */
    const char *sums;   /* of those: summed over */
    const char *linear; /* groups of inputs (hex digits, `|` between groups; "all") in which the
                           operator is linear together, the other inputs being fixed */
    const char *means;  /* of DS_PLACE_MEAN and MEAN_ROWS: outputs (digits) that are means, or
                           gradients of one */
    uint32_t flags;
    void (*adapt)(struct ds_place_case *c); /* by attributes and shapes. NULL: nothing to adapt */
    void (*local)(const ds_infer *local, void *attrs); /* attributes of one rank's node, its shapes
                           being `local`'s; attrs holds the whole node's. NULL: the same */
    DS_RESERVED(4);
} ds_place_rule; /* strings: NULL is "" */

/* A rule applied to one node; `adapt` changes what the node's attributes and shapes ask for. */
typedef struct ds_place_case {
    const ds_op *op;
    const void *attrs;
    uint32_t n_in, n_out;
    const ds_meta *in_meta, *out_meta;     /* dtype NONE where absent */
    char in[DS_MAX_IN][DS_MAX_DIMS + 1];   /* a letter for each dim, `*` written as A, B … */
    char out[DS_MAX_OUT][DS_MAX_DIMS + 1]; /* likewise */
    uint32_t computed[DS_MAX_OUT], added[DS_MAX_OUT]; /* masks of inputs */
    char split[DS_PLACE_LETTERS], sums[DS_PLACE_LETTERS];
    uint32_t group[DS_PLACE_GROUPS]; /* masks of inputs */
    uint32_t n_groups;
    uint32_t means; /* mask of outputs */
    uint32_t flags;
    int64_t units[2];    /* heads: `unit_letter` is split between them only; 0: none */
    char unit_letter;    /* default 0 */
    const char *hint;    /* for errors; default NULL */
    uint32_t times[128]; /* the library's own: by letter, ranks that split it so far */
    /* The library's own: an operand that has equal blocks side by side on the dim of this letter,
     * and how many, where the others have one of them. */
    char block_letter;
    bool is_in_blocks; /* an axis has cut blocks: no other does */
    uint8_t in_blocks[DS_MAX_IN], out_blocks[DS_MAX_OUT];
    uint32_t gathered; /* inputs that may be gathered, where others are split */
    char part_letter;  /* is split between parts of as many indices only; 0: none */
    int64_t part;
    char numbered[DS_PLACE_NUMBERED]; /* of DS_PLACE_SAMPLES: letters whose indices an operand says,
                                         so that what is drawn is the same however they are split */
} ds_place_case;

#ifdef __cplusplus
}
#endif
#endif
