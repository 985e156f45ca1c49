/* SPDX-License-Identifier: Apache-2.0 */
/* The hosts of a job and their slots: read from a hostfile, chosen by include and exclude, carried
 * to the nodes as text. A slot is a place for one rank: a device number where there are devices.
 *
 * Ranks are numbered through hosts in the file's order, and through each host's slots in rising
 * order. Invariant of a selected list: every host has at least one slot, slots rise without
 * repetition, names are unique and hold only letters, digits and ._:- (never a leading '-', which
 * ssh would take for a flag).
 */
#ifndef DSI_LAUNCH_HOSTS_H
#define DSI_LAUNCH_HOSTS_H

#include "base/buf.h"
#include <stdint.h>

enum { DSI_MAX_HOSTS = 16384, DSI_MAX_SLOTS = 1024, DSI_MAX_HOST_NAME = 253, DSI_MAX_USER = 64 };

typedef struct dsi_host {
    char *name;
    char *user; /* whom ssh logs in as; NULL: as it is configured */
    uint32_t *slots;
    uint32_t n_slots;
} dsi_host;

typedef struct dsi_hosts {
    dsi_host *items;
    size_t n, capacity;
} dsi_hosts;

/* Reads "[user@]name slots=N" lines; '#' begins a comment; max_slots=M (Open MPI's) is accepted and
 * has no say. `name` is the file's, for messages. Errors: ERR_FORMAT with "name:line: …" for each
 * wrong line, ten at most; ERR_LIMIT; ERR_NOMEM. The caller frees *hosts_out. */
ds_status dsi_hosts_parse(ds_ctx *ctx, const char *name, const char *text, size_t n,
                          dsi_hosts *hosts_out);
/* Of a file; ERR_NOT_FOUND when there is none. */
ds_status dsi_hosts_read(ds_ctx *ctx, const char *path, dsi_hosts *hosts_out);
void dsi_hosts_free(dsi_hosts *hosts);
void dsi_host_free(dsi_host *host);
/* A host that has a user, NULL without one. */
const dsi_host *dsi_hosts_with_user(const dsi_hosts *hosts);

/* Adds a host with slots 0 … n_slots-1. Errors: ERR_NOMEM, ERR_LIMIT. */
ds_status dsi_hosts_add(ds_ctx *ctx, dsi_hosts *hosts, const char *name, uint32_t n_slots);

/* Keeps what include names, or drops what exclude names: NODE[@NODE…], NODE = name[:slot[,slot…]];
 * a name alone means all its slots. NULL or "": not given; both at once are an error. Errors:
 * ERR_ARG names a host or slot that is not there, a wrong form, or that nothing is left. */
ds_status dsi_hosts_select(ds_ctx *ctx, dsi_hosts *hosts, const char *include, const char *exclude);
/* Keeps the first n_nodes hosts. ERR_ARG when there are fewer. */
ds_status dsi_hosts_first(ds_ctx *ctx, dsi_hosts *hosts, uint32_t n_nodes);
/* Gives every host the slots 0 … n-1. ERR_ARG names a host that has fewer, unless may_grow. */
ds_status dsi_hosts_set_slots(ds_ctx *ctx, dsi_hosts *hosts, uint32_t n, bool may_grow);

/* The first host with another number of slots than the first one; NULL: all have as many. */
const dsi_host *dsi_hosts_unequal(const dsi_hosts *hosts);

uint32_t dsi_hosts_n_ranks(const dsi_hosts *hosts);
/* The rank of a host's first slot. */
uint32_t dsi_hosts_first_rank(const dsi_hosts *hosts, size_t host);

/* The name of the host that has a rank; NULL: none has. */
const char *dsi_hosts_of_rank(const dsi_hosts *hosts, uint32_t rank);

/* {"host": [slots…], …} in URL-safe base64, as DeepSpeed's world info; and back. Errors:
 * ERR_FORMAT, ERR_LIMIT, ERR_NOMEM. */
ds_status dsi_hosts_encode(ds_ctx *ctx, const dsi_hosts *hosts, dsi_buf *buf);
ds_status dsi_hosts_decode(ds_ctx *ctx, const char *text, dsi_hosts *hosts_out);

/* NULL when name may be a host's, else what is wrong with it. */
const char *dsi_host_name_fault(const char *name, size_t n);

#endif
