/* SPDX-License-Identifier: Apache-2.0 */
/* DeepSpeed-MII's calls: texts behind prompts, in this process (mii.pipeline) or by a server that
 * others may ask, too (mii.serve and mii.client).
 *
 *     ds_pipeline_create(ctx, &(ds_pipeline_params){.model = "folder"}, &pipeline);
 *     ds_pipeline_generate(pipeline, prompts, n, &options, &responses);  … responses[i].text …
 *
 *     ds_client_serve(ctx, &(ds_deployment_params){.model = "folder", .name = "m"}, &client);
 *     ds_client_generate(client, prompts, n, &options, &responses);
 *     ds_client_terminate(client);
 *
 * Both give the same texts for the same options where those are greedy. One thread calls a pipeline
 * or a client; several clients may ask one server.
 */
#ifndef DEEPSPEED_MII_H
#define DEEPSPEED_MII_H

#include <deepspeed/serve.h>

#ifdef __cplusplus
extern "C" {
#endif

/* MII's generate arguments; all zero are its defaults. */
typedef struct ds_text_options {
    int64_t max_length;     /* tokens of a prompt and its text; default 0: 1024, at most the model's
                               positions */
    int64_t max_new_tokens; /* default 0: what max_length leaves */
    int64_t min_new_tokens; /* before that no token ends the text */
    bool ignore_eos;        /* a token that ends texts ends none */
    bool return_full_text;  /* the text begins with its prompt */
    bool greedy;            /* "do_sample": false */
    double top_p;           /* default 0: 0.9 */
    int64_t top_k;          /* default 0: all */
    double temperature;     /* default 0: 1 */
    const char *const *stop; /* texts that end one; they are left out */
    size_t n_stop;
    uint64_t seed; /* of a pipeline: prompt i draws with seed + i. A server draws its own */
    DS_RESERVED(8);
} ds_text_options;

typedef enum ds_text_finish {
    DS_TEXT_STOP,  /* a token or a text of stop ended it */
    DS_TEXT_LENGTH /* there was room for no more */
} ds_text_finish;

typedef struct ds_text_response {
    const char *text; /* UTF-8; borrowed until the next call of the same pipeline or client */
    int64_t prompt_length, generated_length; /* in tokens */
    ds_text_finish finish;
    DS_RESERVED(2);
} ds_text_response;

/* ---- in this process -------------------------------------------------------------------------
 */
typedef struct ds_pipeline ds_pipeline;

typedef struct ds_pipeline_params {
    const char *model;       /* a model folder */
    const char *tokenizer;   /* default NULL: the folder's; else as in ds_tokenizer_open */
    const ds_config *config; /* default NULL; one of an inference engine or of MII, resolved, as for
                                ds_serve_configure; borrowed for the call */
    DS_RESERVED(6);
} ds_pipeline_params;

/* Loads model and tokenizer, and makes a server (serve.h). Errors: theirs. */
DS_API ds_status ds_pipeline_create(ds_ctx *ctx, const ds_pipeline_params *params,
                                    ds_pipeline **pipeline_out);
DS_API void ds_pipeline_destroy(ds_pipeline **pipeline);
/* Texts behind n prompts, all of them in one crowd: *responses_out has n. options NULL: the
 * defaults. Errors: ERR_ARG and ERR_LIMIT name the prompt or option, and nothing has run. */
DS_API ds_status ds_pipeline_generate(ds_pipeline *pipeline, const char *const *prompts, size_t n,
                                      const ds_text_options *options,
                                      const ds_text_response **responses_out);

/* ---- by a server -----------------------------------------------------------------------------
 */
typedef struct ds_client ds_client;

typedef struct ds_deployment_params {
    const char *model; /* a model folder, or what ds_serve --model takes; NULL: config names it */
    const char *name;  /* what clients call it; default NULL: the model, or what config says */
    const char *tokenizer; /* default NULL: the model's */
    const char *config;    /* default NULL; a file for ds_serve --deepspeed_config */
    const char *program;   /* default NULL: ds_serve, by PATH */
    int64_t port;          /* of 127.0.0.1; default 0: a free one */
    DS_RESERVED(8);
} ds_deployment_params;

/* Starts a server process and waits until it serves. Others reach it by ds_client_address and
 * ds_client_open. Errors: ERR_NOT_FOUND (no such program), ERR_IO (it ended; its words are on
 * standard error). */
DS_API ds_status ds_client_serve(ds_ctx *ctx, const ds_deployment_params *params,
                                 ds_client **client_out);
typedef struct ds_client_params {
    const char *address; /* HOST:PORT or http://HOST[:PORT]; with TLS https://HOST[:PORT] */
    const char *name;    /* as the model is called there */
    const char *api_key; /* default NULL: the server wants none */
    const char *ca_file; /* of https: authorities or a certificate to trust, PEM; default NULL: the
                            authorities of this machine */
    bool insecure;       /* of https: take any certificate, of anybody */
    double timeout_seconds; /* without a byte of an answer; default 0: an hour. Connection and
                               handshake have 30 s, or this where it is less */
    DS_RESERVED(8);
} ds_client_params;

/* A client of a server that runs. Strings are copied; nothing is sent. Errors: ERR_ARG names the
 * field, ERR_UNSUPPORTED (https where GnuTLS was not there when the library was built). */
DS_API ds_status ds_client_create(ds_ctx *ctx, const ds_client_params *params,
                                  ds_client **client_out);
/* The same of an address, a name and a key alone. */
DS_API ds_status ds_client_open(ds_ctx *ctx, const char *address, const char *name,
                                const char *api_key, ds_client **client_out);
/* "127.0.0.1:51080", or the URL that it was given. */
DS_API const char *ds_client_address(const ds_client *client);
/* As ds_pipeline_generate. Errors: ERR_IO (nobody answers, or not in time; a certificate that is
 * not taken, and why), ERR_ARG (the server's words). */
DS_API ds_status ds_client_generate(ds_client *client, const char *const *prompts, size_t n,
                                    const ds_text_options *options,
                                    const ds_text_response **responses_out);
/* Ends the server that ds_client_serve of this client started, when its texts are done, and waits
 * for it. Errors: ERR_STATE (this client started none). */
DS_API ds_status ds_client_terminate(ds_client *client);
/* A server that was started goes on. */
DS_API void ds_client_close(ds_client **client);

#ifdef __cplusplus
}
#endif
#endif
