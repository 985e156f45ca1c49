/* SPDX-License-Identifier: Apache-2.0 */
/* The graph: what is computed, as data. Cells live long, values once, nodes apply operators.
 *
 * A value is an SSA result. A cell is named mutable storage (a parameter, a moment, a KV block);
 * reading it gives the value of its current version, and a node that writes it makes the next
 * version. All references are ids into the graph's arena, never pointers; destroying the graph
 * frees everything in it. A graph is built by one thread and const afterwards.
 */
#ifndef DEEPSPEED_GRAPH_H
#define DEEPSPEED_GRAPH_H

#include <deepspeed/context.h>
#include <deepspeed/packing.h>
#include <deepspeed/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef uint32_t ds_value; /* id of a value in its graph */
typedef uint32_t ds_node;  /* id of a node in its graph */
typedef uint32_t ds_cell;  /* id of a cell in its table */
#define DS_NONE UINT32_MAX /* "absent", for each of the three */

typedef struct ds_op ds_op; /* see op.h */
typedef struct ds_cells ds_cells;
typedef struct ds_graph ds_graph;

/* What a cell is for. The order is part of the checkpoint format. */
#define DS_CELL_KIND_LIST(X)                                                                       \
    X(PARAM, "param")           /* weights in the compute dtype */                                 \
    X(MASTER, "master")         /* fp32 weights of a 16-bit parameter */                           \
    X(GRAD, "grad")             /* gradient, or its accumulator */                                 \
    X(EXP_AVG, "exp_avg")       /* first moment */                                                 \
    X(EXP_AVG_SQ, "exp_avg_sq") /* second moment, or Adagrad's sum */                              \
    X(MOMENTUM, "momentum")     /* SGD's buffer */                                                 \
    X(INPUT, "input")           /* written by the host before a plan runs */                       \
    X(OUTPUT, "output")         /* read by the host after a plan ran */                            \
    X(SCALAR, "scalar")         /* step-wise numbers: learning rate, loss scale, clip factor */    \
    X(KV, "kv")                 /* keys and values of generation */                                \
    X(STATE, "state")           /* anything else that outlives a step */                           \
    X(WAITING, "waiting")       /* sum of gradients that wait for their update (ZenFlow) */        \
    X(CHOSEN, "chosen")         /* columns of a parameter apart from the rest (ZenFlow) */         \
    X(HANDED, "handed")         /* sum of gradients whose update is under way (ZenFlow) */         \
    X(MASK, "mask")             /* what of a parameter is kept (compression_training) */           \
    X(WORKER_ERROR, "worker_error")     /* lost of what a rank sends (1-bit optimizers, LoCo) */   \
    X(SERVER_ERROR, "server_error")     /* and of the sum of its slice */                          \
    X(FROZEN, "frozen")                 /* what goes with a frozen second moment (1-bit LAMB) */   \
    X(LOCAL, "local")                   /* a rank's updates that the others lack (0/1 Adam) */     \
    X(EXP_AVG_SQ_ROW, "exp_avg_sq_row") /* second moment of rows, or of a vector (Adafactor) */    \
    X(EXP_AVG_SQ_COL, "exp_avg_sq_col") /* and of columns */                                       \
    X(Z, "z")                           /* weights that steps are of (schedule-free AdamW) */      \
    X(ABSMAX, "absmax")                 /* largest magnitude of each block of exp_avg in 8 bits */ \
    X(ABSMAX_SQ, "absmax_sq")           /* and of exp_avg_sq */                                    \
    X(EXP_AVG_SLOW, "exp_avg_slow")     /* first moment that forgets slowly (AdEMAMix) */          \
    X(ABSMAX_SLOW, "absmax_slow")       /* largest magnitudes of its blocks in 8 bits */

typedef enum ds_cell_kind {
#define X(id, text) DS_CELL_##id,
    DS_CELL_KIND_LIST(X)
#undef X
        DS_CELL_KIND_COUNT
} ds_cell_kind;

/* How a fresh parameter is filled. Counter-based: the same bits on any number of ranks. */
typedef enum ds_init_kind {
    DS_INIT_ZEROS,
    DS_INIT_ONES,
    DS_INIT_NORMAL,
    DS_INIT_UNIFORM,
    DS_INIT_LOG_UNIFORM /* logarithms of numbers from 0.01 to std */
} ds_init_kind;

typedef struct ds_init {
    ds_init_kind kind;
    double std; /* of DS_INIT_NORMAL, mean 0; of DS_INIT_UNIFORM: bound of the magnitude;
                   of DS_INIT_LOG_UNIFORM: upper bound */
} ds_init;

typedef struct ds_cell_info {
    const char *name; /* path; parameters carry Hugging Face's name. Owned by the table */
    ds_cell_kind kind;
    ds_meta meta;
    ds_init init;
    ds_cell of;       /* the earlier parameter that a MASTER, GRAD … belongs to, or DS_NONE */
    bool frozen;      /* a parameter without gradient */
    bool no_decay;    /* a parameter outside weight decay: norms and biases */
    ds_packed packed; /* default: not packed. A packed matrix's meta is its bytes, u8 (N) */
    DS_RESERVED(5);
} ds_cell_info;

/* An empty table of cells, shared by the graphs of one model. ceiling: most cells it may hold. */
DS_API ds_status ds_cells_create(ds_ctx *ctx, uint32_t ceiling, ds_cells **cells_out);
DS_API void ds_cells_destroy(ds_cells **cells);
/* Adds a cell; info->name is copied. Errors: ERR_ARG on a second cell with name and kind, or when
 * info->of is not in the table. */
DS_API ds_status ds_cells_add(ds_cells *cells, const ds_cell_info *info, ds_cell *cell_out);
/* DS_NONE when absent. */
DS_API ds_cell ds_cells_find(const ds_cells *cells, ds_cell_kind kind, const char *name);
DS_API uint32_t ds_cells_count(const ds_cells *cells);
/* Borrowed, valid until the next add. */
DS_API const ds_cell_info *ds_cells_get(const ds_cells *cells, ds_cell cell);
/* Marks parameters whose name matches a glob pattern ("transformer.wte.*") as frozen; *n_out counts
 * them. Call before gradients are built. */
DS_API ds_status ds_cells_freeze(ds_cells *cells, const char *pattern, uint32_t *n_out);
/* Its meta; of a packed matrix that of the matrix as the model's files store it, in `dtype`. */
DS_API ds_meta ds_cell_unpacked(const ds_cell_info *cell, ds_dtype dtype);
DS_API const char *ds_cell_kind_name(ds_cell_kind kind);

/* When a node runs. A graph has the phases forward and backward, which run for each micro-batch,
 * and behind them those that it is given, which run once a step, in the order in which they are
 * added.
 */
typedef uint32_t ds_phase;
enum {
    DS_PHASE_FORWARD,
    DS_PHASE_BACKWARD,
    DS_PHASE_STEP, /* the first that is added */
    DS_MAX_PHASES = 16
};

/* Flags of a phase. */
enum {
    DS_PHASE_SKIPPABLE = 1, /* a step may leave it out: it passes nothing on but cells */
    DS_PHASE_SIDE = 2,      /* may run on a side stream while other phases and steps go on; one */
    DS_PHASE_ALONE = 4      /* runs only while no phase is on the side stream */
};

/* An empty graph over a borrowed table of cells, which must outlive it. */
DS_API ds_status ds_graph_create(ds_ctx *ctx, ds_cells *cells, ds_graph **graph_out);
DS_API void ds_graph_destroy(ds_graph **graph);
DS_API ds_cells *ds_graph_cells(const ds_graph *graph);
DS_API ds_ctx *ds_graph_ctx(const ds_graph *graph);

/* Adds a phase behind those that the graph has. flags: DS_PHASE_SKIPPABLE, …, or 0. name:
 * [a-z0-9_]+, copied. Errors: ERR_ARG (a name that is there, a second DS_PHASE_SIDE), ERR_LIMIT
 * (DS_MAX_PHASES), ERR_NOMEM. */
DS_API ds_status ds_graph_add_phase(ds_graph *graph, const char *name, uint32_t flags,
                                    ds_phase *phase_out);
/* DS_NONE when the graph has none of that name. */
DS_API ds_phase ds_graph_find_phase(const ds_graph *graph, const char *name);

/* The phase and scope of nodes applied from now on; phases never decrease. scope is copied. */
DS_API void ds_graph_set_phase(ds_graph *graph, ds_phase phase);
/* The region of nodes applied from now on; 0: none. Values that stay inside a region may be
 * computed again in the backward pass instead of being kept (activation checkpointing); see
 * ds_nn_region_begin() in nn.h. */
DS_API void ds_graph_set_region(ds_graph *graph, uint32_t region);
DS_API ds_status ds_graph_set_scope(ds_graph *graph, const char *scope);

/* The value of a cell's current version. */
DS_API ds_status ds_graph_read(ds_graph *graph, ds_cell cell, ds_value *value_out);

/* Applies an operator. attrs: op->attrs_bytes bytes, copied (NULL when 0). in: n_in values, DS_NONE
 * where an optional input is absent. out: receives the op's outputs (DS_NONE for absent ones), room
 * for DS_MAX_OUT. Errors: whatever the op's shape rule says, naming op, scope and shapes; ERR_GRAPH
 * when a written input is not the current version of a cell. */
DS_API ds_status ds_graph_apply(ds_graph *graph, const ds_op *op, const void *attrs,
                                const ds_value *in, uint32_t n_in, ds_value *out);

/* Declares a named output: it stays alive until the end of its phase's plan and can be read by name
 * through the executor. */
DS_API ds_status ds_graph_output(ds_graph *graph, const char *name, ds_value value);
/* DS_NONE when absent. */
DS_API ds_value ds_graph_find_output(const ds_graph *graph, const char *name);

DS_API uint32_t ds_graph_n_nodes(const ds_graph *graph);
DS_API uint32_t ds_graph_n_values(const ds_graph *graph);
DS_API ds_meta ds_graph_meta(const ds_graph *graph, ds_value value);
/* The cell whose version the value is, or DS_NONE. */
DS_API ds_cell ds_graph_cell_of(const ds_graph *graph, ds_value value);

/* Writes the graph as text: a line a cell, a node, an output, and nothing is lost. The caller frees
 * *text_out with free(). */
DS_API ds_status ds_graph_print(const ds_graph *graph, char **text_out);

/* Reads text of ds_graph_print() back: the graph prints as the same text and lowers to the same
 * plan. cells: receives the cells that it lacks, those that it has must be what the text says;
 * borrowed, must outlive the graph; what was added stays when a later line is wrong. find_op: an
 * operator by name, or NULL: ds_op_find, or a function that looks among custom operators first.
 * Errors: ERR_FORMAT naming line, column, what was expected and what was found; ERR_SHAPE and
 * ERR_GRAPH naming the line, and whatever an operator's shape rule says; ERR_LIMIT above 512 MiB or
 * the table's ceiling. Any text is safe. */
DS_API ds_status ds_graph_parse(ds_ctx *ctx, const char *text, ds_cells *cells,
                                const ds_op *(*find_op)(const char *name), ds_graph **graph_out);

#ifdef __cplusplus
}
#endif
#endif
