/* SPDX-License-Identifier: Apache-2.0 */
/* ds_serve's flags: their table. Which of them go together: flag_rules.c. See serve_options.h. */
#include "balance/balance.h"
#include "common/unpacked.h"

#include <stdlib.h>
#include <string.h>

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

bool serve_options_are_front(const serve_options *o)
{
    return o->hostfile != NULL || o->replicas > 0 || o->replica.n > 0 || o->upstream.n > 0;
}

ds_status serve_options_parse(ds_ctx *ctx, int argc, char **argv, serve_options *o, bool *help_out)
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
        {.name = "replica_tls",
         .type = DSI_ARG_SWITCH,
         .out = &o->replica_tls,
         .doc = "Ask servers that are started here by https: with a certificate that is made for "
                "this run, reaches them with their key, and is the only one that is taken."},
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
         .doc = "A server that runs already, http[s]://HOST:PORT; several times."},
        {.name = "upstream_key_file",
         .type = DSI_ARG_TEXT,
         .out = &o->upstream_key_file,
         .value = "FILE",
         .doc = "Its first line is the key that those are asked with."},
        {.name = "upstream_cacert",
         .type = DSI_ARG_TEXT,
         .out = &o->upstream_cacert,
         .value = "FILE",
         .doc = "Of those with https: trust the authorities or the certificate of this file, PEM; "
                "default: the authorities of this machine."},
        {.name = "upstream_insecure",
         .type = DSI_ARG_SWITCH,
         .out = &o->upstream_insecure,
         .doc = "Of those with https: take any certificate, of anybody."},
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
        {.name = "reload_timeout",
         .type = DSI_ARG_REAL,
         .out = &o->reload_timeout,
         .value = "S",
         .def = "3600",
         .min = 0.05,
         .max = 86400,
         .doc = "One that loads weights for longer has failed: the others go back."},
        {.name = "replica_restarts",
         .type = DSI_ARG_INT,
         .out = &o->replica_restarts,
         .value = "N",
         .def = "5",
         .max = 1e6,
         .doc = "How many times in a row a server that was started here, was up and ended is "
                "started again, after 1, 2, 4 … 60 seconds; one that was up for a minute counts "
                "from anew. One whose engine hangs is killed for it. 0: never."},
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
         .value = "DIR|ORG/NAME",
         .doc = "Folder, or name in the Hugging Face cache, of a smaller model with the same "
                "tokenizer, which makes the guesses of "
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
        {.name = "hang_seconds",
         .type = DSI_ARG_REAL,
         .out = &o->hang_seconds,
         .value = "S",
         .def = "120",
         .max = 86400,
         .doc = "An engine that ends no step for so long hangs: /health and /ready say so with "
                "status 503, and a front asks another one. Raise it where a step waits for weights "
                "on disk; 0: never."},
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
    return flag_rules_check(ctx, &spec, argc, argv, o);
}

void serve_options_free(serve_options *o)
{
    free(o->model_found);
    dsi_arg_list_free(&o->lora);
    dsi_arg_list_free(&o->replica);
    dsi_arg_list_free(&o->upstream);
    dsi_words_free(&o->passed);
    ds_config_destroy(&o->deployment);
}
