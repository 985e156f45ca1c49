/* SPDX-License-Identifier: Apache-2.0 */
/* From a connection to a route: paths, keys, limits, bodies. See door.h. */
#include "door.h"

#include <deepspeed/context.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum {
    HEADER_BYTES = 1024,
    KEY_CEILING = 1 << 20,
    MOST_BODIES = 256 << 20 /* bytes of all bodies that are on their way */
};

/* ---- keys and certificates ---- */
static ds_status read_flag_file(ds_ctx *ctx, const char *flag, const char *path, dsi_buf *out)
{
    char why[512];
    if (dsi_buf_read_file(ctx, path, out) >= 0) {
        return DS_OK;
    }
    (void)snprintf(why, sizeof why, "%s", ds_ctx_error(ctx));
    return ds_fail(ctx, DS_ERR_ARG, "--%s: %s", flag, why);
}

static ds_status read_keys(ds_ctx *ctx, const serve_options *o, door *d)
{
    d->key_file = dsi_buf_make(KEY_CEILING);
    if (o->control) { /* a line like those of the file */
        dsi_buf_printf(&d->key_file, "%s\n", o->control_key);
    }
    if (o->api_key_file != NULL) {
        DS_TRY(read_flag_file(ctx, "api_key_file", o->api_key_file, &d->key_file));
    }
    char *save = NULL;
    for (char *line = d->key_file.size > 0 ? strtok_r(d->key_file.data, "\r\n", &save) : NULL;
         line != NULL; line = strtok_r(NULL, "\r\n", &save)) {
        char **keys = realloc(d->keys, (d->n_keys + 1) * sizeof *keys);
        if (keys == NULL) {
            return ds_fail(ctx, DS_ERR_NOMEM, "no memory for keys");
        }
        d->keys = keys;
        d->keys[d->n_keys++] = line;
    }
    return d->n_keys > 0 || o->api_key_file == NULL
               ? DS_OK
               : ds_fail(ctx, DS_ERR_ARG, "--api_key_file %s: there is no key in it",
                         o->api_key_file);
}

static ds_status read_tls(ds_ctx *ctx, const serve_options *o, door *d)
{
    d->cert_file = d->secret_file = dsi_buf_make(KEY_CEILING);
    const bool by_front = o->control && o->control_cert[0] != '\0';
    if (o->tls_cert == NULL && o->tls_key == NULL && !by_front) {
        return DS_OK;
    }
    if (MHD_is_feature_supported(MHD_FEATURE_TLS) != MHD_YES) {
        return ds_fail(ctx, DS_ERR_UNSUPPORTED,
                       "%s: the libmicrohttpd of this machine was built without TLS",
                       by_front ? "--replica_tls" : "--tls_cert");
    }
    if (by_front) {
        d->tls_cert = o->control_cert;
        d->tls_key = o->control_secret;
        return DS_OK;
    }
    DS_TRY(read_flag_file(ctx, "tls_cert", o->tls_cert, &d->cert_file));
    DS_TRY(read_flag_file(ctx, "tls_key", o->tls_key, &d->secret_file));
    d->tls_cert = dsi_buf_text(&d->cert_file);
    d->tls_key = dsi_buf_text(&d->secret_file);
    return DS_OK;
}

ds_status door_prepare(ds_ctx *ctx, const serve_options *o, door *d)
{
    d->options = o;
    DS_TRY(read_keys(ctx, o, d));
    return read_tls(ctx, o, d);
}

void door_close(door *d)
{
    dsi_buf_free(&d->key_file);
    dsi_buf_free(&d->cert_file);
    dsi_buf_free(&d->secret_file);
    free(d->keys);
    d->keys = NULL;
}

/* In a time that does not depend on where they differ. */
static bool same_key(const char *a, const char *b)
{
    const size_t n = strlen(a);
    const size_t m = strlen(b);
    unsigned differs = n != m;
    for (size_t i = 0; i < m; ++i) {
        differs |= (unsigned)((unsigned char)b[i] ^ (unsigned char)(n > 0 ? a[i % n] : 0));
    }
    return differs == 0;
}

/* Whether the client sent one of the keys; none: everybody may ask. */
static bool has_key(const door *d, struct MHD_Connection *c)
{
    const char *bearer = MHD_lookup_connection_value(c, MHD_HEADER_KIND, "Authorization");
    const char *key = MHD_lookup_connection_value(c, MHD_HEADER_KIND, "x-api-key");
    bool found = d->n_keys == 0;
    if (bearer != NULL && strncasecmp(bearer, "Bearer ", 7) == 0) {
        key = bearer + 7;
    }
    for (size_t i = 0; key != NULL && i < d->n_keys; ++i) {
        found = same_key(key, d->keys[i]) || found;
    }
    return found;
}

/* ---- exchanges ---- */
static const route *find_route(const door *d, const char *method, const char *path,
                               bool *path_known)
{
    *path_known = false;
    for (size_t i = 0; i < d->n_routes; ++i) {
        const route *r = &d->routes[i];
        const size_t n = strlen(r->path);
        if ((r->flags & ROUTE_PREFIX) != 0 ? strncmp(path, r->path, n) != 0 || path[n] == '\0'
                                           : strcmp(path, r->path) != 0) {
            continue;
        }
        *path_known = true;
        if (strcmp(method, r->method) == 0 ||
            (strcmp(method, "HEAD") == 0 && strcmp(r->method, "GET") == 0)) {
            return r;
        }
    }
    return NULL;
}

static enum MHD_Result refuse_body(exchange *x)
{
    return reply_refusal(x, MHD_HTTP_CONTENT_TOO_LARGE, "body_too_large",
                         "the body is larger than this server takes (--max_body)");
}

/* What can be said before the body is there. */
static enum MHD_Result look(exchange *x, const char *method, const char *path)
{
    const door *d = x->door;
    const char *length =
        MHD_lookup_connection_value(x->connection, MHD_HEADER_KIND, "Content-Length");
    bool path_known = false;
    x->route = find_route(d, method, path, &path_known);
    x->refused = true;
    if (x->route == NULL) {
        return path_known ? reply_refusal(x, MHD_HTTP_METHOD_NOT_ALLOWED, NULL,
                                          "another method is expected")
                          : reply_refusal(x, MHD_HTTP_NOT_FOUND, "unknown_path", d->unknown);
    }
    if ((x->route->flags & ROUTE_OPEN) == 0 && !has_key(d, x->connection)) {
        return reply_refusal(x, MHD_HTTP_UNAUTHORIZED, "invalid_api_key",
                             "expected a key of this server in the header Authorization: Bearer …");
    }
    if (length != NULL && strtoull(length, NULL, 10) > (uint64_t)d->options->max_body) {
        return refuse_body(x);
    }
    x->refused = false;
    return MHD_YES;
}

static void take_body(exchange *x, const char *data, size_t n)
{
    if (x->refused) {
        return;
    }
    if (x->door->n_body + n > MOST_BODIES) {
        x->body.failed = true; /* many clients send much at a time */
        return;
    }
    const size_t before = x->body.size;
    dsi_buf_append(&x->body, data, n);
    x->door->n_body += x->body.size - before;
}

json_t *door_json(const exchange *x, api_error *e)
{
    json_error_t error;
    json_t *body = json_loadb(dsi_buf_text(&x->body), x->body.size, JSON_REJECT_DUPLICATES, &error);
    if (body == NULL || !json_is_object(body)) {
        (void)api_fail(e, MHD_HTTP_BAD_REQUEST, NULL, "", "the body is no JSON object: %.200s",
                       body == NULL ? error.text : "it is something else");
        json_decref(body);
        return NULL;
    }
    return body;
}

void door_drop_body(exchange *x)
{
    x->door->n_body -= x->body.size;
    dsi_buf_free(&x->body);
}

enum MHD_Result door_handle(void *opaque, struct MHD_Connection *c, const char *path,
                            const char *method, const char *version, const char *data,
                            size_t *n_data, void **of_exchange)
{
    exchange *x = *of_exchange;
    (void)opaque;
    (void)c;
    (void)version;
    if (x == NULL) {
        return MHD_NO;
    }
    if (!x->seen) {
        x->seen = true;
        x->body = dsi_buf_make((size_t)x->door->options->max_body);
        x->ignored = dsi_buf_make(HEADER_BYTES);
        return look(x, method, path);
    }
    if (*n_data > 0) {
        take_body(x, data, *n_data);
        *n_data = 0;
        return MHD_YES;
    }
    if (x->refused) {
        return MHD_YES; /* the answer is queued */
    }
    if (x->body.failed) {
        return refuse_body(x);
    }
    if (x->waits != NULL) {
        return x->door->resume(x);
    }
    const bool prefix = (x->route->flags & ROUTE_PREFIX) != 0;
    return x->route->answer(x, prefix ? path + strlen(x->route->path) : "");
}

void *door_begin(void *opaque, const char *uri, struct MHD_Connection *c)
{
    door *d = opaque;
    exchange *x = calloc(1, sizeof *x);
    (void)uri;
    if (x != NULL) {
        x->door = d;
        x->connection = c;
        atomic_fetch_add(&d->n_exchanges, 1);
    }
    return x;
}

void door_end(void *opaque, struct MHD_Connection *c, void **of_exchange,
              enum MHD_RequestTerminationCode code)
{
    exchange *x = *of_exchange;
    door *d = opaque;
    (void)c;
    (void)code;
    if (x == NULL) {
        return;
    }
    if (x->waits != NULL) {
        d->drop(x->waits);
    }
    door_drop_body(x);
    dsi_buf_free(&x->ignored);
    free(x);
    *of_exchange = NULL;
    atomic_fetch_sub(&d->n_exchanges, 1);
}
