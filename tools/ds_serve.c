/* SPDX-License-Identifier: Apache-2.0 */
/* ds_serve: a model folder over HTTP, as OpenAI's clients speak it; or a front of several such. */
#include "balance/balance.h"
#include "base/build_id.h"
#include "base/processor.h"
#include "comm/comm.h"
#include "common/args.h"
#include "common/args_find.h"
#include "common/chat_turns.h"
#include "common/environment.h"
#include "common/hub_flag.h"
#include "common/output.h"
#include "common/serve_flags.h"
#include "common/unpacked.h"

#include <arpa/inet.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

enum { EXIT_USE = 2, PATH_BYTES = 4096, KEY_CEILING = 1 << 20 };

static const char about[] =
    "Serves a model folder or a GGUF file over HTTP as OpenAI's clients ask for it: "
    "/v1/chat/completions, "
    "/v1/completions, /v1/responses, /v1/models, with streams, and /v1/embeddings (of an encoder "
    "those alone), DeepSpeed-MII's /mii/NAME; also /tokenize, /detokenize, "
    "/apply-template, "
    "/health, /ready, /slots and /metrics, and a chat page at /. Requests share batches; a request "
    "gets the same text "
    "alone and in any "
    "crowd, and with a seed always.\n\n"
    "With --replicas, --hostfile, --replica or --upstream it has no model, but passes requests to "
    "servers that have one: by the model's name, to the least loaded, where a prompt's begin is "
    "cached already unless that one is much busier. One that dies or hangs is out until it "
    "answers: "
    "its running streams are told, what had not begun goes to another.";

static const char after[] =
    "SIGHUP, or POST /v1/reload by a client with a key, loads the weights anew, beside those in "
    "force: running texts end on the old ones; what cannot be loaded changes nothing.\n\n"
    "Under a launcher (deepspeed --num_gpus 2 ds_serve ...) the ranks share the layers: each has a "
    "part of the weights, keys and values; rank 0 listens. "
    "Ends at SIGTERM or Ctrl-C: no new text begins, those that run are brought to their end for at "
    "most --drain_seconds; a second signal ends at once. The seed of a request that names none is "
    "drawn anew. A GGUF file is unpacked into a temporary folder first (TMPDIR), in bf16 or "
    "--dtype; "
    "with --quantize in fp32, and its blocks of that type, or with file of all types that have "
    "products (q4_0, q4_1, q5_0, q5_1, q8_0, q4_k, q5_k, q6_k), are used as they are.\n\n"
    "Examples:\n"
    "  ds_serve --model Qwen/Qwen2.5-0.5B-Instruct\n"
    "  ds_serve --model model.Q4_K_M.gguf --quantize file\n"
    "  deepspeed --num_gpus 2 ds_serve --model Qwen/Qwen2.5-0.5B-Instruct\n"
    "  ds_serve --model tuned --host 0.0.0.0 --port 80 --api_key_file keys\n"
    "  ds_serve --hostfile hosts --model tuned --host 0.0.0.0\n"
    "  ds_serve --replica='--model a' --replica='--model b.gguf --quantize file'\n\n"
    "Exit codes: 0 ended by a signal, 1 failed, 2 wrong use.";

/* ---- flags ---- */
static bool is_front(const serve_options *o)
{
    return o->hostfile != NULL || o->replicas > 0 || o->replica.n > 0 || o->upstream.n > 0;
}

/* Of a server of a model: what only a front heeds. */
static ds_status refuse_alone(ds_ctx *ctx, const serve_options *o)
{
    const char *flag = o->include != NULL             ? "include"
                       : o->exclude != NULL           ? "exclude"
                       : o->ssh_port > 0              ? "ssh_port"
                       : o->replica_port > 0          ? "replica_port"
                       : o->upstream_key_file != NULL ? "upstream_key_file"
                                                      : NULL;
    return flag == NULL
               ? DS_OK
               : ds_fail(ctx, DS_ERR_ARG,
                         "--%s goes with --hostfile, --replicas, --replica or --upstream", flag);
}

static bool is_one_of(const char *const *names, const char *name)
{
    while (*names != NULL && strcmp(*names, name) != 0) {
        ++names;
    }
    return *names != NULL;
}

/* Of a front's command line: the words that the servers get that it starts, in o->passed. */
static ds_status pass_flags(ds_ctx *ctx, const dsi_args_spec *spec, int argc, char **argv,
                            serve_options *o)
{
    static const char *const own[] = {"host",
                                      "port",
                                      "api_key_file",
                                      "tls_cert",
                                      "tls_key",
                                      "hostfile",
                                      "include",
                                      "exclude",
                                      "ssh_port",
                                      "replicas",
                                      "replica_port",
                                      "replica",
                                      "upstream",
                                      "upstream_key_file",
                                      "probe_seconds",
                                      "probe_timeout",
                                      "control",
                                      "max_connections",
                                      NULL};
    static const char *const shared[] = {"max_body", "timeout_seconds", "drain_seconds", NULL};
    const bool from_here = o->replica.n == 0 && (o->replicas > 0 || o->hostfile != NULL);
    const char *useless = NULL;
    bool keeps = false;
    bool has_model = o->model != NULL; /* also by a file */
    for (int i = 1; i < argc; ++i) {
        if (strncmp(argv[i], "--", 2) == 0) {
            const dsi_arg *row = NULL;
            bool alone = false;
            DS_TRY(dsi_args_find(ctx, spec, argv[i] + 2, strcspn(argv[i] + 2, "="), &row, &alone));
            keeps = !is_one_of(own, row->name);
            has_model = has_model || row->out == &o->model;
            useless = keeps && !is_one_of(shared, row->name) ? row->name : useless;
        }
        if (keeps) {
            dsi_words_add(&o->passed, argv[i]);
        }
    }
    if (from_here && !has_model) {
        return ds_fail(ctx, DS_ERR_ARG, "give --model DIR, which the replicas serve; or --replica");
    }
    if (!from_here && useless != NULL) {
        return ds_fail(ctx, DS_ERR_ARG, "--%s would have no effect: %s; give it there", useless,
                       o->replica.n > 0 ? "the flags of a replica are those of its --replica"
                                        : "the servers of --upstream run already");
    }
    if (o->upstream_key_file != NULL && o->upstream.n == 0) {
        return ds_fail(ctx, DS_ERR_ARG, "--upstream_key_file goes with --upstream");
    }
    if (o->hostfile == NULL && (o->include != NULL || o->exclude != NULL || o->ssh_port > 0)) {
        return ds_fail(ctx, DS_ERR_ARG, "--include, --exclude and --ssh_port go with --hostfile");
    }
    if (o->control) {
        return ds_fail(ctx, DS_ERR_UNSUPPORTED,
                       "--control is for a server of a model: a front "
                       "behind a front is not built");
    }
    return dsi_words_check(ctx, &o->passed);
}

static ds_status parse(ds_ctx *ctx, int argc, char **argv, serve_options *o, bool *help_out)
{
    const dsi_arg rows[] = {
        {.type = DSI_ARG_HEADING, .doc = "Model"},
        {.name = "model",
         .type = DSI_ARG_TEXT,
         .out = &o->model,
         .value = "DIR|FILE.gguf|ORG/NAME",
         .doc = "Model folder, GGUF file, or the name of a model in the Hugging Face cache."},
        {.name = "model_revision",
         .type = DSI_ARG_TEXT,
         .out = &o->model_revision,
         .value = "REV",
         .doc = "Of a --model by its name: branch, tag or commit; default: main."},
        {.name = "served_model_name",
         .type = DSI_ARG_TEXT,
         .out = &o->served_name,
         .value = "NAME",
         .doc = "What clients call the model; default: what --model says."},
        {.name = "adapter",
         .type = DSI_ARG_TEXT,
         .out = &o->adapter,
         .value = "DIR",
         .doc = "A folder of PEFT's: the adapter of --model."},
        {.name = "lora",
         .type = DSI_ARG_LIST,
         .out = &o->lora,
         .value = "NAME=DIR",
         .doc =
             "A folder of PEFT's LoRA that requests may name as their model, or as lora; several "
             "times."},
        {.name = "max_loras",
         .type = DSI_ARG_INT,
         .out = &o->max_loras,
         .value = "N",
         .def = "0",
         .max = 1024,
         .doc = "Slots for such adapters; default: as many as --lora names."},
        {.name = "max_lora_rank",
         .type = DSI_ARG_INT,
         .out = &o->max_lora_rank,
         .value = "N",
         .def = "16",
         .min = 1,
         .max = 4096,
         .doc = "The largest rank of one."},
        {.name = "lora_updates",
         .type = DSI_ARG_SWITCH,
         .out = &o->lora_updates,
         .doc = "Requests may load and unload adapters from folders of this machine: "
                "/v1/load_lora_adapter and /v1/unload_lora_adapter."},
        {.name = "tokenizer",
         .type = DSI_ARG_TEXT,
         .out = &o->tokenizer,
         .value = "DIR|FILE|bytes",
         .doc = "Tokenizer; default: that of the folder."},
        {.name = "chat_template",
         .type = DSI_ARG_TEXT,
         .out = &o->chat_template,
         .value = "NAME",
         .doc = "Chat template, built in or one of the tokenizer's; default: the tokenizer's own."},
        SERVE_DTYPE_ROW(&o->sizes),
        {.name = "quantize",
         .type = DSI_ARG_TEXT,
         .out = &o->quantize,
         .value = "TYPE",
         .choices = UNPACKED_QUANTIZE_CHOICES,
         .doc = UNPACKED_QUANTIZE_DOC},
        {.type = DSI_ARG_HEADING, .doc = "Clients"},
        {.name = "host",
         .type = DSI_ARG_TEXT,
         .out = &o->host,
         .value = "ADDRESS",
         .def = "127.0.0.1",
         .given_out = &o->address_given,
         .doc = "Where to listen; 0.0.0.0: everywhere."},
        {.name = "port",
         .type = DSI_ARG_INT,
         .out = &o->port,
         .value = "N",
         .def = "8000",
         .given_out = &o->address_given,
         .max = 65535,
         .doc = "0: any that is free; the first line says which."},
        {.name = "api_key_file",
         .type = DSI_ARG_TEXT,
         .out = &o->api_key_file,
         .value = "FILE",
         .doc = "Keys, a line each: a client must send one of them, but for /health and /ready."},
        {.name = "tls_cert",
         .type = DSI_ARG_TEXT,
         .out = &o->tls_cert,
         .value = "FILE",
         .doc = "Certificate with its chain, PEM: serve https alone. With --tls_key."},
        {.name = "tls_key",
         .type = DSI_ARG_TEXT,
         .out = &o->tls_key,
         .value = "FILE",
         .doc = "Its private key, PEM."},
        {.name = "max_waiting",
         .type = DSI_ARG_INT,
         .out = &o->max_waiting,
         .value = "N",
         .def = "256",
         .max = 1e6,
         .doc = "Requests beyond those of a batch; another one gets status 429."},
        {.name = "max_connections",
         .type = DSI_ARG_INT,
         .out = &o->max_connections,
         .value = "N",
         .def = "1000",
         .min = 1,
         .max = 1e5,
         .doc = "Connections at a time; another one is closed."},
        {.name = "max_body",
         .type = DSI_ARG_INT,
         .out = &o->max_body,
         .value = "BYTES",
         .def = "16777216",
         .min = 1024,
         .max = 1 << 30,
         .doc = "Of a request; more gets status 413."},
        {.name = "max_choices",
         .type = DSI_ARG_INT,
         .out = &o->max_choices,
         .value = "N",
         .def = "128",
         .min = 1,
         .max = 1024,
         .doc = "Texts of one request: prompts times n."},
        {.name = "timeout_seconds",
         .type = DSI_ARG_INT,
         .out = &o->timeout_seconds,
         .value = "N",
         .def = "60",
         .min = 1,
         .max = 86400,
         .doc = "A connection on which nothing moves is closed; not while its text is made."},
        {.name = "drain_seconds",
         .type = DSI_ARG_INT,
         .out = &o->drain_seconds,
         .value = "N",
         .def = "60",
         .max = 86400,
         .doc = "How long running texts may take to end after SIGTERM."},
        {.type = DSI_ARG_HEADING, .doc = "Front of several replicas, in the place of a model"},
        {.name = "replicas",
         .type = DSI_ARG_INT,
         .out = &o->replicas,
         .value = "N",
         .def = "0",
         .max = BALANCE_MOST,
         .doc = "Start so many servers of --model on this machine, with the other flags here, and "
                "share requests among them. Without --threads they share the cores."},
        {.name = "hostfile",
         .type = DSI_ARG_TEXT,
         .out = &o->hostfile,
         .value = "FILE",
         .doc = "Start them on the hosts of this file, a line each: 'name slots=N', over ssh, in "
                "this folder; a slot is a server. PDSH_SSH_ARGS_APPEND is heeded."},
        {.name = "include",
         .type = DSI_ARG_TEXT,
         .out = &o->include,
         .value = "NODES",
         .doc = "Only these hosts and slots: NAME[:SLOT[,SLOT…]][@NAME…]."},
        {.name = "exclude",
         .type = DSI_ARG_TEXT,
         .out = &o->exclude,
         .value = "NODES",
         .doc = "All but these."},
        {.name = "ssh_port",
         .type = DSI_ARG_INT,
         .out = &o->ssh_port,
         .value = "N",
         .def = "0",
         .max = 65535,
         .doc = "Port of the ssh servers; 0: ssh's own choice."},
        {.name = "replica_port",
         .type = DSI_ARG_INT,
         .out = &o->replica_port,
         .value = "N",
         .def = "0",
         .max = 65000,
         .doc = "Where they listen: slot K of a host at port N + K; 0: at any that is free."},
        {.name = "replica",
         .type = DSI_ARG_LIST,
         .out = &o->replica,
         .value = "'FLAGS'",
         .doc = "Start a server with these flags, as --replica='--model DIR'; several times, for "
                "several models. With --hostfile the slots take them in turn."},
        {.name = "upstream",
         .type = DSI_ARG_LIST,
         .out = &o->upstream,
         .value = "URL",
         .doc = "A server that runs already, http://HOST:PORT; several times."},
        {.name = "upstream_key_file",
         .type = DSI_ARG_TEXT,
         .out = &o->upstream_key_file,
         .value = "FILE",
         .doc = "Its first line is the key that those are asked with."},
        {.name = "probe_seconds",
         .type = DSI_ARG_REAL,
         .out = &o->probe_seconds,
         .value = "S",
         .def = "1",
         .min = 0.05,
         .max = 3600,
         .doc = "How often each server is asked how it is."},
        {.name = "probe_timeout",
         .type = DSI_ARG_REAL,
         .out = &o->probe_timeout,
         .value = "S",
         .def = "5",
         .min = 0.05,
         .max = 3600,
         .doc = "One that does not answer within it is out until it does."},
        {.name = "control",
         .type = DSI_ARG_SWITCH,
         .out = &o->control,
         .alone = "",
         .doc = "Of a front for what it starts: standard input has a key in its first line, and "
                "its end ends the server as SIGTERM does."},
        {.type = DSI_ARG_HEADING, .doc = "Engine"},
        SERVE_ROWS(&o->sizes),
        {.name = "draft_model",
         .type = DSI_ARG_TEXT,
         .out = &o->draft_model,
         .value = "DIR",
         .doc = "Folder of a smaller model with the same tokenizer, which makes the guesses of "
                "--draft (then 4 by default) in the place of what stood before. No text changes."},
        {.type = DSI_ARG_HEADING, .doc = "Vectors"},
        {.name = "pooling",
         .type = DSI_ARG_TEXT,
         .out = &o->pooling,
         .value = "NAME",
         .def = "auto",
         .choices = SENTENCE_POOLINGS,
         .doc = SENTENCE_POOLING_DOC},
        {.name = "normalize",
         .type = DSI_ARG_TEXT,
         .out = &o->normalize,
         .value = "auto|yes|no",
         .def = "auto",
         .choices = "auto|yes|no",
         .doc = "Scale vectors to length 1; auto: as the folder says (modules.json), else yes."},
        {.name = "no_embeddings",
         .type = DSI_ARG_SWITCH,
         .out = &o->no_embeddings,
         .doc = "Of a decoder: build no plans for /v1/embeddings."},
        {.type = DSI_ARG_HEADING, .doc = "Machine"},
        {.name = "rank_seconds",
         .type = DSI_ARG_INT,
         .out = &o->rank_seconds,
         .value = "N",
         .def = "7",
         .min = 2,
         .max = 86400,
         .doc = "Of several ranks: how long they wait for one another before the one that is "
                "missing is named and the server ends."},
        {.name = "accelerator",
         .type = DSI_ARG_TEXT,
         .out = &o->accelerator,
         .value = "NAME",
         .def = "auto",
         .doc = "What computes; as ds_generate's."},
        {.name = "threads",
         .type = DSI_ARG_INT,
         .out = &o->threads,
         .value = "N",
         .def = "0",
         .max = 4096,
         .doc = "Threads; default: the cores that this process may use."},
    };
    const dsi_args_spec spec = {.usage = "ds_serve [FLAGS]",
                                .about = about,
                                .rows = rows,
                                .n_rows = sizeof rows / sizeof rows[0],
                                .after = after};
    DS_TRY(dsi_args_parse_flags(ctx, &spec, argc, argv, help_out));
    if (*help_out) {
        return DS_OK;
    }
    DS_TRY(deployment_read(ctx, o));
    if (is_front(o)) {
        return pass_flags(ctx, &spec, argc, argv, o);
    }
    if (o->model == NULL) {
        return ds_fail(ctx, DS_ERR_ARG, "give --model DIR");
    }
    DS_TRY(refuse_alone(ctx, o));
    const int64_t named = (int64_t)o->lora.n;
    if (o->max_loras > 0 && o->max_loras < named) {
        return ds_fail(ctx, DS_ERR_ARG, "--max_loras %lld, but --lora names %lld",
                       (long long)o->max_loras, (long long)named);
    }
    o->max_loras = o->max_loras > 0 ? o->max_loras : named;
    return DS_OK;
}

/* ---- what is served ---- */
typedef struct parts {
    ds_model *model, *draft;
    ds_adapter *adapter;
    ds_tokenizer *tokenizer;
    ds_tokenizer_scratch *scratch;
    ds_chat *chat;
    dsi_buf keys, tls_cert, tls_key;
    unpacked unpacked; /* a GGUF file's model */
} parts;

/* What a reload replaces. */
typedef struct loaded {
    served base;
    serve_options o; /* of the command line, with the paths that were found */
    parts p;         /* model, draft, adapter and unpacked alone */
    bool owns_ctx;
} loaded;

static void destroy_loaded(served *s)
{
    loaded *l = (loaded *)(void *)s;
    ds_serve_destroy(&s->server);
    ds_encoder_destroy(&s->encoder);
    unpacked_remove(&l->p.unpacked);
    ds_adapter_destroy(&l->p.adapter);
    ds_model_destroy(&l->p.model);
    ds_model_destroy(&l->p.draft);
    free(l->o.model_found);
    if (l->owns_ctx) {
        ds_ctx_destroy(&s->ctx);
    }
    free(l);
}

static ds_status open_draft(ds_ctx *ctx, const serve_options *o, parts *p)
{
    char path[PATH_BYTES];
    if (o->draft_model == NULL) {
        return DS_OK;
    }
    (void)snprintf(path, sizeof path, "%s/config.json", o->draft_model);
    DS_TRY(ds_model_from_config(ctx, path, &p->draft));
    const int64_t own = ds_model_get_info(p->draft)->vocab_size;
    const int64_t target = ds_model_get_info(p->model)->vocab_size;
    return own == target
               ? DS_OK
               : ds_fail(ctx, DS_ERR_ARG,
                         "--draft_model %s has a vocabulary of %lld, the model's is %lld: take one "
                         "with the same tokenizer",
                         o->draft_model, (long long)own, (long long)target);
}

static ds_status open_model(ds_ctx *ctx, serve_options *o, front *f, parts *p)
{
    char path[PATH_BYTES];
    sigset_t signals;
    f->name = o->served_name != NULL ? o->served_name : o->model;
    p->unpacked.quantize = o->quantize;
    if (unpacked_is_file(o->model)) {
        if (o->model_revision != NULL || o->adapter != NULL) {
            return ds_fail(ctx, DS_ERR_ARG,
                           "--model %s is a file: --model_revision and --adapter do not go with it",
                           o->model);
        }
        listen_hold_signals(&signals); /* also after the folder is gone */
    }
    DS_TRY(unpacked_open(ctx, &p->unpacked, &o->model, &o->sizes.dtype, o->tokenizer != NULL));
    DS_TRY(hub_flag_find(ctx, "model", &o->model, o->model_revision,
                         DS_HUB_MODEL | (o->tokenizer == NULL ? DS_HUB_TOKENIZER : 0),
                         &o->model_found));
    (void)snprintf(path, sizeof path, "%s/config.json", o->model);
    DS_TRY(ds_model_from_config(ctx, path, &p->model));
    DS_TRY(open_draft(ctx, o, p));
    DS_TRY(o->adapter != NULL ? ds_adapter_open(ctx, o->adapter, &p->adapter) : DS_OK);
    return ds_adapter_fit(p->adapter, &p->model);
}

/* With the context of the HTTP thread, which alone uses them; but for decoding. */
static ds_status open_tokenizer(const serve_options *o, front *f, parts *p)
{
    DS_TRY(ds_tokenizer_open(f->http_ctx, o->tokenizer != NULL ? o->tokenizer : o->model,
                             &p->tokenizer));
    DS_TRY(ds_tokenizer_scratch_create(p->tokenizer, 0, &p->scratch));
    f->tokenizer = p->tokenizer;
    f->scratch = p->scratch;
    if (o->chat_template != NULL || ds_tokenizer_chat_template(p->tokenizer) != NULL) {
        DS_TRY(ds_chat_create(f->http_ctx, p->tokenizer, o->chat_template, &p->chat));
        f->chat = p->chat;
        f->calls = o->chat_template == NULL ? calls_form(ds_tokenizer_chat_template(p->tokenizer))
                                            : NULL; /* those that are built in have no tools */
    }
    return DS_OK;
}

/* The ids that end a text: eos, and what the template writes behind an answer. */
static ds_status find_stop_ids(front *f)
{
    const uint32_t n = ds_tokenizer_vocab_size(f->tokenizer);
    const chat_form form = {.chat = f->chat, .tokenizer = f->tokenizer, .scratch = f->scratch};
    const int64_t turn = f->chat != NULL ? chat_end_of_turn(&form) : -1;
    for (uint32_t id = 0; id < n; ++id) {
        f->n_stop_ids += ds_tokenizer_is_eos(f->tokenizer, id) || (int64_t)id == turn;
    }
    f->stop_ids = calloc(f->n_stop_ids + 1, sizeof *f->stop_ids);
    if (f->stop_ids == NULL) {
        return ds_fail(f->http_ctx, DS_ERR_NOMEM, "no memory");
    }
    f->n_stop_ids = 0;
    for (uint32_t id = 0; id < n; ++id) {
        if (ds_tokenizer_is_eos(f->tokenizer, id) || (int64_t)id == turn) {
            f->stop_ids[f->n_stop_ids++] = id;
        }
    }
    return DS_OK;
}

static ds_status read_keys(ds_ctx *ctx, const serve_options *o, front *f, parts *p)
{
    p->keys = dsi_buf_make(KEY_CEILING);
    if (o->control) { /* a line like those of the file */
        dsi_buf_printf(&p->keys, "%s\n", o->control_key);
    }
    if (o->api_key_file != NULL) {
        DS_TRY(dsi_buf_read_file(ctx, o->api_key_file, &p->keys));
    }
    char *save = NULL;
    for (char *line = p->keys.size > 0 ? strtok_r(p->keys.data, "\r\n", &save) : NULL; line != NULL;
         line = strtok_r(NULL, "\r\n", &save)) {
        char **keys = realloc(f->keys, (f->n_keys + 1) * sizeof *keys);
        if (keys == NULL) {
            return ds_fail(ctx, DS_ERR_NOMEM, "no memory for keys");
        }
        f->keys = keys;
        f->keys[f->n_keys++] = line;
    }
    return f->n_keys > 0 || o->api_key_file == NULL
               ? DS_OK
               : ds_fail(ctx, DS_ERR_ARG, "--api_key_file %s: there is no key in it",
                         o->api_key_file);
}

static ds_status read_tls(ds_ctx *ctx, const serve_options *o, front *f, parts *p)
{
    p->tls_cert = p->tls_key = dsi_buf_make(KEY_CEILING);
    if (o->tls_cert == NULL && o->tls_key == NULL) {
        return DS_OK;
    }
    if (o->tls_cert == NULL || o->tls_key == NULL) {
        return ds_fail(ctx, DS_ERR_ARG, "--tls_cert and --tls_key go together");
    }
    if (MHD_is_feature_supported(MHD_FEATURE_TLS) != MHD_YES) {
        return ds_fail(ctx, DS_ERR_UNSUPPORTED,
                       "--tls_cert: the libmicrohttpd of this machine was built without TLS");
    }
    DS_TRY(dsi_buf_read_file(ctx, o->tls_cert, &p->tls_cert));
    DS_TRY(dsi_buf_read_file(ctx, o->tls_key, &p->tls_key));
    f->tls_cert = dsi_buf_text(&p->tls_cert);
    f->tls_key = dsi_buf_text(&p->tls_key);
    return DS_OK;
}

static ds_status open_sentence(ds_ctx *ctx, const serve_options *o, front *f, const parts *p)
{
    f->sentence.pool = ds_model_get_info(p->model)->encoder ? DS_POOL_MEAN : DS_POOL_LAST;
    f->sentence.normalize = true;
    if (o->no_embeddings) {
        return DS_OK;
    }
    DS_TRY(sentence_folder(ctx, o->model, o->pooling, &f->sentence));
    if (strcmp(o->normalize, "auto") != 0) {
        f->sentence.normalize = strcmp(o->normalize, "yes") == 0;
    }
    return DS_OK;
}

static ds_status open_encoder(ds_ctx *ctx, const serve_options *o, front *f, const parts *p)
{
    if (o->quantize != NULL || o->adapter != NULL || o->sizes.draft > 0 || o->draft_model != NULL ||
        o->no_embeddings || o->max_loras > 0 || f->comm != NULL) {
        return ds_fail(
            ctx, DS_ERR_ARG,
            "%s is an encoder: --quantize, --adapter, --lora, --draft, --no_embeddings and several "
            "ranks do not go with it",
            o->model);
    }
    const ds_encoder_params params = {
        .model = p->model,
        .weights = o->model,
        .dtype = o->sizes.dtype != NULL ? ds_dtype_from_name(o->sizes.dtype) : DS_DTYPE_NONE,
        .max_length = o->sizes.max_length,
        .task = DS_TASK_HIDDEN,
        .accelerator = o->accelerator};
    DS_TRY(ds_encoder_create(ctx, &params, &f->encoder));
    f->max_length = ds_encoder_max_length(f->encoder);
    f->vocab_size = ds_model_get_info(p->model)->vocab_size;
    f->width = ds_encoder_width(f->encoder);
    f->metrics.stats = (ds_serve_stats){.max_sequences = o->sizes.max_sequences,
                                        .max_length = f->max_length,
                                        .vocab_size = f->vocab_size,
                                        .width = f->width};
    ds_log(ctx, DS_LOG_JOB, "an encoder: vectors of %lld numbers, texts of up to %lld tokens",
           (long long)f->width, (long long)f->max_length);
    return DS_OK;
}

static ds_status open_server(ds_ctx *ctx, const serve_options *o, front *f, const parts *p)
{
    if (o->lora_updates && o->max_loras == 0) {
        return ds_fail(ctx, DS_ERR_ARG, "--lora_updates needs slots: --max_loras N");
    }
    DS_TRY(open_sentence(ctx, o, f, p));
    if (ds_model_get_info(p->model)->encoder) {
        return open_encoder(ctx, o, f, p);
    }
    const ds_generator_params draft = {
        .model = p->draft,
        .weights = o->draft_model,
        .dtype = o->sizes.dtype != NULL ? ds_dtype_from_name(o->sizes.dtype) : DS_DTYPE_NONE,
        .accelerator = o->accelerator};
    ds_serve_params params = {.source = {.model = p->model,
                                         .weights = o->model,
                                         .gguf = unpacked_gguf(&p->unpacked),
                                         .adapter = p->adapter,
                                         .quantize = unpacked_quantize(&p->unpacked),
                                         .keep_blocks = p->unpacked.keeps,
                                         .accelerator = o->accelerator,
                                         .comm = f->comm},
                              .rank_seconds = f->comm != NULL ? (double)o->rank_seconds : 0.0};
    serve_flags sizes = o->sizes; /* whose weights may be away, in this folder's own files */
    ds_status status = offload_flags_open(ctx, &sizes.offload, o->model, ds_comm_size(f->comm));
    serve_flags_set(&sizes, &params);
    if (p->draft != NULL) {
        params.draft = &draft;
        params.max_draft = o->sizes.draft > 0 ? o->sizes.draft : 4;
    }
    params.embeddings = !o->no_embeddings;
    params.adapters = o->max_loras;
    params.adapter_rank = o->max_loras > 0 ? o->max_lora_rank : 0;
    status = status < 0 ? status : serve_flags_configure(ctx, &sizes, &params);
    if (status >= 0 && sizes.offload.config != NULL) {
        status = ds_generator_copy(ctx, sizes.offload.config, &params.source, o->model);
    }
    status = status < 0 ? status : ds_serve_create(ctx, &params, &f->server);
    offload_flags_close(&sizes.offload);
    if (status < 0 || ds_comm_rank(f->comm) > 0) {
        return status;
    }
    DS_TRY(lora_open(ctx, f));
    ds_serve_get_stats(f->server, &f->metrics.stats);
    const ds_serve_stats *s = &f->metrics.stats;
    f->max_length = s->max_length;
    f->width = s->width;
    f->vocab_size = s->vocab_size;
    ds_log(ctx, DS_LOG_JOB,
           "weights %.1f MB; %lld blocks of %lld positions, %.1f KB a position: %.1f MB; texts of "
           "up to %lld, %lld in a batch of %lld tokens",
           s->weight_bytes * 1e-6, (long long)s->n_blocks, (long long)s->block,
           s->kv_token_bytes * 1e-3, s->kv_token_bytes * (double)(s->n_blocks * s->block) * 1e-6,
           (long long)s->max_length, (long long)s->max_sequences, (long long)s->max_batch_tokens);
    return DS_OK;
}

/* ---- reloads ---- */
/* What of the front a server is, into l. */
static void keep_served(loaded *l, ds_ctx *ctx, const front *f)
{
    l->base = (served){.ctx = ctx,
                       .server = f->server,
                       .encoder = f->encoder,
                       .sentence = f->sentence,
                       .max_length = f->max_length,
                       .vocab_size = f->vocab_size,
                       .width = f->width,
                       .destroy = destroy_loaded};
}

/* What of a folder's tokenizer must be that in force; nothing where --tokenizer has it. */
static ds_status digest_tokenizer(ds_ctx *ctx, loaded *l)
{
    ds_tokenizer *tokenizer = NULL;
    if (l->o.tokenizer != NULL) {
        return DS_OK;
    }
    DS_TRY(ds_tokenizer_open(ctx, l->o.model, &tokenizer));
    l->base.tokenizer = reload_digest(l->o.model);
    l->base.stops = reload_stops(tokenizer);
    ds_tokenizer_close(&tokenizer);
    return DS_OK;
}

/* See front_load_fn. */
static ds_status load_again(ds_ctx *ctx, const char *path, const front *f, served **served_out)
{
    loaded *l = calloc(1, sizeof *l);
    front made = {.options = l != NULL ? &l->o : NULL};
    if (l == NULL) {
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory");
    }
    l->o = *f->options;
    l->o.model = path;
    l->o.model_found = NULL;
    l->o.lora = (dsi_arg_list){0}; /* its adapters are those of now */
    if (strcmp(path, f->options->model_asked) != 0) {
        l->o.model_revision = NULL; /* of the other one */
    }
    ds_status status = open_model(ctx, &l->o, &made, &l->p);
    status = status < 0 ? status : open_server(ctx, &l->o, &made, &l->p);
    keep_served(l, ctx, &made);
    status = status < 0 ? status : digest_tokenizer(ctx, l);
    unpacked_remove(&l->p.unpacked);
    if (status < 0) {
        destroy_loaded(&l->base);
        return status;
    }
    l->owns_ctx = true;
    *served_out = &l->base;
    return DS_OK;
}

/* What the command line made is the first that is served. */
static ds_status keep_first(ds_ctx *ctx, front *f, parts *p)
{
    loaded *l = calloc(1, sizeof *l);
    f->path = strdup(f->options->model_asked);
    if (l == NULL || f->path == NULL) {
        free(l);
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory");
    }
    keep_served(l, ctx, f);
    l->p.model = p->model;
    l->p.draft = p->draft;
    l->p.adapter = p->adapter;
    p->model = p->draft = NULL;
    p->adapter = NULL;
    f->in_force = &l->base;
    f->load = load_again;
    return DS_OK;
}

/* ---- its life ---- */
static bool is_idle(front *f)
{
    (void)pthread_mutex_lock(&f->lock);
    const bool idle = f->n_jobs == 0;
    (void)pthread_mutex_unlock(&f->lock);
    return idle;
}

/* Until a signal; then until nothing runs, a second signal or the time is over. */
static void wait_for_end(ds_ctx *ctx, front *f, const sigset_t *signals)
{
    int number = 0;
    while (sigwait(signals, &number) != 0 || number == SIGHUP) {
        api_error e;
        if (number == SIGHUP && !reload_begin(f, NULL, NULL, &e)) {
            ds_log(ctx, DS_LOG_WARN, "SIGHUP: %s", e.message);
        }
    }
    (void)pthread_mutex_lock(&f->lock);
    f->draining = true;
    if (!f->broken) {
        ds_log(ctx, DS_LOG_JOB, "no new texts; those that run end");
    }
    (void)pthread_mutex_unlock(&f->lock);
    const struct timespec tenth = {0, 100000000};
    for (int64_t i = 0; i < 10 * f->options->drain_seconds && !is_idle(f); ++i) {
        const int second = sigtimedwait(signals, NULL, &tenth);
        if (second >= 0 && second != SIGHUP) {
            break;
        }
    }
}

static ds_status serve(ds_ctx *ctx, front *f)
{
    pthread_t engine;
    sigset_t signals;
    listen_hold_signals(&signals);
    (void)signal(SIGPIPE, SIG_IGN);
    listen_raise_descriptors(f->options->max_connections);
    if (pthread_create(&engine, NULL, engine_run, f) != 0) {
        return ds_fail(ctx, DS_ERR_NOMEM, "no thread for the engine");
    }
    const ds_status status = http_start(ctx, f);
    if (status >= 0) {
        const union MHD_DaemonInfo *info =
            MHD_get_daemon_info(f->daemon, MHD_DAEMON_INFO_BIND_PORT);
        (void)printf("serving %s on %s://%s:%u\n", f->name, f->tls_cert != NULL ? "https" : "http",
                     f->options->host, info != NULL ? (unsigned)info->port : 0u);
        (void)fflush(stdout);
        wait_for_end(ctx, f, &signals);
    }
    (void)pthread_mutex_lock(&f->lock);
    f->draining = f->stop = true;
    (void)pthread_cond_signal(&f->wake);
    (void)pthread_cond_signal(&f->answered);
    (void)pthread_mutex_unlock(&f->lock);
    (void)pthread_join(engine, NULL);
    reload_close(f);
    const bool lost = f->broken && f->comm != NULL;
    if (f->daemon != NULL) {
        listen_end(f->daemon, &f->n_exchanges);
    }
    return status < 0 || !lost ? status : DS_ERR_PEER; /* the step's message is the context's */
}

/* Who the ranks are. What is signalled means rank 0, which lets the others go. */
static ds_status meet(ds_ctx *ctx, front *f)
{
    DS_TRY(ds_comm_open(ctx, &f->comm));
    if (ds_comm_size(f->comm) == 1) {
        ds_comm_close(&f->comm);
        return DS_OK;
    }
    front_rank own = {.process = (int64_t)getpid()};
    (void)gethostname(own.host, sizeof own.host - 1);
    f->n_ranks = ds_comm_size(f->comm);
    f->ranks = calloc(f->n_ranks, sizeof *f->ranks);
    if (f->ranks == NULL) {
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory for ranks");
    }
    if (ds_comm_rank(f->comm) > 0) {
        (void)signal(SIGTERM, SIG_IGN);
        (void)signal(SIGINT, SIG_IGN);
    }
    return dsi_comm_gather(f->comm, &own, f->ranks, sizeof own, "who serves");
}

static ds_status run(ds_ctx *ctx, serve_options *o, front *f)
{
    parts p = {0};
    char id[64];
    f->options = o;
    f->ctx = ctx;
    f->queued_end = &f->queued;
    f->created = (int64_t)time(NULL);
    dsi_build_id(id, sizeof id);
    (void)snprintf(f->fingerprint, sizeof f->fingerprint, "ds_%.12s", id);
    if (getrandom(&f->secret, sizeof f->secret, 0) != (ssize_t)sizeof f->secret) {
        f->secret = (uint64_t)f->created;
    }
    (void)pthread_mutex_init(&f->lock, NULL);
    (void)pthread_cond_init(&f->wake, NULL);
    (void)pthread_cond_init(&f->answered, NULL);
    const ds_ctx_params one = {.level = DS_LOG_WARN, .n_threads = 1};
    ds_status status = ds_ctx_create(&one, &f->http_ctx);
    status = status < 0 ? status : meet(ctx, f);
    status = status < 0 ? status : read_keys(ctx, o, f, &p);
    status = status < 0 ? status : read_tls(ctx, o, f, &p);
    status = status < 0 ? status : open_model(ctx, o, f, &p);
    if (status >= 0 && ds_comm_rank(f->comm) == 0) {
        status = open_tokenizer(o, f, &p);
        status = status < 0 ? status : find_stop_ids(f);
        status = status < 0 ? ds_fail(ctx, status, "%s", ds_ctx_error(f->http_ctx)) : status;
    }
    if (status >= 0 && f->tokenizer != NULL && o->tokenizer == NULL) {
        f->tokenizer_digest = reload_digest(o->model);
        f->stops_digest = reload_stops(f->tokenizer);
    }
    status = status < 0 ? status : open_server(ctx, o, f, &p);
    unpacked_remove(&p.unpacked);
    if (ds_comm_rank(f->comm) > 0) {
        status = status < 0 ? status : ds_serve_follow(f->server);
    } else {
        status = status < 0 ? status : keep_first(ctx, f, &p);
        status = status < 0 ? status : serve(ctx, f);
    }
    if (status < 0) {
        ds_comm_abort(f->comm, ds_ctx_error(ctx));
    }
    if (f->in_force != NULL) {
        f->in_force->destroy(f->in_force);
    } else {
        ds_serve_destroy(&f->server);
        ds_encoder_destroy(&f->encoder);
    }
    free(f->path);
    free(f->asked_path);
    ds_chat_destroy(&p.chat);
    ds_tokenizer_scratch_destroy(&p.scratch);
    ds_tokenizer_close(&p.tokenizer);
    ds_adapter_destroy(&p.adapter);
    ds_model_destroy(&p.model);
    ds_model_destroy(&p.draft);
    dsi_buf_free(&p.keys);
    dsi_buf_free(&p.tls_cert);
    dsi_buf_free(&p.tls_key);
    ds_comm_close(&f->comm);
    free(f->ranks);
    free(f->keys);
    free(f->stop_ids);
    lora_close(f);
    dsi_vocabulary_destroy(&f->words);
    ds_ctx_destroy(&f->http_ctx);
    return status;
}

/* A front without a model. */
static ds_status run_front(ds_ctx *ctx, const serve_options *o)
{
    front f = {0}; /* of it the keys and certificates alone */
    parts p = {0};
    ds_status status = read_keys(ctx, o, &f, &p);
    status = status < 0 ? status : read_tls(ctx, o, &f, &p);
    status = status < 0 ? status : balance_run(ctx, o, f.keys, f.n_keys, f.tls_cert, f.tls_key);
    dsi_buf_free(&p.keys);
    dsi_buf_free(&p.tls_cert);
    dsi_buf_free(&p.tls_key);
    free(f.keys);
    return status;
}

/* ---- of a replica: what the front says ---- */
/* Behind the first line: each byte asks for a reload. */
static void *hear_front(void *unused)
{
    char text[64];
    (void)unused;
    while (read(STDIN_FILENO, text, sizeof text) > 0) {
        (void)kill(getpid(), SIGHUP);
    }
    (void)kill(getpid(), SIGTERM);
    return NULL;
}

/* The first line: "KEY N", N replicas share this machine. */
static ds_status obey_front(ds_ctx *ctx, serve_options *o)
{
    char line[128];
    char end = 0;
    size_t n = 0;
    long long beside = 0;
    pthread_t thread;
    sigset_t all;
    sigset_t before;
    while (n + 1 < sizeof line && read(STDIN_FILENO, line + n, 1) == 1 && line[n] != '\n') {
        ++n;
    }
    line[n] = '\0';
    if (sscanf(line, "%63[0-9a-f] %lld%c", o->control_key, &beside, &end) != 2 || beside < 1) {
        return ds_fail(ctx, DS_ERR_ARG,
                       "--control: expected a line \"KEY N\" on standard input; it "
                       "is for what a front starts");
    }
    if (o->threads == 0 && beside > 1 && getenv("DS_THREADS") == NULL) {
        const int64_t cores = dsi_processor_n_cores();
        o->threads = cores > beside ? cores / beside : 1;
    }
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_BLOCK, &all, &before); /* the signal is for the main thread */
    const int error = pthread_create(&thread, NULL, hear_front, NULL);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error == 0 && pthread_detach(thread) == 0
               ? DS_OK
               : ds_fail(ctx, DS_ERR_NOMEM, "no thread for standard input");
}

/* One that comes while a model loads waits until that is served; in all threads. */
static void hold_reloads(void)
{
    sigset_t reload;
    (void)sigemptyset(&reload);
    (void)sigaddset(&reload, SIGHUP);
    (void)pthread_sigmask(SIG_BLOCK, &reload, NULL);
}

int main(int argc, char **argv)
{
    output_guard("ds_serve");
    hold_reloads();
    ds_ctx *ctx = NULL;
    serve_options o = {0};
    front f = {0};
    bool help = false;
    if (ds_ctx_create(NULL, &ctx) < 0) {
        return EXIT_FAILURE;
    }
    ds_status status = parse(ctx, argc, argv, &o, &help);
    int code = status < 0 ? EXIT_USE : EXIT_SUCCESS;
    if (status >= 0 && !help) {
        ds_ctx_params params;
        status = o.control ? obey_front(ctx, &o) : DS_OK;
        status = status < 0 ? status : environment_context(ctx, o.threads, &params, NULL);
        if (is_front(&o)) {
            params.n_threads = 1; /* it forks */
        }
        o.threads = params.n_threads;
        o.model_asked = o.model;
        if (status >= 0) {
            ds_ctx_destroy(&ctx);
            status = ds_ctx_create(&params, &ctx);
        }
        status = status < 0 ? status : is_front(&o) ? run_front(ctx, &o) : run(ctx, &o, &f);
        code = status < 0 ? EXIT_FAILURE : EXIT_SUCCESS;
    }
    if (status < 0) {
        (void)fprintf(stderr, "ds_serve: %s\n", ds_ctx_error(ctx));
    }
    free(o.model_found);
    dsi_arg_list_free(&o.lora);
    dsi_arg_list_free(&o.replica);
    dsi_arg_list_free(&o.upstream);
    dsi_words_free(&o.passed);
    ds_config_destroy(&o.deployment);
    ds_ctx_destroy(&ctx);
    return code;
}
