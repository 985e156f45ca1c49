/* SPDX-License-Identifier: Apache-2.0 */
/* Placement rules: what each operator allows on each axis of a mesh.
 *
 * A rule is a row of a table (rule_table.c): the dims of operands as letters, as in an einsum. From
 * it follow the strategies of one node on one axis: replicate; cut a letter (every operand that has
 * it is cut there, the others are replicated; an output without it is a sum of what the ranks have,
 * if the letter is one that the operator sums over); or pass a Partial operand through because the
 * operator is linear in it. Nothing else is allowed: an operator never guesses.
 *
 * Called by propagate.c for graphs, and by tests that execute every strategy.
 *
 * Notation of `in` and `out`: a word an operand, separated by blanks; a letter a dim; `*` all
 * leading dims (the operands' `*` are alike); `_` a dim that is never cut; `.` a scalar; in `in`
 * the last word stands for all further operands. An output may say what it depends on: `ok<01+2` is
 * computed from inputs 0 and 1, and input 2 is added to it (default: computed from all). Inputs
 * behind `+` must be Partial where the output is.
 */
#ifndef DSI_PLACE_RULE_H
#define DSI_PLACE_RULE_H

#include "op/ops.h"
#include "place/placement.h"

enum {
    DSI_RULE_ELEMENTS = 1,   /* element by element, 0 from zeros: Flat operands may stay flat */
    DSI_RULE_ADDS_ALL = 2,   /* adds up input 0, however it is cut: Flat makes Partial */
    DSI_RULE_VIEW = 4,       /* the same elements in the same order: Flat stays */
    DSI_RULE_OWNER = 8,      /* needs whole tensors: Flat may stay where the cut is `tensor` */
    DSI_RULE_MEAN_ROWS = 16, /* a mean over rows: cut on the policy's mean axes only */
    DSI_RULE_MEAN = 32,      /* a mean over all elements: equal cuts only */
    DSI_RULE_SAMPLES = 64,   /* draws random numbers by sample: cut on the policy's own axes only */
    DSI_RULE_REFUSED = 128,  /* not an operator of the logical graph */
    DSI_RULE_MAX = 256,      /* its sums are maxima (DSI_TERMS_MAX) … */
    DSI_RULE_EXACT = 512,    /* … or exact (DSI_TERMS_EXACT) … */
    DSI_RULE_SIDE = 1024,    /* … or left to the readers (DSI_TERMS_SIDE) */
    DSI_RULE_UPDATE = 2048,  /* of a written cell that is replicated where others are flat it may
                                update a slice, which is gathered behind it */
    DSI_RULE_COLUMNS = 4096  /* knows by its rank which elements a slice has: also a parameter's;
                                what  it makes of a slice is completed at once */
};

enum { DSI_RULE_LETTERS = 24, DSI_RULE_GROUPS = 3, DSI_RULE_STRATEGIES = 32 };

struct dsi_rule_case;

typedef struct dsi_rule {
    const ds_op *op;
    const char *in, *out;
    const char *cuts;   /* letters that may be cut, the preferred first */
    const char *sums;   /* of those: summed over */
    const char *linear; /* groups of inputs (hex digits, `|` between groups; "all") in which the
                           operator is linear together, the other inputs being fixed */
    uint32_t flags;
    void (*adapt)(struct dsi_rule_case *c); /* by attributes and shapes; default: none */
} dsi_rule;

/* NULL when the operator has none (custom operators): it works on replicated operands only, and on
 * the rank's own samples. */
const dsi_rule *dsi_rule_find(const ds_op *op);

/* A rule applied to shapes and attributes. */
typedef struct dsi_rule_case {
    const dsi_rule *rule; /* may be NULL */
    const ds_op *op;
    const void *attrs;
    uint32_t n_in, n_out;
    const ds_meta *in_meta, *out_meta; /* dtype NONE where absent */
    char in[DS_MAX_IN][DS_MAX_DIMS + 1];
    char out[DS_MAX_OUT][DS_MAX_DIMS + 1];
    uint32_t computed[DS_MAX_OUT], added[DS_MAX_OUT]; /* masks of inputs */
    char cuts[DSI_RULE_LETTERS], sums[DSI_RULE_LETTERS];
    uint32_t group[DSI_RULE_GROUPS]; /* masks of inputs */
    uint32_t n_groups;
    uint32_t flags;
    int64_t units[2];    /* heads: `unit_letter` is cut between them only; 0: none */
    char unit_letter;    /* default 0 */
    const char *hint;    /* for errors; default NULL */
    uint32_t times[128]; /* by letter: ranks that cut it so far, 0 means 1 */
} dsi_rule_case;

void dsi_rule_case_make(const ds_op *op, const void *attrs, const ds_meta *in, uint32_t n_in,
                        const ds_meta *out, uint32_t n_out, dsi_rule_case *c_out);

/* What the operator's Partial operands are of the ranks' terms. */
dsi_terms dsi_rule_terms(const dsi_rule_case *c);

/* What is agreed of axes, beside their sizes. Masks of axes. */
typedef struct dsi_place_policy {
    uint32_t mean;     /* the loss is the mean of the ranks' means over their own rows */
    uint32_t own;      /* random states count from the rank's own first sample */
    uint32_t gather;   /* a cut value may be gathered */
    uint32_t exchange; /* a value may change from one cut to another (Ulysses, experts) */
    size_t most_bytes; /* of any redistribution, see dsi_redistribution; 0: no bound */
} dsi_place_policy;

/* mean and own on dpr, dps, ep; no gathers; exchanges on sp and ep. */
dsi_place_policy dsi_place_policy_default(void);

/* One way to run a node on one axis. */
typedef struct dsi_strategy {
    char letter; /* that is cut; 0: none */
    bool linear; /* passes Partial */
    dsi_place_on in[DS_MAX_IN], out[DS_MAX_OUT];
    uint32_t averaged; /* outputs that the axis then averages: the value is the sum over its ranks
                          divided by their number */
    uint32_t averaged_in; /* inputs that are added to those, and must be averaged as well */
} dsi_strategy;

/* All strategies of the case on an axis, replicate first; returns how many. */
uint32_t dsi_rule_strategies(const dsi_rule_case *c, const dsi_mesh *mesh, dsi_axis axis,
                             const dsi_place_policy *policy,
                             dsi_strategy list_out[DSI_RULE_STRATEGIES]);

/* Attributes of the node for a rank's part, into attrs_out (op->attrs_bytes): heads and shapes are
 * the local ones. need: the inputs' placements, out: the outputs'. */
void dsi_rule_local_attrs(const dsi_rule_case *c, const dsi_mesh *mesh, const dsi_placement *need,
                          const dsi_placement *out, uint32_t rank, void *attrs_out);

/* The axis-th strategy taken: later axes know what is cut already. */
void dsi_rule_case_take(dsi_rule_case *c, const dsi_mesh *mesh, dsi_axis axis,
                        const dsi_strategy *s);

#endif
