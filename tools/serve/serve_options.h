/* SPDX-License-Identifier: Apache-2.0 */
/* ds_serve's command line, as values. See front.h. */
#ifndef DS_TOOLS_SERVE_OPTIONS_H
#define DS_TOOLS_SERVE_OPTIONS_H

#include "common/args.h"
#include "common/serve_flags.h"
#include "io/tls_module.h"
#include "launch/words.h"

typedef struct serve_options {
    const char *model, *model_revision, *adapter, *chat_template, *host, *served_name;
    const char *pooling, *normalize, *draft_model;
    ds_config *deployment; /* the file of --deepspeed_config, whose texts flags may be */
    bool address_given;    /* --host or --port */
    dsi_arg_list lora;     /* NAME=FOLDER */
    int64_t max_loras, max_lora_rank;
    const char *api_key_file, *accelerator, *tokenizer, *quantize, *tls_cert, *tls_key;
    const char *model_asked; /* --model as it was given */
    char *model_found;
    int64_t port, threads, max_waiting, rank_seconds;
    double hang_seconds; /* of the engine */
    int64_t max_body, max_connections, timeout_seconds, drain_seconds, max_choices;
    bool no_embeddings, lora_updates;
    serve_flags sizes;
    /* of a front of replicas: see balance/balance.h */
    const char *hostfile, *include, *exclude, *upstream_key_file, *upstream_cacert;
    bool upstream_insecure, replica_tls;
    dsi_arg_list replica, upstream;
    int64_t replicas, replica_port, ssh_port;
    int64_t slots; /* that --deepspeed_config asks of the hosts; 0: those that there are */
    int64_t replica_restarts;
    double probe_seconds, probe_timeout, reload_timeout;
    dsi_words passed; /* flags of the command line that are the replicas' */
    /* of a replica: a front has started it */
    bool control;
    char control_key[64];
    char control_cert[DSI_TLS_PEM_BYTES], control_secret[DSI_TLS_PEM_BYTES]; /* "": http */
} serve_options;

/* Errors name the flag. What it fills is freed with serve_options_free, also after an error. */
ds_status serve_options_parse(ds_ctx *ctx, int argc, char **argv, serve_options *o, bool *help_out);
void serve_options_free(serve_options *o);
/* flag_rules.c: which flags go together; what a front passes on. Errors: ERR_ARG. */
ds_status flag_rules_check(ds_ctx *ctx, const dsi_args_spec *spec, int argc, char **argv,
                           serve_options *o);
/* deployment.c: a file of MII's as flags, in o->deployment, also after an error. */
ds_status deployment_read(ds_ctx *ctx, serve_options *o);
/* Whether it is a front of replicas that is asked for. */
bool serve_options_are_front(const serve_options *o);

#endif
