/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of ds_server. */
#ifndef DSI_SERVE_SERVER_H
#define DSI_SERVE_SERVER_H

#include "infer/generator.h"
#include "infer/sampler.h"
#include "serve/block_pool.h"

#include <deepspeed/serve.h>

typedef struct dsi_beam_group dsi_beam_group; /* beam.c */
typedef struct dsi_source dsi_source;         /* serve_source.c */

/* What a sequence of a model that carries a state has beside its row; see states.c. */
typedef struct dsi_kept {
    int64_t stops[2];      /* positions where a snapshot is wanted, -1: none */
    int32_t restores;      /* the snapshot that it begins from, until that is copied; -1: none */
    int32_t newest;        /* the snapshot that it took last, where it makes its text; -1: none */
    uint64_t newest_stamp; /* of it then */
    int64_t held_at;       /* the position of the state in its row of held ones; -1: none */
    int64_t n_again;       /* ids that run again, behind the state that it went back to */
} dsi_kept;

/* A state at the end of a registered block. */
typedef struct dsi_snapshot {
    int32_t block;
    int32_t pins;    /* sequences that begin from it and have not copied it */
    uint64_t serial; /* of the block; 0: it was never taken */
    uint64_t stamp;  /* of the last use */
} dsi_snapshot;

/* A sequence: of put, or of a request. In one list of the server's, by `next`. */
typedef struct dsi_sequence {
    struct dsi_sequence *next;
    uint64_t uid;
    uint32_t *ids; /* prompt and what was drawn; room for `most` */
    int64_t n_ids, most, n_prompt;
    int64_t n_computed; /* ids whose keys and values are in the blocks */
    int32_t *blocks;
    int64_t n_blocks;
    uint64_t serial;      /* of the last registered block; 0: none */
    int32_t tail;         /* that block, or the one that was there before it */
    int64_t n_registered; /* blocks */
    int64_t n_cached;     /* of the prompt, at the first run */
    int64_t n_batch;      /* ids in the batch that is put together */
    int64_t n_draft;      /* of them: guesses, which stand behind n_ids */
    int64_t n_wanted;     /* of the drafter: guesses that it may make in this step */
    struct dsi_sequence *shadow, *shadows; /* in the drafter, and of such a one what it follows */
    int32_t slot;                          /* of its adapter; -1: none */
    int32_t
        state; /* its row of tables and of what layers carry; -1: none, or rows are of a batch */
    dsi_kept kept;  /* of that state */
    uint64_t begin; /* the serial before its first block */
    bool of_put;
    dsi_source *source;          /* of pairs: ids are what is made of it; NULL: of others, or put */
    ds_server *server;           /* of a source */
    bool holds_source;           /* it runs: the source has blocks */
    dsi_beam_group *group;       /* which owns it; NULL: none */
    struct dsi_beam_next *nexts; /* of a group: the likeliest ids behind it */
    double score;
    bool ranked;  /* they are found */
    bool spoiled; /* its logits were not finite */
    bool embeds;  /* of ds_serve_embed */
    ds_pool pool;
    double *pooled;           /* [width]: of the rows so far */
    float *vector;            /* [width] */
    double surprise;          /* of mirostat */
    ds_prompt_score *scores;  /* [n_prompt]; NULL: not wanted, */
    int64_t n_scored;         /* of them: kept when the blocks are dropped */
    ds_serve_request request; /* its arrays are owned; not the ids of the prompt */
} dsi_sequence;

typedef struct dsi_sequences {
    dsi_sequence *first, *last;
    int64_t n;
} dsi_sequences;

/* The batch that is put together: what dsi_paged_run takes. */
typedef struct dsi_serve_batch {
    int32_t *ids, *positions, *of_token, *slots, *adapters, *lengths; /* [budget] */
    int32_t *tables;                                                  /* [sequences][table] */
    int32_t *source_tables, *source_last; /* likewise, [budget]; of pairs, as the next */
    int32_t *source_slots;                /* [max_length] */
    int64_t n_source;                     /* ids of sources that this step reads */
    int32_t *last;                        /* [rows] */
    dsi_sequence **members;               /* [sequences], in order of their rows */
    dsi_sequence **wanting;               /* [rows]: whose logits row i is, */
    int64_t *behind;                      /* [rows]: and behind how many of its ids, */
    int64_t *event; /* [rows]: and which event is of it; -1: it scores an id of a prompt */
    int64_t n_events;
    int32_t
        *copies; /* [DSI_STATE_COPIES * sequences][2]: of rows of states, ahead of the next run */
    int64_t n_copies;
    int64_t n, n_last, n_members;
} dsi_serve_batch;

/* A thread's scratch for drawing an id. */
typedef struct dsi_draw_room {
    float *logits; /* [vocab_size] */
    dsi_sample_room sample;
    int32_t *matches; /* [max_length]: of dry */
    uint16_t *seen;   /* how often an id is in the text, +1 in the prompt; zero between draws */
} dsi_draw_room;

typedef struct dsi_serve_slot {
    uint64_t id; /* of the adapter; 0: free */
    bool leaves; /* free when no sequence of it is left */
} dsi_serve_slot;

struct ds_server {
    ds_ctx *ctx;
    ds_generator *generator;
    dsi_block_pool *pool;
    int64_t block, max_sequences, max_batch_tokens, max_length, vocab_size, max_draft, max_tracked;
    bool cache;
    bool carries;         /* a state goes on from token to token: see dsi_sequence_take_state */
    int32_t *free_states; /* [max_sequences], the last n_free_states of use first */
    int64_t n_free_states;
    dsi_snapshot *snapshots; /* [n_snapshots] */
    int32_t *snapshot_of;    /* by block; -1: none; see states.c */
    int64_t n_snapshots;
    uint64_t stamp;
    bool pairs;          /* requests' ids are sources of what is made of them */
    dsi_source *sources; /* of all sequences */
    bool follows;        /* a rank above 0: ds_serve_follow alone */
    uint64_t last_uid;
    dsi_sequences waiting, running, put; /* by arrival */
    dsi_serve_slot *slots;               /* [n_slots], for adapters */
    int64_t n_slots;
    uint64_t last_adapter;
    ds_server *drafter;      /* NULL: guesses are what followed before */
    dsi_beam_group *groups;  /* all, and those that ended until the next submit */
    dsi_sequences embedding; /* the first n_embedding have all their blocks */
    int64_t n_embedding, width;
    bool embedded;      /* by the newest step */
    dsi_sequences done; /* freed outside of steps */
    dsi_serve_batch batch;
    dsi_draw_room *rooms; /* [n_threads] */
    uint32_t n_rooms;
    ds_serve_stats stats;
};

/* ---- sequence.c ---- */
ds_status dsi_sequence_create(ds_server *server, uint64_t uid, const uint32_t *ids, size_t n,
                              int64_t most, dsi_sequence **sequence_out);
void dsi_sequence_destroy(dsi_sequence **sequence);
void dsi_sequences_append(dsi_sequences *list, dsi_sequence *sequence);
/* In front of those with a larger uid. */
void dsi_sequences_insert(dsi_sequences *list, dsi_sequence *sequence);
void dsi_sequences_remove(dsi_sequences *list, dsi_sequence *sequence);
bool dsi_sequences_has(const dsi_sequences *list, const dsi_sequence *sequence);
dsi_sequence *dsi_sequences_find(const dsi_sequences *list, uint64_t uid);
void dsi_sequences_clear(dsi_sequences *list);
/* Blocks that the sequence lacks to hold n more ids than are computed. */
int64_t dsi_sequence_lacks(const ds_server *server, const dsi_sequence *sequence, int64_t n);
/* Takes them, all or none. */
bool dsi_sequence_grow(ds_server *server, dsi_sequence *sequence, int64_t n);
/* Of a model that carries a state: gives the sequence one of max_sequences rows, which it has until
 * its blocks are dropped; false: all are taken. Of others true. */
bool dsi_sequence_take_state(ds_server *server, dsi_sequence *sequence);
/* Whether that would succeed. */
bool dsi_sequence_may_run(const ds_server *server, const dsi_sequence *sequence);
/* Gives all blocks and the state back: the sequence begins anew. */
void dsi_sequence_drop_blocks(ds_server *server, dsi_sequence *sequence);
/* Of a sequence without blocks: how many full blocks of its begin are there, free ones counted in
 * *n_free_out; and takes them. */
int64_t dsi_sequence_match(const ds_server *server, const dsi_sequence *sequence,
                           int64_t *n_free_out);
/* The most that there may be. */
int64_t dsi_sequence_most_shared(const ds_server *server, const dsi_sequence *sequence);
void dsi_sequence_share(ds_server *server, dsi_sequence *sequence, int64_t n_blocks);
/* How long the sequence is for the rotary positions of one of its ids, where those are dynamic. */
int64_t dsi_sequence_length_at(const dsi_sequence *sequence, int64_t position);
/* The prompt's length, where its keys depend on it; else 0. */
int64_t dsi_sequence_grown(const ds_server *server, const dsi_sequence *sequence);
/* After a run: registers blocks that became full. */
void dsi_sequence_register(ds_server *server, dsi_sequence *sequence);

/* ---- states.c: nothing to do for models that carry no state ---- */
ds_status dsi_states_create(ds_server *server);
void dsi_states_destroy(ds_server *server);
/* Rows of states that a server of these sizes has: of its sequences, of those held while they
 * guess, and its snapshots. */
int64_t dsi_states_rows(const ds_server *server);
/* The sequence has no state, or gives up the one that it waits for. */
void dsi_states_forget(ds_server *server, dsi_sequence *sequence);
/* Whether there is a snapshot at the end of a registered block. */
bool dsi_states_has(const ds_server *server, int32_t block);
/* The sequence, which shares its blocks, begins from the snapshot at their end, and where it will
 * want snapshots. */
void dsi_states_begin(ds_server *server, dsi_sequence *sequence);
/* How many of the next n ids may run before one of those. */
int64_t dsi_states_until_stop(const dsi_sequence *sequence, int64_t n);
/* Whether a running sequence comes to a snapshot that serves more of the waiting one than n_blocks
 * do. */
bool dsi_states_awaits(const ds_server *server, const dsi_sequence *waiting, int64_t n_blocks);
/* Ahead of the sequence's part of a batch: the copy that it waits for. */
void dsi_states_restore(ds_server *server, dsi_sequence *sequence);
/* The state is that behind n_computed ids: a snapshot, where one is worth keeping. */
void dsi_states_keep(ds_server *server, dsi_sequence *sequence);
/* Guesses that do not pass the end of a block. */
int64_t dsi_states_most_guesses(const ds_server *server, const dsi_sequence *sequence, int64_t n);
/* Ahead of guesses: holds the state. */
void dsi_states_hold(ds_server *server, dsi_sequence *sequence);
/* After them: `ran` ids are behind the state, n_computed were right. */
void dsi_states_go_back(ds_server *server, dsi_sequence *sequence, int64_t ran);

/* ---- serve_source.c: nothing to do, read or lack for sequences without one ---- */
/* A sequence of the request's prompt, or of its source and the id that decoders begin with. */
ds_status dsi_sequence_of_request(ds_server *server, uint64_t uid, const ds_serve_request *request,
                                  dsi_sequence **sequence_out);
/* In a drafter: one without ids that follows a sequence of the server's, and reads its source; NULL
 * where the drafter's vocabulary or length does not hold it. */
ds_status dsi_source_shadow(ds_server *drafter, const dsi_sequence *sequence, int64_t most,
                            dsi_sequence **shadow_out);
/* The sequence, which ends, has it no more. */
void dsi_source_leave(dsi_sequence *sequence);
int64_t dsi_source_length(const dsi_sequence *sequence);
/* Blocks that holding it takes. */
int64_t dsi_source_lacks(const dsi_sequence *sequence);
/* Ids that have to be read for it then. */
int64_t dsi_source_to_read(const dsi_sequence *sequence);
/* Its blocks, all or none, until the release of the last that holds it. */
bool dsi_source_hold(ds_server *server, dsi_sequence *sequence);
void dsi_source_release(ds_server *server, dsi_sequence *sequence);
void dsi_source_table(const dsi_sequence *sequence, int32_t *table);
/* Reads that of a sequence that holds it, where it was not read. */
ds_status dsi_serve_source_read(ds_server *server, const dsi_sequence *sequence);
/* Those of all running sequences. */
ds_status dsi_sources_read(ds_server *server);

/* ---- serve.c ---- */
/* Errors: ERR_STATE on a rank that follows. */
ds_status dsi_serve_check_leads(const ds_server *server);

/* ---- batch.c ---- */
ds_status dsi_batch_create(ds_server *server);
void dsi_batch_destroy(ds_server *server);
void dsi_batch_begin(ds_server *server);
/* The next n ids of the sequence, whose blocks hold them; with logits when they are its last. n may
 * count its guesses: then each of them has logits, too. */
void dsi_batch_add(ds_server *server, dsi_sequence *sequence, int64_t n);
/* How many of the next n ids of a running sequence the batch has rows of logits for, when each of
 * the others that run takes one. */
int64_t dsi_batch_fits(const ds_server *server, const dsi_sequence *sequence, int64_t n);
/* Runs what was added; logits [n_last][V], or hidden states of all tokens [n][width]. */
ds_status dsi_batch_run(ds_server *server, bool embeds, const float **rows_out);

/* ---- embed.c ---- */
/* Numbers of a hidden state; 0: there are no plans for them. */
int64_t dsi_embed_width(const ds_generator *generator);
/* A batch of documents whose vectors are wanted; *n_out events of those that are ready. Nothing
 * runs where the first of them waits for blocks: then batch.n is 0. */
ds_status dsi_embed_step(ds_server *server, ds_serve_event *events, size_t *n_out);
/* Whether the first one that waits needs blocks that texts hold. */
bool dsi_embed_waits(const ds_server *server);

/* ---- adapters.c ---- */
ds_status dsi_serve_adapter_check(ds_server *server, uint64_t id);
/* A sequence is of an adapter, 0: of the model itself. */
void dsi_serve_adapter_begin(const ds_server *server, dsi_sequence *q, uint64_t id);

/* ---- beam.c ---- */
ds_status dsi_beams_check(const ds_server *server, const ds_serve_request *request);
/* Makes a group of request->beams->n texts, with one sequence that waits. */
ds_status dsi_beams_submit(ds_server *server, const ds_serve_request *request);
/* The likeliest ids behind a sequence of a group; of any thread, a sequence each. */
void dsi_beams_rank(const ds_server *server, dsi_sequence *q, const float *logits);
/* After its logits were ranked: goes on with the group where all its sequences are. True: it ended,
 * and *event says how. */
bool dsi_beams_go_on(ds_server *server, dsi_beam_group *group, ds_serve_event *event);
bool dsi_beams_cancel(ds_server *server, uint64_t uid);
/* Frees the groups that ended; all: every one. */
void dsi_beams_clear(ds_server *server, bool all);

/* ---- draft.c ---- */
/* Guesses what follows the sequence's ids, at most `most` of them; they stand behind its ids. */
void dsi_draft(dsi_sequence *sequence, int64_t most);

/* ---- dry.c ---- */
/* Lowers the logits of what would go on a repetition of the n ids. */
void dsi_dry(const ds_dry *dry, const uint32_t *ids, int64_t n, dsi_draw_room *room);
/* A copy that free() frees, breakers in order; NULL: no memory. */
ds_dry *dsi_dry_copy(const ds_dry *dry);

/* ---- draft_model.c ---- */
ds_status dsi_shadow_create(ds_server *server, dsi_sequence *q);
/* The sequence begins anew, or ends. */
void dsi_shadow_drop(ds_server *server, dsi_sequence *q);
/* Up to n_wanted guesses behind the ids of each running sequence: n_draft of them. */
ds_status dsi_draft_by_model(ds_server *server);

/* ---- draw.c ---- */
ds_status dsi_draw_check(ds_server *server, const ds_serve_request *request);
ds_status dsi_draw_create(ds_server *server);
void dsi_draw_destroy(ds_server *server);
/* Draws the next id of each member that has logits, an event each; finish ERROR where the logits
 * are not finite. Fills the scores of prompts. */
void dsi_draw(ds_server *server, const float *logits, ds_serve_event *events);

/* Plans alone in *server, of rank 0 of n_ranks, and its sizes; the caller destroys
 * server->generator. */
ds_status dsi_serve_plan(ds_ctx *ctx, const ds_serve_params *params, uint32_t n_ranks,
                         ds_server *server);
/* What the server of params->draft is made with: as many sequences, blocks and positions. */
ds_status dsi_serve_drafter(const ds_server *server, const ds_serve_params *params,
                            ds_serve_params *own_out);

#endif
