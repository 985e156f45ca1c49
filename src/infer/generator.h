/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of ds_generator. */
#ifndef DSI_INFER_GENERATOR_H
#define DSI_INFER_GENERATOR_H

#include "ckpt/gguf_blocks.h"
#include "ckpt/int4_blocks.h"
#include "compile/slot_graph.h"
#include "exec/exec.h"
#include "infer/sampler.h"
#include "pass/offload.h"
#include "place/part.h"
#include "place/stage_cut.h"
#include "place/zero.h"
#include "train/engine.h"

#include <deepspeed/infer.h>

enum { DSI_GENERATOR_PIECES = 48, DSI_GENERATOR_CELLS = 1 << 20 };
enum { DSI_STATE_COPIES = 4 }; /* of rows of states, of each sequence between two batches */

/* A plan for pieces of one length, and the cells of its inputs. */
typedef struct dsi_piece {
    int64_t length;
    dsi_plan *plan;
    uint32_t id; /* in the executor */
    ds_cell input_ids, positions, kv_offset, last;
    ds_cell first;                      /* of an encoder, in the place of the last two */
    ds_cell types;                      /* of tokens, of an encoder; NONE: it has none */
    ds_cell source_end;                 /* of the half of pairs that decodes */
    ds_cell sequence;                   /* its length so far, of many sequences in a row that of
                                           each token's; DS_NONE: the model does not ask */
    uint32_t first_message, n_messages; /* of the generator's; generator_stages.c */
    int64_t rows; /* of logits or hidden states; of many sequences in a row, as the cells below */
    ds_cell tables, of_token, slots, adapters; /* adapters: NONE without slots for them */
    ds_cell source_tables, source_last;        /* NONE: the model reads no sources */
} dsi_piece;

typedef struct dsi_generator_offload dsi_generator_offload; /* generator_offload.c */

/* What an encoder gives. */
typedef struct dsi_encoder_task {
    uint32_t task, n_classes;          /* of ds_trace */
    const ds_task_params *task_params; /* likewise */
} dsi_encoder_task;

struct ds_generator {
    ds_ctx *ctx;
    const ds_model *model;
    ds_engine *engine; /* whose weights it has; NULL: of a file */
    bool *shared;      /* by cell: it is the engine's memory; NULL: none is (generator_engine.c) */
    uint64_t engine_steps; /* of the engine, when its weights were taken */
    ds_dtype dtype, quantize;
    dsi_accel_choice accel;
    int64_t max_length;
    int64_t vocab_size;
    ds_paged paged;        /* blocks 0: one sequence; else generator_paged.c */
    int64_t budget;        /* of tokens, of many sequences in a row */
    int64_t draws;         /* rows of logits that ids may be drawn from */
    int64_t longest_fixed; /* rotary positions of longer sequences go by their length; 0: of none */
    bool encodes;          /* encoder.c: no keys and values are kept */
    bool pairs;            /* generator_pairs.c: piece 0 decodes, the others read a source */
    dsi_encoder_task task;
    ds_cells *cells;
    ds_cells *local;       /* their parts of this rank; of one rank the same table */
    ds_cell n_model_cells; /* those below are of the first trace; behind them come those of inputs
                              of other pieces, and those that lowering and offload add */
    dsi_exec *exec;
    dsi_piece pieces[DSI_GENERATOR_PIECES]; /* ascending; the first decodes: length 1 */
    uint32_t n_pieces;
    uint32_t n_texts; /* of many sequences: the pieces behind these give hidden states, of pairs
                         those of one source */
    bool embeds;      /* there are such */
    dsi_slots slots;  /* for adapters of requests */
    dsi_generator_offload *offload; /* of weights; NULL: all are in memory */
    int64_t length;                 /* ids in the KV cells */
    uint32_t *held;                 /* they; [max_length] */
    int64_t first_step;             /* ids from here on were run one by one */
    const float *logits;            /* behind the newest id; NULL before a prompt */
    int32_t *ids;                   /* of a piece, and their positions: the longest piece each */
    dsi_sample_room room;           /* of the sampler: vocab_size each */
    double surprise;                /* of mirostat; NAN: the text begins */
    const ds_adapter *adapter;      /* NULL: none */
    dsi_gguf_blocks *gguf; /* whose blocks are taken as they are; NULL: none, or all are read */
    dsi_int4_blocks *int4; /* likewise, of a folder's matrices of whole numbers */
    ds_weight_types types; /* of gguf or int4 */
    void *source;          /* what the mapped weights live in; closed by weights.c */
    /* Layers shared by ranks (generator_ranks.c); NULL on one rank. */
    dsi_comm *comm;
    dsi_mesh_comms *mesh;
    dsi_zero_spec zero;
    dsi_place_on *tensor; /* per logical cell */
    uint32_t n_placed;    /* cells of the pieces that were lowered */
    dsi_spread *places;
    dsi_stage_of *stages;        /* per cell; NULL: one stage */
    dsi_stage_messages messages; /* of all pieces */
    float *last_logits;          /* on the first stage: those of the last */
    int32_t *orders;             /* what rank 0 has the others run */
    int32_t *tables;             /* of an order; [sequences][table], of pairs those of sources
                                    behind them */
    bool lost;                   /* a rank is: no order reaches the others */
    double ordered;              /* when the newest order of many sequences went out */
    bool all_know;               /* of a failure while it is made */
    bool is_made;                /* they follow, or will */
    bool plans_only;             /* nothing is read, allocated or run */
    uint32_t n_local;            /* ranks on this host */
    uint32_t plan_ranks;         /* of plans alone: ranks that share the layers, without comm */
};

/* Bytes that a generator takes, from its plans alone. */
typedef struct dsi_generator_needs {
    size_t weights, keys_values; /* in memory */
    size_t states;               /* that layers carry from token to token */
    size_t stored_keys, stored;  /* keys and values, and weights, in host memory or on disk */
    size_t batch;                /* inputs, and activations and workspace of the largest piece */
    size_t process;              /* plans, libraries */
} dsi_generator_needs;
void dsi_generator_count(const ds_generator *generator, dsi_generator_needs *needs_out);
size_t dsi_generator_needs_sum(const dsi_generator_needs *needs);

/* Many sequences in a row. */
typedef struct dsi_many {
    ds_paged paged;           /* rows: the most logits of a batch */
    int64_t budget;           /* of tokens */
    int64_t draws;            /* rows of them that ids may be drawn from */
    bool embeds;              /* batches may give hidden states, too */
    int64_t slots, slot_rank; /* for adapters of requests; 0: none */
    uint32_t plan_ranks;      /* of dsi_generator_plan: as with a communicator of so many; 0: one */
} dsi_many;
/* Makes a generator of one sequence (many NULL), or of many in a row. */
ds_status dsi_generator_create(ds_ctx *ctx, const ds_generator_params *params, const dsi_many *many,
                               ds_generator **generator_out);
/* Makes the plans of many sequences in a row alone, to be counted: params need no weights. */
ds_status dsi_generator_plan(ds_ctx *ctx, const ds_generator_params *params, const dsi_many *many,
                             ds_generator **generator_out);
/* One of an encoder, which encoder.c runs: plans, memory and weights. */
ds_status dsi_encoder_create(ds_ctx *ctx, const ds_generator_params *params,
                             const dsi_encoder_task *task, ds_generator **generator_out);
/* Builds a plan and finds the cells of its inputs, which are found by dsi_generator_input. */
ds_status dsi_generator_build_piece(ds_generator *generator, const ds_trace *trace,
                                    dsi_piece *piece);
ds_status dsi_generator_input(const ds_generator *generator, const char *prefix, const char *name,
                              ds_cell *cell_out);
/* The same; DS_NONE: there is none. */
ds_cell dsi_generator_find_input(const ds_generator *generator, const char *prefix,
                                 const char *name);
/* The pieces of a model of sources and what is made of them, and their inputs' cells. A prompt is a
 * source of at most max_length ids, behind which the decoder begins anew: ids that it makes are
 * counted from 0. */
ds_status dsi_pairs_check(const ds_generator *generator, const ds_generator_params *params);
ds_status dsi_pairs_build_pieces(ds_generator *generator);
ds_status dsi_pairs_find_inputs(ds_generator *generator, dsi_piece *piece);
ds_status dsi_pairs_prompt(ds_generator *generator, const uint32_t *ids, int64_t n);
/* Of many sequences: the inputs of a piece that reads a source; and reads one of 1 to max_length
 * ids, whose keys and values go to slots [n] of the blocks, NULL: nowhere; with the adapter in a
 * slot of adapters, -1: none. Which piece runs depends on n and max_length alone, and so do the
 * bits. *rows_out [n][width], borrowed until the next run. */
ds_status dsi_pairs_find_source_inputs(ds_generator *generator, dsi_piece *piece);
ds_status dsi_pairs_read_source(ds_generator *generator, const uint32_t *ids, int64_t n,
                                const int32_t *slots, int32_t adapter, const float **rows_out);
/* Whether latent attention keeps keys and values of whole heads: ranks share them, adapters are on
 * the matrix that makes them, and other accelerators' kernels have no heads as wide as what they
 * are made of. */
bool dsi_generator_whole_heads(const ds_generator *generator);
/* What routers do as in the engine whose weights it has; NULL: as the model says. */
const ds_routing *dsi_generator_routing(const ds_generator *generator);
/* The trace of a piece of one sequence; longest: the most positions of a piece. */
ds_trace dsi_generator_trace(const ds_generator *generator, int64_t length, int64_t longest);
/* The pieces of many sequences, and their inputs' cells. */
ds_status dsi_paged_build_pieces(ds_generator *generator);
ds_status dsi_paged_find_inputs(ds_generator *generator, dsi_piece *piece);
/* Tokens of sequences in a row: n ids with positions, the row of `tables` that each belongs to, and
 * where its key goes; which of them want logits. */
typedef struct dsi_paged_batch {
    const int32_t *ids, *positions, *of_token, *slots, *tables; /* tables: [sequences][table] */
    const int32_t *last;
    const int32_t *adapters; /* slots of tokens, -1: none; not read without slots */
    const int32_t *lengths;  /* of tokens' sequences; not read but where rotary ones are dynamic */
    const int32_t *source_tables, *source_last; /* of pairs: blocks of the sequences' sources, and
                                                   the last position of each token's */
    const int32_t
        *copies; /* [n_copies][2]: rows of states, from and to, in order, before it runs */
    int64_t n_copies;
    int64_t n, n_last;
    bool embeds; /* hidden states are wanted in the place of logits, n_last at most n */
} dsi_paged_batch;
/* Runs it: logits [n_last][vocab_size] or hidden states [n_last][width], borrowed until the next
 * run. 1 <= n <= budget, n_last of logits at most min(n, paged.rows). */
ds_status dsi_paged_run(ds_generator *generator, const dsi_paged_batch *batch,
                        const float **rows_out);

/* paged_ranks.c: many sequences over ranks that share the layers. Words of the longest order. */
size_t dsi_paged_order_words(const ds_generator *generator);
/* On rank 0, before it does so: has the others run a batch, or load an adapter's folder. */
ds_status dsi_paged_lead(ds_generator *generator, const dsi_paged_batch *batch);
ds_status dsi_paged_lead_slot(ds_generator *generator, int64_t slot, const char *folder);
/* Likewise reads a source, see dsi_pairs_read_source. */
ds_status dsi_paged_lead_source(ds_generator *generator, const uint32_t *ids, int64_t n,
                                const int32_t *slots, int32_t adapter);
/* On rank 0, where there is nothing to run: shows the others that it is there, and finds who is
 * not, where the last order is older than a second. */
ds_status dsi_paged_beat(ds_generator *generator);
/* On rank 0: the others' dsi_paged_follow ends. */
void dsi_paged_end(ds_generator *generator);
/* On rank 0: the others' dsi_paged_follow gives this, above 0, to its caller. */
ds_status dsi_paged_lead_turn(ds_generator *generator, int32_t what, const char *text);
/* On the others: does what rank 0 does, until it ends (0) or has another turn for the caller; the
 * text is borrowed until the next call. */
ds_status dsi_paged_follow(ds_generator *generator, int32_t *turn_out, const char **text_out);
/* Seconds that this rank waits for another one; 0: for ever. */
void dsi_generator_set_patience(ds_generator *generator, double seconds);

/* Puts an adapter into a slot: between runs. Errors: those of its folder; ERR_UNSUPPORTED and
 * ERR_LIMIT (its kind, a module without slots, its rank); the slot is as it was, or zero. */
ds_status dsi_generator_slot_load(ds_generator *generator, int64_t slot, const ds_adapter *adapter);
/* On a rank above 0: the same, told by rank 0; every rank has the same status. */
void dsi_generator_slot_follow(ds_generator *generator, int64_t slot, const char *folder);
ds_status dsi_generator_slot_clear(ds_generator *generator, int64_t slot);

/* Broadcasts rank 0's words. */
ds_status dsi_generator_order(const ds_generator *generator, int32_t *words, size_t n);
/* Whether this rank has a part of the layers. */
bool dsi_generator_is_shared(const ds_generator *generator);
/* Joins the ranks that share the layers, which compare what they read; params->comm NULL or of one
 * rank: nothing. Collective. */
ds_status dsi_generator_join(ds_generator *generator, const ds_generator_params *params);
/* Ends the others' ds_generator_follow; frees. */
void dsi_generator_leave(ds_generator *generator);
/* Replaces a piece's graph by this rank's part of it. */
ds_status dsi_generator_lower(ds_generator *generator, dsi_piece *piece, ds_graph **graph_inout);
/* Fixes the parts, after all pieces are lowered. */
ds_status dsi_generator_place(ds_generator *generator);
/* What this rank has of a cell. */
dsi_part dsi_generator_part(const ds_generator *generator, ds_cell cell);
/* The same of a shape that differs from the cell's along dims that are not cut. */
dsi_part dsi_generator_part_of(const ds_generator *generator, ds_cell cell, ds_shape shape);
/* generator_stages.c. Each does what there is to do with one stage, too. */
uint32_t dsi_generator_n_stages(const ds_generator *generator);
/* Marks a piece's graph; the first one says which stage has which weight. */
ds_status dsi_generator_mark_stages(ds_generator *generator, ds_graph *graph);
/* Whether this rank's stage has a cell. */
bool dsi_generator_has_stage_of(const ds_generator *generator, ds_cell cell);
/* Replaces a piece's local graph by this rank's stage of it. */
ds_status dsi_generator_cut_stage(ds_generator *generator, dsi_piece *piece,
                                  ds_graph **graph_inout);
/* Makes empty what this rank's stage has not, after all pieces are cut. */
ds_status dsi_generator_place_stages(ds_generator *generator);
/* Runs a piece between what it receives and what it sends. */
ds_status dsi_generator_run_stage(ds_generator *generator, const dsi_piece *piece);
/* Sets the logits, on rank 0 and on the last stage. */
ds_status dsi_generator_take_logits(ds_generator *generator, const dsi_piece *piece);
void dsi_generator_close_stages(ds_generator *generator);
/* Has the other ranks run a piece. */
ds_status dsi_generator_lead(ds_generator *generator, uint32_t piece, const uint32_t *ids,
                             int64_t n, int64_t sequence);
/* Runs n ids, 1 <= n <= the piece's length, behind what the KV cells hold. sequence: ids of the
 * whole prompt, or with the new one. */
ds_status dsi_generator_run_piece(ds_generator *generator, uint32_t piece, const uint32_t *ids,
                                  int64_t n, int64_t sequence);

/* generator_offload.c. Reads what params->config asks for. Errors: ERR_ARG. */
ds_status dsi_generator_offload_open(ds_generator *generator, const ds_generator_params *params);
/* Puts the swaps of weights that are away into a piece's local graph, and their limits into env. */
ds_status dsi_generator_offload_graph(ds_generator *generator, dsi_plan_env *env,
                                      ds_graph **graph_inout);
/* NULL: all is in memory. */
const dsi_residencies *dsi_generator_residencies(const ds_generator *generator);
bool dsi_generator_is_away(const ds_generator *generator, ds_cell cell);
/* Whether a cell that is away on disk may be read from a file where it lies, and then is: where
 * nvme_path is the model's own folder, not one for copies, whose whole blocks are read faster.
 * Before dsi_generator_allocate; path: borrowed until then. */
bool dsi_generator_offload_source(ds_generator *generator, ds_cell cell, const char *path,
                                  uint64_t offset);
/* Memory and storage of all plans. */
ds_status dsi_generator_allocate(ds_generator *generator);
void dsi_generator_offload_close(ds_generator *generator);

/* For ds_trace.types: the types of the GGUF file's matrices; NULL: that is not asked for. */
const ds_weight_types *dsi_generator_types(const ds_generator *generator);
/* Binds or remembers where each parameter comes from (before memory is allocated), and converts
 * those of another dtype (after). Closing frees the mapping. */
ds_status dsi_generator_bind_weights(ds_generator *generator, const ds_generator_params *params);
ds_status dsi_generator_convert_weights(ds_generator *generator);
/* Gives a cell its contents: fn writes them to `data`, where the cell lies or on their way there.
 */
typedef ds_status (*dsi_generator_fill_fn)(ds_generator *generator, ds_cell cell, void *data,
                                           void *user);
ds_status dsi_generator_fill(ds_generator *generator, ds_cell cell, dsi_generator_fill_fn fn,
                             void *user);
void dsi_generator_close_weights(ds_generator *generator);
/* The same of a live engine, after everything else. own: how that went on this rank. Collective. */
ds_status dsi_generator_take_engine(ds_generator *generator, ds_status own);
/* A whole number of the model by one of its names in config.json, NULL at the end; 0: it has none.
 */
ds_status dsi_model_constant(const ds_model *model, const char *const *names, int64_t *value_out);
/* max_length where it is said, else the hybrid engine's max_out_tokens or the model's positions. */
int64_t dsi_generator_longest(const ds_generator_params *params, const ds_model_info *info);
/* Before memory is allocated: has the engine's memory used where it can be. */
ds_status dsi_generator_share_engine(ds_generator *generator);
/* Whether the weights are those that were taken. Errors: ERR_STATE. */
ds_status dsi_generator_check_live(const ds_generator *generator);
/* The dtype of the stored weights, NONE when they cannot be found. */
ds_status dsi_generator_stored_dtype(ds_ctx *ctx, const ds_generator_params *params,
                                     ds_dtype *dtype_out);

#endif
