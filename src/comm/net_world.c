/* SPDX-License-Identifier: Apache-2.0 */
/* Opens what the ranks of a job share: wire and rendezvous. See net_impl.h. Called by net_open.c.
 *
 * UCX: first the rendezvous (at MASTER_ADDR:MASTER_PORT), over which UCX's addresses travel. MPI:
 * first MPI, over which rank 0 reports where its rendezvous is, with a secret made for it.
 */
#include "base/number.h"
#include "comm/net.h"
#include "comm/net_impl.h"
#include "comm/slurm_place.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

enum { SECRET_BYTES = 64, PLACES_BYTES = 900, HOST_BYTES = 256 };

#define LINGER_SECONDS     30.0
#define FOR_EVER           1e8
#define FAILED_NANOSECONDS 100000000

/* Where the rendezvous is, as rank 0 reports it over MPI. */
typedef struct meeting_place {
    uint32_t port; /* 0: there is none */
    char secret[SECRET_BYTES + 4];
    char hosts[PLACES_BYTES]; /* addresses, one after another, each terminated; "" ends */
} meeting_place;

/* ---- UCX ---- */

typedef struct ucx_meeting {
    dsi_rdv *rdv;
    uint32_t rank;
    double timeout;
} ucx_meeting;

static int ucx_put(void *user, const void *value, size_t n)
{
    const ucx_meeting *meeting = user;
    char key[32];
    (void)snprintf(key, sizeof key, "ucx/%u", meeting->rank);
    return dsi_rdv_put(meeting->rdv, key, value, n) == DS_OK ? 0 : -1;
}

static int ucx_get(void *user, uint32_t rank, void **value_out, size_t *n_out)
{
    const ucx_meeting *meeting = user;
    char key[32];
    (void)snprintf(key, sizeof key, "ucx/%u", rank);
    const ds_status status =
        dsi_rdv_get_from(meeting->rdv, rank, key, meeting->timeout, value_out, n_out);
    return status == DS_OK ? 0 : -1;
}

/* MASTER_ADDR and MASTER_PORT; in a Slurm step what they lack follows from its numbers. */
static ds_status find_master(ds_ctx *ctx, char *host, uint16_t *port_out)
{
    const char *address = getenv("MASTER_ADDR");
    const char *text = getenv("MASTER_PORT");
    const bool in_step = dsi_slurm_place(host, HOST_BYTES, port_out);
    int64_t port = in_step ? *port_out : 0;
    if ((text != NULL && !dsi_number_int(text, 1, 65535, &port)) || port < 1 ||
        (address == NULL && !in_step) || (address != NULL && strlen(address) >= HOST_BYTES)) {
        return ds_fail(ctx, DS_ERR_CONFIG,
                       "several ranks without MPI meet at MASTER_ADDR:MASTER_PORT (1 to 65535); "
                       "found \"%s\":\"%s\"",
                       address != NULL ? address : "", text != NULL ? text : "");
    }
    if (address != NULL) {
        (void)snprintf(host, HOST_BYTES, "%s", address);
    }
    *port_out = (uint16_t)port;
    return DS_OK;
}

static ds_status open_ucx(net_world *world, const dsi_comm_world *place, double timeout)
{
    const char *holder = getenv("DS_RENDEZVOUS");
    char host[HOST_BYTES];
    dsi_rdv_options options = {.host = host,
                               .secret = getenv("DS_JOB_SECRET"),
                               .size = place->size,
                               .rank = place->rank,
                               .timeout = timeout};
    DS_TRY(find_master(world->ctx, host, &options.port));
    if (place->rank == 0 && (holder == NULL || strcmp(holder, "launcher") != 0)) {
        DS_TRY(dsi_rdv_serve(world->ctx, &options, &world->server));
    }
    DS_TRY(dsi_rdv_join(world->ctx, &options, &world->rdv));
    ucx_meeting meeting = {world->rdv, place->rank, timeout};
    const dsi_wire_setup setup = {.rank = place->rank,
                                  .size = place->size,
                                  .timeout = timeout,
                                  .user = &meeting,
                                  .put = ucx_put,
                                  .get = ucx_get};
    return net_module_open(world->ctx, "ucx", &setup, &world->wire);
}

ds_status dsi_net_stand_in(ds_ctx *ctx, const dsi_comm_world *place, const char *text)
{
    const char *holder = getenv("DS_RENDEZVOUS");
    char host[HOST_BYTES];
    dsi_rdv_server *server = NULL;
    dsi_rdv *rdv = NULL;
    dsi_rdv_options options = {.host = host,
                               .secret = getenv("DS_JOB_SECRET"),
                               .size = place->size,
                               .rank = place->rank,
                               .timeout = FOR_EVER};
    DS_TRY(find_master(ctx, host, &options.port));
    if (place->rank == 0 && (holder == NULL || strcmp(holder, "launcher") != 0)) {
        DS_TRY(dsi_rdv_serve(ctx, &options, &server));
    }
    ds_status status = dsi_rdv_join(ctx, &options, &rdv);
    if (status == DS_OK && server != NULL) {
        status = dsi_rdv_wait_for_another(rdv);
    }
    if (status == DS_OK) {
        dsi_rdv_abort_for(rdv, text);
    }
    dsi_rdv_leave(&rdv);
    dsi_rdv_server_stop(&server, 1.0);
    return status;
}

/* ---- MPI ---- */

static void add_host(meeting_place *place, size_t *used, const char *host)
{
    const size_t n = strlen(host) + 1;
    if (n > 1 && *used + n + 1 <= sizeof place->hosts) {
        memcpy(place->hosts + *used, host, n);
        *used += n;
    }
}

/* MASTER_ADDR, then every address of this host that others may reach, then loopback. */
static void list_hosts(meeting_place *place)
{
    size_t used = 0;
    struct ifaddrs *list = NULL;
    const char *master = getenv("MASTER_ADDR");
    memset(place->hosts, 0, sizeof place->hosts);
    if (master != NULL) {
        add_host(place, &used, master);
    }
    if (getifaddrs(&list) != 0) {
        list = NULL;
    }
    for (const struct ifaddrs *at = list; at != NULL; at = at->ifa_next) {
        char text[INET6_ADDRSTRLEN] = "";
        if (at->ifa_addr == NULL) {
            continue;
        }
        if (at->ifa_addr->sa_family == AF_INET) {
            struct sockaddr_in v4;
            memcpy(&v4, at->ifa_addr, sizeof v4);
            if (ntohl(v4.sin_addr.s_addr) >> 24 != 127) {
                (void)inet_ntop(AF_INET, &v4.sin_addr, text, sizeof text);
            }
        } else if (at->ifa_addr->sa_family == AF_INET6) {
            struct sockaddr_in6 v6;
            memcpy(&v6, at->ifa_addr, sizeof v6);
            if (!IN6_IS_ADDR_LOOPBACK(&v6.sin6_addr) && !IN6_IS_ADDR_LINKLOCAL(&v6.sin6_addr)) {
                (void)inet_ntop(AF_INET6, &v6.sin6_addr, text, sizeof text);
            }
        }
        add_host(place, &used, text);
    }
    if (list != NULL) {
        freeifaddrs(list);
    }
    add_host(place, &used, "127.0.0.1");
}

/* Rank 0's side. Without a rendezvous (no port, no random numbers) the job still runs. */
static void serve_meeting(net_world *world, uint32_t size, meeting_place *place)
{
    uint8_t random[SECRET_BYTES / 2];
    memset(place, 0, sizeof *place);
    if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random) {
        return;
    }
    for (size_t i = 0; i < sizeof random; ++i) {
        (void)snprintf(place->secret + 2 * i, 3, "%02x", random[i]);
    }
    list_hosts(place);
    const dsi_rdv_options options = {.host = "127.0.0.1", .secret = place->secret, .size = size};
    if (dsi_rdv_serve(world->ctx, &options, &world->server) == DS_OK) {
        place->port = dsi_rdv_server_port(world->server);
    }
}

static void join_meeting(net_world *world, const meeting_place *place, uint32_t rank, uint32_t size)
{
    const char *host = place->hosts;
    dsi_rdv_options options = {.port = (uint16_t)place->port,
                               .secret = place->secret,
                               .size = size,
                               .rank = rank,
                               .timeout = 3.0};
    while (place->port != 0 && *host != '\0' && world->rdv == NULL) {
        options.host = rank == 0 ? "127.0.0.1" : host;
        (void)dsi_rdv_join(world->ctx, &options, &world->rdv);
        host += strlen(host) + 1;
    }
    if (world->rdv == NULL) {
        ds_log(world->ctx, DS_LOG_WARN,
               "rank %u does not reach the rendezvous of rank 0: the job runs over MPI, but a rank "
               "that dies is named only by MPI (%s)",
               rank, ds_ctx_error(world->ctx));
    }
}

static ds_status meet_over_mpi(net_group *group)
{
    net_world *world = group->world;
    meeting_place place;
    if (group->head.rank == 0) {
        serve_meeting(world, group->head.size, &place);
    }
    const dsi_comm_part part = {.in = &place, .out = &place, .count = sizeof place};
    const dsi_comm_call call = {.kind = DS_COMM_BROADCAST,
                                .dtype = DS_DTYPE_U8,
                                .parts = &part,
                                .n_parts = 1,
                                .what = "place of the rendezvous"};
    DS_TRY(dsi_comm_run(&group->head, &call));
    place.secret[SECRET_BYTES] = '\0';
    place.hosts[PLACES_BYTES - 2] = place.hosts[PLACES_BYTES - 1] = '\0';
    join_meeting(world, &place, group->head.rank, group->head.size);
    return DS_OK;
}

/* ---- both ---- */

/* After a failure its notice goes ahead of the connections that break. */
static void free_world(net_world *world)
{
    if (world->failed && world->rdv != NULL) {
        (void)nanosleep(&(struct timespec){.tv_nsec = FAILED_NANOSECONDS}, NULL);
    }
    if (world->wire != NULL) {
        world->wire->ops->close(world->wire, world->failed);
    }
    dsi_rdv_leave(&world->rdv);
    dsi_rdv_server_stop(&world->server, world->failed ? 2.0 : LINGER_SECONDS);
    (void)pthread_mutex_destroy(&world->lock);
    free(world);
}

void net_world_release(net_world *world)
{
    (void)pthread_mutex_lock(&world->lock);
    const bool last = --world->n_users == 0;
    (void)pthread_mutex_unlock(&world->lock);
    if (last) {
        free_world(world);
    }
}

ds_status net_world_open(ds_ctx *ctx, const dsi_comm_world *place, const char *name,
                         dsi_comm **comm_out)
{
    net_world *world = calloc(1, sizeof *world);
    uint32_t *members = calloc(place->size, sizeof *members);
    net_group *group = NULL;
    const double timeout = place->timeout > 0.0 ? place->timeout : 300.0;
    const bool mpi = strcmp(name, "mpi") == 0;
    ds_status status = DS_OK;
    if (world == NULL || members == NULL) {
        free(world);
        free(members);
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory for a world of %u ranks", place->size);
    }
    world->ctx = ctx;
    world->next_id = 1;
    (void)pthread_mutex_init(&world->lock, NULL);
    const dsi_wire_setup setup = {.rank = place->rank, .size = place->size, .timeout = timeout};
    status =
        mpi ? net_module_open(ctx, "mpi", &setup, &world->wire) : open_ucx(world, place, timeout);
    if (status < 0) {
        goto free_all;
    }
    for (uint32_t r = 0; r < place->size; ++r) {
        members[r] = r;
    }
    DS_TRY_GOTO(status,
                net_group_make(world, members, place->size, place->rank, 0, timeout, &group),
                free_all);
    dsi_comm *comm = &group->head;
    status = mpi ? meet_over_mpi(group) : DS_OK;
    if (status < 0) {
        dsi_comm_destroy(&comm); /* the world with it */
        return status;
    }
    ds_log(ctx, DS_LOG_OBJECT, "rank %u of %u over %s", place->rank, place->size,
           world->wire->library);
    *comm_out = comm;
    return DS_OK;
free_all:
    world->failed = true;
    free(members);
    free_world(world);
    return status;
}
