/* SPDX-License-Identifier: Apache-2.0 */
/* Serving: many sequences at once, on the plans and the executor of generation.
 *
 * Keys and values of all sequences lie in blocks of shared cells, planned once. A step runs one
 * batch: the next token of every sequence that has its prompt, then pieces of prompts, up to a
 * budget of tokens (Dynamic SplitFuse: Holmes et al., "DeepSpeed-FastGen", arXiv 2401.08671;
 * blocks: Kwon et al., "Efficient memory management for large language model serving with
 * PagedAttention", SOSP 2023). A sequence's logits, and with a seed its tokens, have the same bits
 * alone and in any crowd, whatever the budget, the order, the number of threads, the prefix cache
 * and preemption.
 *
 *     ds_serve_create(ctx, &params, &server);
 *     ds_serve_submit(server, &request, &uid);
 *     while (ds_serve_step(server, events, room, &n) == DS_OK && n …) …
 *
 * or a batch at a time by put, query and flush, as in DeepSpeed's InferenceEngineV2. Where layers
 * carry a state (ds_serve_needs.states), a sequence of put holds one until its flush: requests that
 * find none left wait for that, and steps meanwhile end without events. Of a model of sources and
 * what is made of them (ds_model_info.pairs) a request's ids are its source, which the encoder
 * reads whole, and its text begins with start_id; put and prompt_logprobs are ERR_UNSUPPORTED
 * there, and a drafter is such a model too, or ERR_UNSUPPORTED. A step allocates nothing;
 * submit and put allocate what a sequence needs. One thread calls a server.
 */
#ifndef DEEPSPEED_SERVE_H
#define DEEPSPEED_SERVE_H

#include <deepspeed/encoder.h>
#include <deepspeed/infer.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ds_server ds_server;

enum { DS_SERVE_MOST_TOP = 20 }; /* of the likeliest ids that an event has */
enum { DS_SERVE_MOST_BEAMS = 64 };
enum { DS_SERVE_MOST_DRAFT = 16 }; /* ids that a sequence guesses in a step */

typedef struct ds_serve_params {
    /* Model, weights, dtype, max_length …; with comm its ranks share the layers, as there: creation
     * is collective with the same params, rank 0's server is used as one of a single rank is, and
     * the others call ds_serve_follow */
    ds_generator_params source;
    int64_t max_sequences; /* of a batch; of models that carry a state (ds_model_info.carries) also
                              the most that ds_serve_put has at a time; default 0: 16 */
    int64_t max_batch_tokens; /* of a batch, at least max_sequences; default 0: 512 */
    int64_t kv_tokens; /* positions that all sequences have together, a multiple of kv_block and at
                          least max_length; default 0: four times max_length */
    int64_t kv_block;  /* positions of a block, a multiple of 64; default 0: 64 */
    bool no_prefix_cache; /* keys and values of a prompt's begin that were computed for another
                             sequence are not used again */
    /* Ids that a sequence guesses in a step, 0 to DS_SERVE_MOST_DRAFT: those that followed its last
     * ids where they stood before (prompt lookup). Each is drawn as ever, and the first that
     * differs ends the guess: so no id changes. With models that carry a state a sequence has a
     * second row, for the state ahead of its guesses. Default 0 */
    int64_t max_draft;
    bool embeddings;      /* build plans for ds_serve_embed, too */
    int64_t adapters;     /* slots for adapters of requests (ds_serve_adapter_load); default 0 */
    int64_t adapter_rank; /* the largest rank of such */
    /* A smaller model with the same vocabulary, which makes the guesses in the place of prompt
     * lookup; borrowed for the call, its model as source's. It has as many blocks. Default NULL */
    const ds_generator_params *draft;
    /* Keys and values in the cells, the drafter's too: f32, bf16, f16, or i8 with a scale in fp32 a
     * position and head of keys or values (code·scale; an element is off by at most its head's
     * largest magnitude / 254). Default NONE: source's dtype */
    ds_dtype kv_type;
    /* With source.comm: how long ranks wait for one another before they fail and name the one that
     * is missing. Rank 0 then calls ds_serve_step at least four times as often, with nothing to do,
     * too. Default 0: for ever; a rank that died is noticed all the same */
    double rank_seconds;
    int64_t max_tracked; /* sequences of ds_serve_put at a time; default 0: any number */
    /* Rows of logits of a batch beyond those that ids are drawn from, for prompts whose
     * log-probabilities are wanted (prompt_logprobs): such a prompt runs in pieces of at most as
     * many tokens as there are rows. Each takes memory for the vocabulary in fp32. Default 0: such
     * prompts take the rows of sequences that draw nothing */
    int64_t prompt_rows;
    /* Of models that carry a state: states at ends of blocks that are kept, so that a prompt that
     * begins as another one, or a sequence that gave up its blocks, goes on from the last one. Each
     * is a row as a sequence has; the least recently used goes first. ERR_ARG with other models and
     * with no_prefix_cache. Default 0: max_sequences */
    int64_t state_snapshots;
    DS_RESERVED(2);
} ds_serve_params;

/* As ds_generator_configure: sets what a resolved configuration says of `params`, whose source has
 * a model. Of the ragged engine's and of MII's also max_sequences, max_batch_tokens, max_tracked,
 * kv_block and kv_tokens, for which the other fields must be set. Errors: as there; ERR_NOMEM where
 * memory_config.size bytes cannot stay free; those of ds_serve_plan. */
DS_API ds_status ds_serve_configure(ds_ctx *ctx, const ds_config *config, ds_serve_params *params);
/* Builds plans, memory and weights. Errors: those of ds_generator_create; ERR_ARG names the field;
 * ERR_NOMEM before anything is loaded, with what is needed and what there is; ERR_UNSUPPORTED. */
DS_API ds_status ds_serve_create(ds_ctx *ctx, const ds_serve_params *params,
                                 ds_server **server_out);
DS_API void ds_serve_destroy(ds_server **server);
/* On the ranks above 0 of source.comm: runs what rank 0's server runs, until that is destroyed.
 * Other calls but ds_serve_destroy and ds_serve_get_stats are ERR_STATE there. Errors: ERR_STATE
 * (on rank 0, or without comm), ERR_PEER names the rank that is gone or late. */
DS_API ds_status ds_serve_follow(ds_server *server);
/* Of a live engine (source.engine): takes its parameters over again, after it has trained on, as
 * ds_generator_update does; with source.share what the engine holds whole is not copied. Keys and
 * values of the old ones are forgotten. Collective over the engine's ranks, each of which has a
 * server. Errors: ERR_STATE while there are sequences; those of ds_generator_update. */
DS_API ds_status ds_serve_update(ds_server *server);

/* ---- before it runs --------------------------------------------------------------------------
 */
/* What a server takes, in bytes, and the sizes that are in force. */
typedef struct ds_serve_needs {
    uint64_t weights;     /* in the dtype of the arithmetic; those of a folder that are stored so
                             are mapped from it */
    uint64_t keys_values; /* of kv_tokens positions */
    uint64_t batch;       /* inputs, activations and workspace of the largest batch, drawing */
    uint64_t process;     /* plans, libraries */
    uint64_t total;       /* the sum */
    uint64_t available; /* for a rank: its device's, or its share of this machine or of its control
                           group; 0: unknown */
    uint64_t position;  /* keys and values of one position */
    uint64_t parameters;
    int64_t kv_tokens, max_length, max_sequences, max_batch_tokens;
    ds_dtype dtype, kv_type; /* of the arithmetic; of keys and values */
    uint64_t stored; /* weights, keys and values on disk, or in the host's memory beside a device;
                        not in total */
    uint64_t states; /* what layers of linear attention carry, in state_rows rows: of max_sequences
                        sequences, with max_draft twice, and of state_snapshots */
    int64_t state_rows, state_snapshots; /* 0: they carry none */
    DS_RESERVED(4);
} ds_serve_needs;
/* Counts them from the plans that ds_serve_create would build, the drafter's too (all but
 * `parameters`). Nothing is read: source and draft need a
 * model alone, whose config.json says the dtype where source.dtype does not; but with
 * source.keep_blocks its weights, too, whose scales and zero points say what stays in blocks.
 * Errors: as ds_serve_create's, but for ERR_NOMEM. */
DS_API ds_status ds_serve_plan(ds_ctx *ctx, const ds_serve_params *params,
                               ds_serve_needs *needs_out);

/* ---- a batch at a time -----------------------------------------------------------------------
 */
/* Runs n sequences together: sequence uids[i] goes on by lengths[i] >= 1 ids, one after the other
 * in `ids`. An unknown uid begins a sequence. Behind it logits_out[i*V ...] are those of its last
 * id, borrowed until the next call. Errors: ERR_LIMIT (more sequences, ids or blocks than there is
 * room for, or than max_tracked or states; nothing is changed), ERR_ARG (a uid twice, or of submit;
 * an id outside of the vocabulary). */
DS_API ds_status ds_serve_put(ds_server *server, size_t n, const uint64_t *uids,
                              const uint32_t *ids, const size_t *lengths, const float **logits_out);
/* How many of max_tokens ids sequence uid could go on by with at most max_blocks more blocks, and
 * how many blocks that takes. An unknown uid asks for a new sequence; 0 and 0 when there is no room
 * for one. */
DS_API void ds_serve_query(const ds_server *server, uint64_t uid, int64_t max_tokens,
                           int64_t max_blocks, int64_t *n_tokens_out, int64_t *n_blocks_out);
/* Forgets a sequence of put. Errors: ERR_NOT_FOUND. */
DS_API ds_status ds_serve_flush(ds_server *server, uint64_t uid);

/* ---- requests --------------------------------------------------------------------------------
 */
typedef struct ds_serve_bias {
    uint32_t id;
    float bias; /* added to the logit */
} ds_serve_bias;

/* Changes the logits (n_logits) of the next id, behind the n ids that were drawn so far; finite
 * ones must stay finite. Called in a step by any of its threads, for different requests at a time;
 * with max_draft also for one request, behind each of its guesses, which may turn out not to be
 * drawn: so it may depend on `text` alone. */
typedef void (*ds_serve_guide_fn)(void *user, const uint32_t *text, size_t n, float *logits,
                                  int64_t n_logits);

/* Repetitions become the less likely the longer they are (dry.c): with the newest ids repeating
 * `length` >= allowed_length earlier ones, the logit of what followed those is lowered by
 * multiplier·base^(length - allowed_length). Source: llama.cpp's sampler "dry". */
typedef struct ds_dry {
    double multiplier;        /* above 0 */
    double base;              /* at least 1; 1.75 is usual */
    int64_t allowed_length;   /* at least 1; 2 is usual */
    int64_t last_n;           /* ids of prompt and text that are looked at; 0: all */
    const uint32_t *breakers; /* no repetition goes over one of these ids */
    size_t n_breakers;
    DS_RESERVED(4);
} ds_dry;

/* When a search ends. */
typedef enum ds_beam_end {
    DS_BEAM_LIKELY, /* no running text of its present length beats the worst of n that ended */
    DS_BEAM_EARLY,  /* n texts have ended */
    DS_BEAM_NEVER   /* as LIKELY, but of the length that would be best for it */
} ds_beam_end;

/* Beam search: the n likeliest texts are gone on with at a time. The score of a text is the sum of
 * its ids' log-probabilities, divided by length^length_penalty. Source: transformers' beam search,
 * whose texts these are; ends: its early_stopping false, true and "never". */
typedef struct ds_beams {
    int64_t n;             /* 2 to DS_SERVE_MOST_BEAMS, at most max_sequences */
    double length_penalty; /* 1 is usual; 0: none */
    ds_beam_end end;
    DS_RESERVED(4);
} ds_beams;

/* All texts and arrays are copied. */
typedef struct ds_serve_request {
    const uint32_t *ids; /* the prompt: n >= 1 */
    size_t n;
    int64_t max_new_tokens;   /* at least 1; prompt and new ones together at most max_length; of a
                                 source at most max_length - 1, whatever n */
    int64_t min_new_tokens;   /* default 0; before that no stop id is drawn */
    const uint32_t *stop_ids; /* an id that ends the sequence; it is reported */
    size_t n_stop_ids;
    ds_sampling sampling;
    double repetition; /* default 0: 1. Logits of ids in prompt and text are divided by it where
                          positive, else multiplied (Keskar et al., arXiv 1909.05858) */
    double presence, frequency; /* subtracted from the logits of ids in the text: once, and as often
                                   as they are there */
    const ds_serve_bias *bias;
    size_t n_bias;
    bool logprobs; /* events have log-probabilities, of the logits as the model gives them */
    int32_t n_top; /* of the likeliest ids, 0 to DS_SERVE_MOST_TOP */
    ds_serve_guide_fn guide; /* default NULL; after all else that changes logits */
    void *guide_user;        /* borrowed while the request lives */
    const ds_dry *dry;       /* copied; default NULL; after the penalties */
    const ds_beams *beams;   /* copied; default NULL. Beside it only ids, max_new_tokens,
                                min_new_tokens and stop_ids; its one event is of BEAMS */
    uint64_t adapter;        /* of ds_serve_adapter_load; default 0: the model itself */
    /* The prompt's own log-probabilities are wanted, in the first event. All of the prompt is
     * computed then: blocks of others are no help. Not beside beams */
    bool prompt_logprobs;
    int32_t n_prompt_top; /* of the likeliest ids, 0 to DS_SERVE_MOST_TOP */
    DS_RESERVED(2);
} ds_serve_request;

/* How likely an id of a prompt was behind those before it: by the logits as the model gives them.
 * Of the first id, before which there is nothing, all is 0. */
typedef struct ds_prompt_score {
    float logprob;
    int32_t rank; /* how many ids are at least as likely, itself among them */
    int32_t n_top;
    uint32_t top_ids[DS_SERVE_MOST_TOP];
    float top_logprobs[DS_SERVE_MOST_TOP];
    DS_RESERVED(2);
} ds_prompt_score;

typedef enum ds_serve_finish {
    DS_SERVE_GOES_ON,
    DS_SERVE_STOP,   /* a stop id */
    DS_SERVE_LENGTH, /* max_new_tokens */
    DS_SERVE_ERROR,  /* logits that are not finite: there is no id */
    DS_SERVE_VECTOR, /* of ds_serve_embed */
    DS_SERVE_BEAMS   /* of a request with beams: all its texts */
} ds_serve_finish;

/* A text of a beam search. */
typedef struct ds_beam {
    const uint32_t *ids; /* [n]: without the prompt, with the stop id that ended it */
    int64_t n;
    double score;
    bool stopped; /* by a stop id; else by max_new_tokens */
    DS_RESERVED(2);
} ds_beam;

/* A new id of a request. */
typedef struct ds_serve_event {
    uint64_t uid;
    uint32_t id;
    ds_serve_finish finish;
    int64_t n_cached; /* of the prompt: ids whose keys and values were there */
    float logprob;
    int32_t n_top;
    uint32_t top_ids[DS_SERVE_MOST_TOP];
    float top_logprobs[DS_SERVE_MOST_TOP];
    const float *vector; /* of VECTOR: ds_serve_stats.width numbers; borrowed until the next call */
    const ds_beam *beams; /* of BEAMS: the best first; borrowed until the next call */
    int64_t n_beams;
    const ds_prompt_score *prompt; /* of the first event of a request with prompt_logprobs:
                                      [n_prompt]; borrowed until the next call */
    int64_t n_prompt;
    DS_RESERVED(3);
} ds_serve_event;

/* Queues a request; *uid_out is new. Errors: ERR_ARG names the field; ERR_LIMIT (longer than
 * max_length); ERR_NOMEM. */
DS_API ds_status ds_serve_submit(ds_server *server, const ds_serve_request *request,
                                 uint64_t *uid_out);
/* Queues a document of n >= 1 ids, at most max_length, whose vector is wanted: what the last layer
 * gives of its ids (behind the final norm), pooled. Its one event is a VECTOR, or an ERROR where
 * that is not finite; the vector's bits do not depend on what else runs. adapter: as of
 * ds_serve_request. Errors: ERR_STATE without ds_serve_params.embeddings; those of ds_serve_submit.
 */
DS_API ds_status ds_serve_embed(ds_server *server, const uint32_t *ids, size_t n, ds_pool pool,
                                uint64_t adapter, uint64_t *uid_out);
/* Runs one batch of what is queued and running. events: room for max_sequences * (1 + max_draft);
 * *n_out of them are filled, in the order of submission, those of a request in the order of its
 * text. Nothing to do: *n_out 0 and nothing runs (see n_running). */
DS_API ds_status ds_serve_step(ds_server *server, ds_serve_event *events, size_t *n_out);
/* Ends a request without an event; its blocks are free at once. Errors: ERR_NOT_FOUND. */
DS_API ds_status ds_serve_cancel(ds_server *server, uint64_t uid);

/* Loads a folder of PEFT's LoRA or rsLoRA of the model into a free slot; *id_out is for
 * ds_serve_request.adapter. Requests of several adapters and of none share batches, and each has
 * the bits that it has alone. Between steps; nothing else changes. Errors: ERR_LIMIT (no free slot,
 * or a rank above adapter_rank), ERR_UNSUPPORTED (DoRA, PiSSA, a module that has no slots: an
 * embedding, a head), those of ds_adapter_open and of its weights. */
DS_API ds_status ds_serve_adapter_load(ds_server *server, const char *folder, uint64_t *id_out);
/* No new request has it; its slot is free when the last one that has it ended. Errors:
 * ERR_NOT_FOUND. */
DS_API ds_status ds_serve_adapter_unload(ds_server *server, uint64_t id);

/* Counters since creation, and gauges. */
typedef struct ds_serve_stats {
    int64_t n_running, n_waiting; /* requests; waiting: no blocks yet, or preempted */
    int64_t n_blocks, n_free_blocks, block;
    int64_t n_steps, n_tokens; /* tokens that steps ran */
    int64_t n_prompt_tokens, n_cached_tokens, n_new_tokens, n_preemptions;
    int64_t max_sequences, max_batch_tokens, max_length, vocab_size;
    double weight_bytes, kv_token_bytes; /* on this rank */
    int64_t n_drafted, n_accepted;       /* ids that were guessed, and those that were drawn, too */
    int64_t max_draft;
    int64_t width; /* of a vector; 0 without ds_serve_params.embeddings */
    DS_RESERVED(4);
} ds_serve_stats;
DS_API void ds_serve_get_stats(const ds_server *server, ds_serve_stats *stats_out);

#ifdef __cplusplus
}
#endif
#endif
