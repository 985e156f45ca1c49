/* SPDX-License-Identifier: Apache-2.0 */
/* ds_serve's parts: an HTTP thread that reads requests and writes answers, and an engine thread
 * that runs them.
 *
 * A job is a request for text. The HTTP thread makes it, the engine thread appends to its output,
 * both under front.lock. It is freed when both have let it go. Only the engine thread calls the
 * server, only the HTTP thread the tokenizer's scratch.
 */
#ifndef DS_TOOLS_SERVE_FRONT_H
#define DS_TOOLS_SERVE_FRONT_H

#include "base/buf.h"
#include "common/sentence_folder.h"
#include "guide/guide.h"
#include "serve/door.h"

#include <deepspeed/chat.h>
#include <deepspeed/serve.h>
#include <jansson.h>

enum { FRONT_STOPS = 16, FRONT_STOP_BYTES = 256, FRONT_ID_BYTES = 48 };

typedef struct job job;
typedef struct front front;

/* What /metrics shows; by the engine thread, read by the other. */
typedef struct front_metrics {
    ds_serve_stats stats;
    int64_t n_finished_stop, n_finished_length, n_finished_cancelled, n_finished_error;
    double ttft_sum, step_seconds;
    int64_t ttft_count;
} front_metrics;

/* An adapter, as clients call it. */
typedef struct front_adapter {
    char *name;
    uint64_t id; /* of its front_slot */
    int64_t created;
} front_adapter;

/* An adapter, as the engine's thread knows it: its id stays when a reload gives it another slot. */
typedef struct front_slot {
    uint64_t id, now; /* of front_adapter and requests; of the server that is in force */
    char *folder;
} front_slot;

/* What is served: a reload replaces it as a whole. */
typedef struct served {
    struct served *next; /* the one before it, whose requests still run */
    ds_ctx *ctx;
    ds_server *server;
    ds_encoder *encoder;
    sentence_form sentence;
    bool pairs;
    int64_t number; /* over ranks: of those that were loaded; the first is 0 */
    int64_t max_length, vocab_size, width;
    uint64_t tokenizer, stops;        /* digests of its files and ids; 0: --tokenizer has them */
    void (*destroy)(struct served *); /* all of it */
} served;

/* Loads `path` as the command line says. Errors are those of ctx. Of a thread of its own. */
typedef ds_status (*front_load_fn)(ds_ctx *ctx, const char *path, const front *f,
                                   served **served_out);

/* ---- ranks.c: reloads of layers that ranks share ---- */
/* On rank 0, by the engine's thread without the lock: the others run the steps of s from now on. */
ds_status ranks_turn_to(front *f, served *s);
/* Destroys a server that all ranks have. */
void ranks_drop(front *f, served *s);
/* Loads asked_path on all ranks, or on none. With the lock, but while it loads. */
ds_status ranks_reload(front *f, served **served_out);
/* On the others: runs what rank 0 runs, until it ends. */
ds_status ranks_follow(front *f);
void ranks_close(front *f);

/* What the HTTP thread wants of the engine's between two steps. */
typedef struct front_command {
    const char *folder; /* of an adapter to load; NULL: unload id */
    uint64_t id;        /* of the front_slot */
    ds_status status;
    char error[512];
    bool taken; /* the engine's thread is at it */
    bool done;
} front_command;

/* A rank of a job whose ranks share the layers. */
typedef struct front_rank {
    int64_t process;
    char host[64];
} front_rank;

struct front {
    door door;
    ds_ctx *ctx; /* of the engine thread; that of the server in force */
    ds_comm *comm;
    front_rank *ranks; /* [n_ranks] */
    size_t n_ranks;
    const serve_options *options;
    ds_server *server;      /* NULL: the model is an encoder, */
    ds_encoder *encoder;    /* which gives vectors alone */
    bool pairs;             /* prompts are sources: they take no positions of a text */
    sentence_form sentence; /* how */
    int64_t width;          /* of vectors; 0: there are none */
    const ds_tokenizer *tokenizer;
    const ds_chat *chat;        /* NULL: the model has no template */
    const dsi_call_form *calls; /* NULL: the template has no place for tools */
    ds_tokenizer_scratch *scratch;
    ds_ctx *http_ctx; /* errors of the HTTP thread */
    const char *name; /* of the model, as clients call it */
    char fingerprint[32];
    dsi_vocabulary *words; /* NULL: no request has needed them; made by the HTTP thread */
    uint32_t *stop_ids;    /* [n_stop_ids]; what ends a text, the first n_eos_ids also one of MII */
    size_t n_stop_ids, n_eos_ids;
    int64_t created, max_length, vocab_size;
    pthread_mutex_t lock;
    pthread_cond_t wake, answered;
    front_command *command;  /* NULL: none waits */
    front_adapter *adapters; /* [n_adapters]; of the HTTP thread, once that runs */
    size_t n_adapters;
    front_slot *slots; /* [n_slots]; of the engine's thread, once that runs */
    size_t n_slots;
    uint64_t last_slot;
    /* a reload: see reload.c */
    front_load_fn load;
    served *in_force; /* NULL: what the command line made */
    served *fresh;    /* loaded, for the engine's thread to take */
    served *ending;   /* those before, while they have requests */
    served *followed; /* over ranks: whose steps the others run; see ranks.c */
    int64_t n_loaded;
    bool loads_here; /* over ranks: the engine's thread is to load asked_path */
    char *path;      /* what is served, as it was asked for */
    uint64_t tokenizer_digest, stops_digest;
    pthread_t loader;
    bool loading, loader_made;
    job *asked; /* who waits for it; NULL: a signal asked */
    char *asked_path;
    double asked_at;
    int64_t n_reloads, n_failed_reloads;
    job *queued, **queued_end; /* new jobs, for the engine thread */
    job *running;              /* what it has taken; changed by it alone */
    int64_t n_jobs;            /* made and not freed */
    bool stop, broken;
    uint64_t last_job;
    /* the engine's thread: see watch.c */
    int64_t beat;            /* turns that it has begun */
    bool idle;               /* it waits for work, and there is none */
    int64_t seen_beat;       /* by the main thread, which has seen no other one */
    double stalled, watched; /* for so many seconds; when it looked last */
    uint64_t secret;         /* seeds of requests that name none */
    front_metrics metrics;
};

/* ---- calls.c: calls of tools in an answer ---- */
typedef enum call_state {
    CALL_TEXT,
    CALL_NEVER, /* text, to its end */
    CALL_SKIPS, /* what the form says */
    CALL_NAME,
    CALL_ARGUMENTS,
    CALL_BETWEEN
} call_state;

typedef struct call_reader {
    call_state state, then;
    size_t skip, n_taken;
    int64_t depth; /* of the arguments */
    bool in_string, escaped;
    int64_t n_calls;
    dsi_buf held; /* may begin a call; or the name so far */
} call_reader;

/* What is found. */
typedef struct call_sink {
    void *user;
    void (*text)(void *user, const char *text, size_t n);
    void (*begin)(void *user, const char *name);
    void (*arguments)(void *user, const char *text, size_t n);
} call_sink;

/* How a model with this chat template writes calls; NULL: the template has no place for tools. */
const dsi_call_form *calls_form(const char *chat_template);
/* n bytes of an answer, whole characters. Its text goes on in one piece, but for what may begin a
 * call: that is held back. */
void calls_take(call_reader *r, const dsi_call_form *form, const char *text, size_t n,
                const call_sink *to);
/* Whether what ended here is whole calls, the last with all its arguments. */
bool calls_whole(const call_reader *r);
/* The answer ended: what was held back is text. */
void calls_end(call_reader *r, const call_sink *to);

/* ---- job.c: what a request asks for, and its output ---- */
typedef struct choice {
    uint64_t uid;  /* 0: not running */
    uint32_t *ids; /* the prompt; owned by the first choice of it */
    size_t n_ids;
    bool owns_ids;
    char *echo;          /* text of the prompt; NULL: none is echoed */
    uint32_t echo_flags; /* DS_DECODE_*: how its ids make it */
    ds_detokenizer *decoder;
    dsi_buf text;                  /* what was sent, or will be */
    dsi_buf pending;               /* drawn, but may begin a stop string */
    size_t n_early;                /* its bytes of before min_tokens: none ends a stop string */
    call_reader reader;            /* of an answer that may call tools */
    dsi_buf calls;                 /* the calls, as JSON but for the end of the last */
    dsi_buf arguments;             /* of a call: what was drawn last */
    dsi_buf vector;                /* of /v1/embeddings: floats */
    dsi_buf drawn;                 /* ids, where the text has a form */
    dsi_buf logprobs;              /* entries behind each other, as JSON */
    dsi_buf tops, offsets, pieces; /* of completions: the other columns */
    dsi_buf prompt;                /* prompt_logprobs, as JSON */
    int64_t n_new, n_cached, n_logprobs;
    double logprob;     /* of all its ids, with best_of */
    const char *finish; /* NULL: goes on */
    bool begun;
} choice;

struct job {
    job *next;
    front *f;
    struct MHD_Connection *connection;
    int fd;
    bool of_chat, streams, usage, logprobs, suspended, gone, done, taken;
    bool of_response;        /* of /v1/responses: a chat whose answer is told otherwise */
    char *model;             /* what the client called it, an adapter; NULL: the model's own name */
    const char *model_asked; /* of the path of /mii/NAME, while the body is read */
    bool of_mii;             /* of /mii/NAME */
    int64_t most_together;   /* tokens of a prompt and its text; 0: what fits */
    bool embeds;             /* of /v1/embeddings */
    bool base64;             /* its vectors are */
    int64_t dimensions;
    bool ranks_prompt; /* prompt_logprobs was asked for, */
    int32_t n_ranked;  /* with so many of the likeliest */
    bool prompt_alone; /* max_tokens 0: nothing is made, one id is drawn for nobody */
    bool own_stops;    /* the client named ids that end a text */
    int holders;       /* HTTP thread, engine thread */
    char id[FRONT_ID_BYTES];
    int64_t created;
    double arrived;
    choice *choices; /* prompt by prompt */
    size_t n_choices, n_prompts, n_of_each;
    size_t n_kept;              /* of each prompt: the likeliest are answered (best_of); 0: all */
    ds_server *server;          /* where its texts run; NULL: not yet, or an encoder's */
    ds_serve_request request;   /* all but ids and seed; its arrays are owned */
    dsi_guide *guide;           /* the form of the texts; NULL: none */
    const dsi_call_form *calls; /* how the answers call tools; NULL: they do not */
    char stops[FRONT_STOPS][FRONT_STOP_BYTES];
    size_t n_stops;
    dsi_buf out;      /* what the client gets */
    size_t n_sent;    /* of it */
    int64_t n_events; /* of a response's stream */
    dsi_buf echoed;   /* members of a response that repeat the request */
    unsigned status;
};

/* Positions that a prompt of n ids takes in its text: of a source the id that texts begin with. */
static inline int64_t front_positions(const front *f, size_t n)
{
    return f->pairs ? 1 : (int64_t)n;
}

/* Frees when nobody holds it any more. With the lock. */
void job_release(job *j);
/* An event of choice c; the text goes to the output. With the lock. *stop_out: a stop string was
 * there, the sequence is to be cancelled. */
void job_take(job *j, choice *c, const ds_serve_event *event, bool *stop_out);
/* Of ds_serve_request.guide; user: the job. */
void job_guide(void *job, const uint32_t *text, size_t n, float *logits, int64_t n_logits);
/* Everything ended: the rest of the output. With the lock. */
void job_end(job *j);
/* Ends with an error. With the lock. */
void job_fail(job *j, unsigned status, const char *type, const char *message);

/* ---- logprobs.c ---- */
/* Appends text as a JSON string. */
void put_text(dsi_buf *out, const char *text, size_t n);
/* The same; bytes that are no UTF-8 become question marks. */
void put_clean(dsi_buf *out, const char *text, size_t n);
/* Of an id that was drawn, before its text is the choice's: into the choice's columns. */
void logprobs_take(job *j, choice *c, const ds_serve_event *event);
/* Of its prompt, whose every id has a score: before all else. */
void logprobs_prompt(job *j, choice *c, const ds_prompt_score *scores);

/* ---- api.c: bodies of requests ---- */
/* Reads the body of a chat or of a completion. ignored: names of fields without effect, for a
 * header. false: *e is filled, and the job only holds what is to be freed. */
bool api_read(front *f, json_t *body, bool of_chat, job *j, dsi_buf *ignored, api_error *e);
/* Messages as text, by the template; freed with ds_chat_text_free. */
bool api_render(front *f, json_t *body, ds_chat_text *text_out, dsi_buf *ignored, api_error *e);

/* ---- embed.c: /v1/embeddings ---- */
/* As api_read. */
bool embed_read(front *f, json_t *body, job *j, dsi_buf *ignored, api_error *e);
/* The vector of choice c as the model gives it. With the lock. */
void embed_take(job *j, choice *c, const float *vector);
/* All have theirs: the answer. With the lock. */
void embed_end(job *j);

/* ---- lora.c: adapters that clients choose, load and unload; of the HTTP thread ---- */
const front_adapter *lora_find(const front *f, const char *name);
/* Before the threads run: the adapters of the command line. */
ds_status lora_open(ds_ctx *ctx, front *f);
void lora_close(front *f);
/* Of the engine's thread: a slot for an adapter that the server has as `now`; 0: no memory. */
uint64_t lora_slot_add(front *f, const char *folder, uint64_t now);
void lora_slot_remove(front *f, uint64_t id);
/* What the server in force calls it; an id that is not there stays as it is. */
uint64_t lora_slot_now(const front *f, uint64_t id);
/* The adapters into the server of a reload, before it is in force; f is unchanged where one fails.
 */
ds_status lora_slots_load(front *f, served *s);
/* Bodies {"lora_name", "lora_path"} and {"lora_name"}; false: *e is filled. */
bool lora_load(front *f, json_t *body, api_error *e);
bool lora_unload(front *f, json_t *body, api_error *e);

/* ---- responses.c ---- */
/* The body as that of a chat, a new reference, and what the answer repeats. NULL: *e is filled. */
json_t *response_body(json_t *body, dsi_buf *echoed, dsi_buf *ignored, api_error *e);
/* Events of a stream, and the end of any response. With the lock. */
void response_begin(job *j);
void response_delta(job *j, const char *text, size_t n);
void response_end(job *j);
void response_fail(job *j, const api_error *e);

/* ---- reload.c: other weights without an end ---- */
/* What must stay as it is; NULL: all does. */
const char *reload_differs(const front *f, const served *s);
/* A digest of the files of a folder that say what tokens and chats are. */
uint64_t reload_digest(const char *folder);
/* A digest of the ids that begin and end its texts, which are not in those files alone. */
uint64_t reload_stops(const ds_tokenizer *tokenizer);
/* Begins one, of `path` or NULL: of what is served. j: the job that is answered, with the lock held
 * by nobody; NULL: none. false: *e. */
bool reload_begin(front *f, const char *path, job *j, api_error *e);
/* Of the engine's thread, between steps: takes what is loaded, drops what has ended. With the lock.
 */
void reload_take(front *f);
/* At the end: waits for the loader, frees. Without the lock, when the engine's thread is gone. */
void reload_close(front *f);

/* ---- mii.c: DeepSpeed-MII's REST gateway ---- */
/* The body as that of a completion of the model `name`, a new reference. NULL: *e is filled. */
json_t *mii_body(json_t *body, const char *name, job *j, dsi_buf *ignored, api_error *e);
/* All have ended: the answer. With the lock. */
void mii_end(job *j);
/* A frame of its stream: n bytes of new text; finish NULL: it goes on. With the lock. */
void mii_frame(job *j, const choice *c, const char *text, size_t n, const char *finish);

/* ---- page.c: the chat page; NULL: no memory ---- */
struct MHD_Response *page_response(void);

/* ---- http.c ---- */
ds_status http_start(ds_ctx *ctx, front *f);

/* ---- watch.c: an engine that hangs; of the main thread but watch_hangs ---- */
/* Looks at its beat; some times a second. */
void watch_tick(front *f);
/* Whether no turn of it has ended for --hang_seconds. With the lock. */
bool watch_hangs(const front *f);
/* Waits for its end; ends the process where it hangs. */
void watch_join(front *f, pthread_t engine);

/* ---- control.c: of a replica ---- */
/* The first line of standard input: "KEY N", N replicas share this machine. Then each byte asks for
 * a reload, and its end ends the server. */
ds_status control_obey(ds_ctx *ctx, serve_options *o);

/* ---- life.c ---- */
/* The whole of it: until a signal. */
ds_status front_run(ds_ctx *ctx, serve_options *o);

/* ---- engine.c: the engine thread ---- */
void *engine_run(void *front);

/* ---- metrics.c; with the lock ---- */
void metrics_print(front *f, dsi_buf *out);
/* A member "ranks" behind another one; of one rank nothing. Needs no lock. */
void ranks_print(const front *f, dsi_buf *out);
/* The texts that are made, and places that are free, as JSON. */
void slots_print(front *f, dsi_buf *out);

#endif
