/* SPDX-License-Identifier: Apache-2.0 */
/* The wire over UCX: tagged messages between workers, whose addresses travel over the rendezvous.
 * For jobs that no MPI started. See wire.h.
 *
 * A UCX tag is the sender's rank, then our tag. A handle is UCX's request, plus one of a receive
 * (requests lie at even addresses).
 */
#include "comm/wire.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <ucp/api/ucp.h>

typedef struct ucx_wire ucx_wire;

typedef struct ucx_peer {
    ucx_wire *wire;
    ucp_ep_h ep; /* made by the first send */
    ucp_address_t *address;
    uint32_t rank;
    ucs_status_t status; /* of the connection */
} ucx_peer;

struct ucx_wire {
    dsi_wire head;
    ucp_context_h context;
    ucp_worker_h worker;
    ucx_peer *peers;
};

__attribute__((visibility("default"))) int dsi_wire_open(const dsi_wire_setup *setup,
                                                         dsi_wire **wire_out, char *error_out);

static int fail(ucx_wire *ucx, ucs_status_t status, const char *doing, uint32_t peer)
{
    (void)snprintf(ucx->head.error, sizeof ucx->head.error, "UCX, %s: %s", doing,
                   ucs_status_string(status));
    ucx->head.error_peer = peer;
    return -1;
}

enum { RECEIVES = 1 };

static void *request_of(uint64_t handle)
{
    return (void *)(uintptr_t)(handle & ~(uint64_t)RECEIVES); // NOLINT: the handle is UCX's pointer
}

static uint64_t full_tag(uint32_t sender, uint32_t tag)
{
    return (uint64_t)sender << 32 | tag;
}

static void on_error(void *opaque, ucp_ep_h ep, ucs_status_t status)
{
    ucx_peer *peer = opaque;
    (void)ep;
    peer->status = status;
}

static int connect_peer(ucx_wire *ucx, ucx_peer *peer)
{
    const ucp_ep_params_t params = {
        .field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER,
        .address = peer->address,
        .err_mode = UCP_ERR_HANDLING_MODE_PEER,
        .err_handler = {.cb = on_error, .arg = peer},
    };
    const ucs_status_t status = ucp_ep_create(ucx->worker, &params, &peer->ep);
    return status == UCS_OK ? 0 : fail(ucx, status, "connecting", peer->rank);
}

/* UCX gives NULL (done), an error, or a request. */
static int started(ucx_wire *ucx, ucs_status_ptr_t request, const char *doing, uint32_t peer,
                   uint64_t *handle_out)
{
    if (UCS_PTR_IS_ERR(request)) {
        return fail(ucx, UCS_PTR_STATUS(request), doing, peer);
    }
    *handle_out = (uint64_t)(uintptr_t)request;
    return 0;
}

static int ucx_send(dsi_wire *wire, uint32_t peer, uint32_t tag, const void *data, size_t n,
                    uint64_t *handle_out)
{
    ucx_wire *ucx = (ucx_wire *)wire;
    ucx_peer *to = &ucx->peers[peer];
    const ucp_request_param_t params = {.op_attr_mask = 0};
    if (to->status != UCS_OK) {
        return fail(ucx, to->status, "the connection", peer);
    }
    if (to->ep == NULL && connect_peer(ucx, to) != 0) {
        return -1;
    }
    return started(ucx, ucp_tag_send_nbx(to->ep, data, n, full_tag(wire->rank, tag), &params),
                   "sending", peer, handle_out);
}

static int ucx_recv(dsi_wire *wire, uint32_t peer, uint32_t tag, void *data, size_t n,
                    uint64_t *handle_out)
{
    ucx_wire *ucx = (ucx_wire *)wire;
    /* Always a request: it holds the length that came. */
    const ucp_request_param_t params = {.op_attr_mask = UCP_OP_ATTR_FLAG_NO_IMM_CMPL};
    if (ucx->peers[peer].ep == NULL && connect_peer(ucx, &ucx->peers[peer]) != 0) {
        return -1; /* connected early: the end of a peer that only sends is noticed too */
    }
    const int failed = started(
        ucx, ucp_tag_recv_nbx(ucx->worker, data, n, full_tag(peer, tag), UINT64_MAX, &params),
        "receiving", peer, handle_out);
    *handle_out |= RECEIVES;
    return failed;
}

static int ucx_test(dsi_wire *wire, uint64_t handle, uint32_t peer, size_t *n_out)
{
    ucx_wire *ucx = (ucx_wire *)wire;
    void *request = request_of(handle);
    ucp_tag_recv_info_t info = {.length = 0};
    ucs_status_t status = ucp_request_check_status(request);
    if (status == UCS_INPROGRESS) {
        /* UCX does not know who is to send a tag: a receive from a peer that is gone never ends. */
        return ucx->peers[peer].status == UCS_OK
                   ? 0
                   : fail(ucx, ucx->peers[peer].status, "the connection", peer);
    }
    if (status == UCS_OK && (handle & RECEIVES) != 0) {
        status = ucp_tag_recv_request_test(request, &info);
    }
    ucp_request_free(request);
    if (status != UCS_OK) {
        return fail(ucx, status, "a message", peer);
    }
    *n_out = info.length;
    return 1;
}

static void ucx_progress(dsi_wire *wire)
{
    const ucx_wire *ucx = (const ucx_wire *)wire;
    while (ucp_worker_progress(ucx->worker) != 0) {
    }
}

static void ucx_cancel(dsi_wire *wire, uint64_t handle)
{
    const ucx_wire *ucx = (const ucx_wire *)wire;
    void *request = request_of(handle);
    ucp_request_cancel(ucx->worker, request);
    for (int i = 0; i < 1000 && ucp_request_check_status(request) == UCS_INPROGRESS; ++i) {
        (void)ucp_worker_progress(ucx->worker);
    }
    ucp_request_free(request);
}

static double now(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Closes all connections at once, then waits until what was sent has left: at most 5 s. */
static void close_peers(ucx_wire *ucx, bool failed)
{
    const double until = now() + (failed ? 0.2 : 5.0);
    const ucp_request_param_t params = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
        .flags = failed ? UCP_EP_CLOSE_FLAG_FORCE : 0,
    };
    ucs_status_ptr_t *open = calloc(ucx->head.size, sizeof *open);
    for (uint32_t r = 0; r < ucx->head.size && open != NULL; ++r) {
        if (ucx->peers[r].ep != NULL) {
            open[r] = ucp_ep_close_nbx(ucx->peers[r].ep, &params);
        }
    }
    for (uint32_t r = 0; r < ucx->head.size && open != NULL; ++r) {
        if (!UCS_PTR_IS_PTR(open[r])) {
            continue;
        }
        while (ucp_request_check_status(open[r]) == UCS_INPROGRESS && now() < until) {
            (void)ucp_worker_progress(ucx->worker);
        }
        ucp_request_free(open[r]);
    }
    free(open);
}

static void free_wire(ucx_wire *ucx)
{
    if (ucx->worker != NULL) {
        ucp_worker_destroy(ucx->worker);
    }
    if (ucx->context != NULL) {
        ucp_cleanup(ucx->context);
    }
    for (uint32_t r = 0; ucx->peers != NULL && r < ucx->head.size; ++r) {
        free(ucx->peers[r].address);
    }
    free(ucx->peers);
    free(ucx);
}

static void ucx_close(dsi_wire *wire, bool failed)
{
    ucx_wire *ucx = (ucx_wire *)wire;
    close_peers(ucx, failed);
    free_wire(ucx);
}

static const dsi_wire_ops ucx_ops = {
    .version = DSI_WIRE_VERSION,
    .name = "ucx",
    .send = ucx_send,
    .recv = ucx_recv,
    .test = ucx_test,
    .progress = ucx_progress,
    .cancel = ucx_cancel,
    .close = ucx_close,
};

static int begin_ucx(ucx_wire *ucx)
{
    const ucp_params_t params = {.field_mask = UCP_PARAM_FIELD_FEATURES,
                                 .features = UCP_FEATURE_TAG};
    const ucp_worker_params_t worker = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
                                        .thread_mode = UCS_THREAD_MODE_SERIALIZED};
    ucp_config_t *config = NULL;
    ucs_status_t status = ucp_config_read(NULL, NULL, &config);
    if (status != UCS_OK) {
        return fail(ucx, status, "reading its UCX_ variables", DSI_WIRE_NOBODY);
    }
    status = ucp_init(&params, config, &ucx->context);
    ucp_config_release(config);
    if (status != UCS_OK) {
        return fail(ucx, status, "begin", DSI_WIRE_NOBODY);
    }
    status = ucp_worker_create(ucx->context, &worker, &ucx->worker);
    return status == UCS_OK ? 0 : fail(ucx, status, "making a worker", DSI_WIRE_NOBODY);
}

static int exchange_addresses(ucx_wire *ucx, const dsi_wire_setup *setup)
{
    ucp_address_t *address;
    size_t n;
    const ucs_status_t status = ucp_worker_get_address(ucx->worker, &address, &n);
    if (status != UCS_OK) {
        return fail(ucx, status, "its address", DSI_WIRE_NOBODY);
    }
    int failed = setup->put(setup->user, address, n);
    ucp_worker_release_address(ucx->worker, address);
    for (uint32_t r = 0; r < setup->size && failed == 0; ++r) {
        void *theirs = NULL;
        failed = setup->get(setup->user, r, &theirs, &n);
        ucx->peers[r] = (ucx_peer){.wire = ucx, .address = theirs, .rank = r, .status = UCS_OK};
    }
    return failed;
}

int dsi_wire_open(const dsi_wire_setup *setup, dsi_wire **wire_out, char *error_out)
{
    ucx_wire *ucx = calloc(1, sizeof *ucx);
    error_out[0] = '\0';
    if (ucx == NULL) {
        (void)snprintf(error_out, DSI_WIRE_ERROR_BYTES, "no memory for UCX");
        return -1;
    }
    ucx->head =
        (dsi_wire){.ops = &ucx_ops, .rank = setup->rank, .size = setup->size, .ours_alone = true};
    (void)snprintf(ucx->head.library, sizeof ucx->head.library, "UCX %s", ucp_get_version_string());
    ucx->peers = calloc(setup->size, sizeof *ucx->peers);
    if (ucx->peers == NULL || begin_ucx(ucx) != 0 || exchange_addresses(ucx, setup) != 0) {
        (void)snprintf(error_out, DSI_WIRE_ERROR_BYTES, "%s", ucx->head.error);
        free_wire(ucx);
        return -1;
    }
    *wire_out = &ucx->head;
    return 0;
}
