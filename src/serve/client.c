/* SPDX-License-Identifier: Apache-2.0 */
/* MII's client: a server's /mii/NAME, asked over HTTP (client_http.c); and the server process that
 * one may start. See mii.h. What is sent and read is JSON; a connection is for one call. */
#include "base/reserved.h"
#include "config/config_values.h"
#include "serve/client_http.h"

#include <deepspeed/mii.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

enum { ANSWER_CEILING = 256 << 20, WORDS = 16 };

struct ds_client {
    ds_ctx *ctx;
    dsi_client_peer peer;
    char *name;
    pid_t process; /* 0: none was started, or it was ended */
    json_t *answer;
    ds_text_response *responses;
};

static void forget(ds_client *c)
{
    json_decref(c->answer);
    free(c->responses);
    c->answer = NULL;
    c->responses = NULL;
}

void ds_client_close(ds_client **client)
{
    ds_client *c = client != NULL ? *client : NULL;
    if (c == NULL) {
        return;
    }
    forget(c);
    dsi_client_peer_close(&c->peer);
    free(c->name);
    free(c);
    *client = NULL;
}

const char *ds_client_address(const ds_client *c)
{
    return c->peer.address;
}

ds_status ds_client_create(ds_ctx *ctx, const ds_client_params *params, ds_client **client_out)
{
    DS_TRY(DSI_RESERVED_CHECK(ctx, "ds_client_params", params));
    if (params->name == NULL || params->name[0] == '\0') {
        return ds_fail(ctx, DS_ERR_ARG, "name: expected that of a model");
    }
    ds_client *c = calloc(1, sizeof *c);
    if (c == NULL) {
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory for a client");
    }
    c->ctx = ctx;
    c->name = strdup(params->name);
    const ds_status status = c->name != NULL ? dsi_client_peer_open(ctx, params, &c->peer)
                                             : ds_fail(ctx, DS_ERR_NOMEM, "no memory for a client");
    if (status < 0) {
        ds_client_close(&c);
        return status;
    }
    *client_out = c;
    return DS_OK;
}

ds_status ds_client_open(ds_ctx *ctx, const char *address, const char *name, const char *api_key,
                         ds_client **client_out)
{
    const ds_client_params params = {.address = address, .name = name, .api_key = api_key};
    return ds_client_create(ctx, &params, client_out);
}

/* ---- generate -------------------------------------------------------------------------------- */

static json_t *body_of(const char *const *prompts, size_t n, const ds_text_options *o)
{
    json_t *body = json_pack("{s:[],s:b,s:b,s:b}", "prompts", "ignore_eos", o->ignore_eos,
                             "return_full_text", o->return_full_text, "do_sample", !o->greedy);
    const struct {
        const char *key;
        int64_t value;
    } whole[] = {{"max_length", o->max_length},
                 {"max_new_tokens", o->max_new_tokens},
                 {"min_new_tokens", o->min_new_tokens},
                 {"top_k", o->top_k}};
    const struct {
        const char *key;
        double value;
    } real[] = {{"top_p", o->top_p}, {"temperature", o->greedy ? 0.0 : o->temperature}};
    for (size_t i = 0; i < sizeof whole / sizeof whole[0]; ++i) {
        if (whole[i].value != 0) {
            (void)json_object_set_new(body, whole[i].key, json_integer(whole[i].value));
        }
    }
    for (size_t i = 0; i < sizeof real / sizeof real[0]; ++i) {
        if (real[i].value > 0.0) {
            (void)json_object_set_new(body, real[i].key, json_real(real[i].value));
        }
    }
    for (size_t i = 0; i < n; ++i) {
        (void)json_array_append_new(json_object_get(body, "prompts"), json_string(prompts[i]));
    }
    if (o->n_stop > 0) {
        json_t *stop = json_array();
        for (size_t i = 0; i < o->n_stop; ++i) {
            (void)json_array_append_new(stop, json_string(o->stop[i]));
        }
        (void)json_object_set_new(body, "stop", stop);
    }
    return body;
}

/* Of an answer its JSON, or its error. */
static ds_status parse(const ds_client *c, int code, const dsi_buf *body, json_t **root_out)
{
    json_error_t error;
    json_t *root = json_loadb(dsi_buf_text(body), body->size, 0, &error);
    const char *words =
        json_string_value(json_object_get(json_object_get(root, "error"), "message"));
    if (code != 200 || !json_is_array(root)) {
        const ds_status status =
            ds_fail(c->ctx, code >= 500 || code == 200 ? DS_ERR_IO : DS_ERR_ARG, "%s: %d: %s",
                    c->peer.address, code, words != NULL ? words : "no list of texts");
        json_decref(root);
        return status;
    }
    *root_out = root;
    return DS_OK;
}

static ds_status take_answer(ds_client *c, size_t n)
{
    c->responses = calloc(n + 1, sizeof *c->responses);
    if (c->responses == NULL) {
        return ds_fail(c->ctx, DS_ERR_NOMEM, "no memory for %zu texts", n);
    }
    for (size_t i = 0; i < n; ++i) {
        const json_t *one = json_array_get(c->answer, i);
        const char *finish = json_string_value(json_object_get(one, "finish_reason"));
        c->responses[i] = (ds_text_response){
            .text = json_string_value(json_object_get(one, "generated_text")),
            .prompt_length = json_integer_value(json_object_get(one, "prompt_length")),
            .generated_length = json_integer_value(json_object_get(one, "generated_length")),
            .finish =
                finish != NULL && strcmp(finish, "length") == 0 ? DS_TEXT_LENGTH : DS_TEXT_STOP};
        if (c->responses[i].text == NULL) {
            return ds_fail(c->ctx, DS_ERR_FORMAT, "%s: there are %zu texts, expected %zu",
                           c->peer.address, json_array_size(c->answer), n);
        }
    }
    return DS_OK;
}

ds_status ds_client_generate(ds_client *c, const char *const *prompts, size_t n,
                             const ds_text_options *options, const ds_text_response **responses_out)
{
    static const ds_text_options usual;
    const ds_text_options *o = options != NULL ? options : &usual;
    DS_TRY(DSI_RESERVED_CHECK(c->ctx, "ds_text_options", o));
    forget(c);
    json_t *body = body_of(prompts, n, o);
    char *text = body != NULL ? json_dumps(body, JSON_COMPACT) : NULL;
    dsi_buf answer = dsi_buf_make(ANSWER_CEILING);
    int code = 0;
    json_decref(body);
    ds_status status = text != NULL
                           ? dsi_client_post(c->ctx, &c->peer, c->name, text, &code, &answer)
                           : ds_fail(c->ctx, DS_ERR_ARG, "a prompt is no UTF-8");
    free(text);
    status = status < 0 ? status : parse(c, code, &answer, &c->answer);
    dsi_buf_free(&answer);
    DS_TRY(status);
    DS_TRY(take_answer(c, n));
    *responses_out = c->responses;
    return DS_OK;
}

/* ---- a server of one's own ------------------------------------------------------------------- */

/* Its first line: "serving NAME on http[s]://HOST:PORT". */
static ds_status read_address(ds_ctx *ctx, int from, char *address, size_t size, char **name_out)
{
    char line[4096];
    size_t n = 0;
    while (n + 1 < sizeof line && read(from, line + n, 1) == 1 && line[n] != '\n') {
        ++n;
    }
    line[n] = '\0';
    char *url = strstr(line, " on http");
    if (strncmp(line, "serving ", 8) != 0 || url == NULL || strstr(url, "://") == NULL) {
        return ds_fail(ctx, DS_ERR_IO,
                       "the server ended before it served; it said why on standard "
                       "error");
    }
    const bool plain = strncmp(url, " on http://", 11) == 0;
    (void)snprintf(address, size, "%s", url + (plain ? 11 : 4));
    *url = '\0';
    *name_out = strdup(line + 8);
    return *name_out != NULL ? DS_OK : ds_fail(ctx, DS_ERR_NOMEM, "no memory for a client");
}

static ds_status start(ds_ctx *ctx, const char *const *words, pid_t *process_out, int *from_out)
{
    int ends[2];
    posix_spawn_file_actions_t actions;
    if (pipe2(ends, O_CLOEXEC) != 0) {
        return ds_fail(ctx, DS_ERR_IO, "no pipe for a server: %s", strerror(errno));
    }
    (void)posix_spawn_file_actions_init(&actions);
    (void)posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    const int error =
        posix_spawnp(process_out, words[0], &actions, NULL, (char *const *)words, environ);
    (void)posix_spawn_file_actions_destroy(&actions);
    (void)close(ends[1]);
    if (error != 0) {
        (void)close(ends[0]);
        return ds_fail(ctx, DS_ERR_NOT_FOUND, "cannot start %s: %s", words[0], strerror(error));
    }
    *from_out = ends[0];
    return DS_OK;
}

static void end_process(pid_t process)
{
    (void)kill(process, SIGTERM);
    while (waitpid(process, NULL, 0) < 0 && errno == EINTR) {
    }
}

/* Whether a file is MII's and says where the server is. */
static ds_status says_port(ds_ctx *ctx, const char *path, bool *says_out)
{
    const ds_config_params any = {.kind = DS_CONFIG_ANY};
    ds_config *config = NULL;
    *says_out = false;
    if (path == NULL) {
        return DS_OK;
    }
    DS_TRY(ds_config_load_file(ctx, path, &any, &config));
    *says_out =
        ds_config_get_kind(config) == DS_CONFIG_MII && dsi_config_inference(config)->restful;
    ds_config_destroy(&config);
    return DS_OK;
}

ds_status ds_client_serve(ds_ctx *ctx, const ds_deployment_params *params, ds_client **client_out)
{
    DS_TRY(DSI_RESERVED_CHECK(ctx, "ds_deployment_params", params));
    char port[32];
    char address[4096];
    char *name = NULL;
    const char *words[WORDS] = {params->program != NULL ? params->program : "ds_serve"};
    bool has_port = false;
    DS_TRY(says_port(ctx, params->config, &has_port));
    const char *const flags[][2] = {{"--model", params->model},
                                    {"--served_model_name", params->name},
                                    {"--tokenizer", params->tokenizer},
                                    {"--deepspeed_config", params->config},
                                    {"--port", has_port && params->port == 0 ? NULL : port}};
    pid_t process = 0;
    int from = -1;
    size_t n = 1;
    (void)snprintf(port, sizeof port, "%" PRId64, params->port);
    for (size_t i = 0; i < sizeof flags / sizeof flags[0]; ++i) {
        if (flags[i][1] != NULL) {
            words[n++] = flags[i][0];
            words[n++] = flags[i][1];
        }
    }
    DS_TRY(start(ctx, words, &process, &from));
    ds_status status = read_address(ctx, from, address, sizeof address, &name);
    (void)close(from);
    status = status < 0 ? status : ds_client_open(ctx, address, name, NULL, client_out);
    free(name);
    if (status < 0) {
        end_process(process);
        return status;
    }
    (*client_out)->process = process;
    return DS_OK;
}

ds_status ds_client_terminate(ds_client *c)
{
    if (c->process == 0) {
        return ds_fail(c->ctx, DS_ERR_STATE, "%s: this client has started no server",
                       c->peer.address);
    }
    end_process(c->process);
    c->process = 0;
    return DS_OK;
}
