/* SPDX-License-Identifier: Apache-2.0 */
/* See link.h. */
#include "io/link.h"

#include "base/module.h"

#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

struct dsi_trust {
    const dsi_tls_ops *ops;
    dsi_tls_trust *tls;
    const char *hint;
};

static ds_status load(ds_ctx *ctx, const dsi_tls_ops **ops_out)
{
    char why[1024];
    void *object = NULL;
    if (dsi_module_load(ctx, "libdeepspeed_tls.so", DSI_MODULE_LOCAL, &object) < 0) {
        (void)snprintf(why, sizeof why, "%s", ds_ctx_error(ctx));
        return ds_fail(ctx, DS_ERR_UNSUPPORTED,
                       "https is not built here: it needs GnuTLS (package libgnutls28-dev) when "
                       "the library is built; %s",
                       why);
    }
    const dsi_tls_ops *ops = dlsym(object, DSI_TLS_SYMBOL);
    if (ops == NULL || ops->version != DSI_TLS_VERSION) {
        return ds_fail(ctx, DS_ERR_UNSUPPORTED,
                       "libdeepspeed_tls.so is of another version of this library");
    }
    *ops_out = ops;
    return DS_OK;
}

ds_status dsi_trust_open(ds_ctx *ctx, const dsi_trust_params *params, dsi_trust **trust_out)
{
    char error[DSI_TLS_ERROR_BYTES] = "";
    const dsi_tls_ops *ops = NULL;
    DS_TRY(load(ctx, &ops));
    dsi_trust *t = calloc(1, sizeof *t);
    if (t == NULL) {
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory for certificates");
    }
    t->ops = ops;
    t->hint = params->hint;
    t->tls = ops->trust(params->ca_file, params->ca_text, !params->insecure, error);
    if (t->tls == NULL) {
        free(t);
        return ds_fail(ctx, DS_ERR_ARG, "%s", error);
    }
    *trust_out = t;
    return DS_OK;
}

void dsi_trust_close(dsi_trust **trust)
{
    if (trust != NULL && *trust != NULL) {
        (*trust)->ops->distrust((*trust)->tls);
        free(*trust);
        *trust = NULL;
    }
}

ds_status dsi_trust_self_sign(ds_ctx *ctx, const char *host, char cert[DSI_TLS_PEM_BYTES],
                              char key[DSI_TLS_PEM_BYTES])
{
    char error[DSI_TLS_ERROR_BYTES] = "";
    const dsi_tls_ops *ops = NULL;
    DS_TRY(load(ctx, &ops));
    return ops->self_sign(host, cert, key, error) == 0
               ? DS_OK
               : ds_fail(ctx, DS_ERR_STATE, "no certificate can be made: %s", error);
}

void dsi_link_open(dsi_link *l, int fd, const dsi_trust *trust, const char *host)
{
    *l = (dsi_link){.fd = fd, .trust = trust, .ready = trust == NULL};
    if (trust != NULL && fd >= 0) {
        l->session = trust->ops->begin(trust->tls, fd, host, l->why);
    }
}

/* The result of a call of the module, as that of a socket's. */
static ssize_t as_socket(ssize_t n)
{
    if (n >= 0) {
        return n;
    }
    errno = n == DSI_TLS_WAIT ? EAGAIN : EPROTO;
    return -1;
}

/* Bytes, or -1 as the calls below. */
static ssize_t shake(dsi_link *l)
{
    if (l->ready) {
        return 0;
    }
    if (l->session == NULL) { /* the reason is there */
        errno = EPROTO;
        return -1;
    }
    const int n = l->trust->ops->handshake(l->session, l->why);
    if (n == DSI_TLS_FAILED && l->trust->hint != NULL && strstr(l->why, "certificate") != NULL) {
        const size_t used = strlen(l->why);
        (void)snprintf(l->why + used, sizeof l->why - used, "; %s", l->trust->hint);
    }
    l->ready = n == 0;
    return as_socket(n);
}

ssize_t dsi_link_send(dsi_link *l, const void *data, size_t n)
{
    if (l->trust == NULL) {
        return send(l->fd, data, n, MSG_NOSIGNAL);
    }
    if (shake(l) < 0) {
        return -1;
    }
    return as_socket(l->trust->ops->send(l->session, data, n, l->why));
}

ssize_t dsi_link_recv(dsi_link *l, void *data, size_t n)
{
    if (l->trust == NULL) {
        return recv(l->fd, data, n, 0);
    }
    if (shake(l) < 0) {
        return -1;
    }
    return as_socket(l->trust->ops->recv(l->session, data, n, l->why));
}

const char *dsi_link_why(const dsi_link *l, int error)
{
    return error == EPROTO && l->why[0] != '\0' ? l->why : strerror(error);
}

short dsi_link_events(const dsi_link *l, bool reads, bool sends)
{
    if (!l->ready && l->session != NULL && (reads || sends)) {
        return l->trust->ops->waits_to_send(l->session) ? POLLOUT : POLLIN;
    }
    return (short)((reads ? POLLIN : 0) | (sends ? POLLOUT : 0));
}

bool dsi_link_pending(const dsi_link *l)
{
    return l->ready && l->session != NULL && l->trust->ops->pending(l->session);
}

void dsi_link_close(dsi_link *l)
{
    if (l->session != NULL) {
        l->trust->ops->end(l->session);
        l->session = NULL;
    }
    if (l->fd >= 0) {
        (void)close(l->fd);
    }
    l->fd = -1;
}
