/* SPDX-License-Identifier: Apache-2.0 */
/* Chooses the network of a job, opens it, and puts shared memory under it where ranks share a node.
 * See net.h. */
#include "base/machine_id.h"
#include "comm/hier.h"
#include "comm/net_impl.h"
#include "comm/shm.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <xxhash.h>

enum { NAME_WORDS = 3 };

/* What each rank reports to the others: where it is, and a name for its block if it is the first.
 * The number of the node may be a guess; shared memory reaches those that have kernel and network
 * name space in common, whatever the numbers say. */
typedef struct place_card {
    int64_t node;
    uint64_t reach; /* equal where shared memory reaches */
    uint64_t name[NAME_WORDS];
} place_card;

static uint64_t own_reach(void)
{
    struct stat space = {0};
    (void)stat("/proc/self/ns/net", &space);
    const uint64_t words[2] = {dsi_machine_id(), (uint64_t)space.st_ino};
    return XXH3_64bits(words, sizeof words);
}

static ds_status gather_cards(const dsi_comm_world *world, dsi_comm *flat, place_card *cards)
{
    place_card mine = {.node = world->node, .reach = own_reach()};
    if (getrandom(mine.name, sizeof mine.name, 0) != (ssize_t)sizeof mine.name) {
        return ds_fail(flat->ctx, DS_ERR_IO, "no random numbers for a name");
    }
    return dsi_comm_gather(flat, &mine, cards, sizeof mine, "places of the ranks");
}

/* Ranks in a block, from the places of all. */
static ds_status block_width(dsi_comm *flat, const place_card *cards, uint32_t *width_out)
{
    int64_t *nodes = calloc(flat->size, sizeof *nodes);
    if (nodes == NULL) {
        return ds_fail(flat->ctx, DS_ERR_NOMEM, "no memory for the places of the ranks");
    }
    for (uint32_t r = 0; r < flat->size; ++r) { /* the first rank of a run on one node */
        const bool same =
            r > 0 && cards[r].node == cards[r - 1].node && cards[r].reach == cards[r - 1].reach;
        nodes[r] = same ? nodes[r - 1] : r;
    }
    *width_out = dsi_hier_block(nodes, flat->size);
    free(nodes);
    return DS_OK;
}

/* The block's shared memory meets under a name that nobody else can know. */
static ds_status open_local(dsi_comm *flat, const place_card *first, uint32_t width,
                            dsi_comm **local_out)
{
    char name[128];
    (void)snprintf(name, sizeof name, "block %016llx%016llx%016llx",
                   (unsigned long long)first->name[0], (unsigned long long)first->name[1],
                   (unsigned long long)first->name[2]);
    const dsi_shm_params params = {.rank = flat->rank % width,
                                   .size = width,
                                   .first = flat->rank / width * width,
                                   .job = name,
                                   .timeout = flat->timeout};
    return dsi_comm_shm_open(flat->ctx, &params, local_out);
}

/* Replaces *comm_inout (the network of all ranks) by the hierarchy, if there are blocks. */
static ds_status add_hierarchy(const dsi_comm_world *world, dsi_comm **comm_inout)
{
    dsi_hier_parts parts = {.flat = *comm_inout};
    dsi_comm *flat = parts.flat;
    uint32_t width = 1;
    place_card *cards = calloc(flat->size, sizeof *cards);
    if (cards == NULL) {
        return ds_fail(flat->ctx, DS_ERR_NOMEM, "no memory for the places of the ranks");
    }
    ds_status status = gather_cards(world, flat, cards);
    DS_TRY_GOTO(status, status, free_cards);
    DS_TRY_GOTO(status, block_width(flat, cards, &width), free_cards);
    if (width == 1 || width == flat->size) {
        ds_log(flat->ctx, DS_LOG_OBJECT,
               width == 1 ? "no node has ranks in aligned blocks: all messages use the network"
                          : "all ranks are on one node, all messages use the network as asked");
        goto free_cards;
    }
    DS_TRY_GOTO(status, open_local(flat, &cards[flat->rank / width * width], width, &parts.local),
                free_cards);
    DS_TRY_GOTO(status, dsi_comm_split(flat, flat->rank % width, flat->rank / width, &parts.cross),
                free_parts);
    DS_TRY_GOTO(status, dsi_comm_hier(&parts, comm_inout), free_parts);
    goto free_cards;
free_parts:
    dsi_comm_destroy(&parts.cross);
    dsi_comm_destroy(&parts.local);
free_cards:
    free(cards);
    return status;
}

ds_status dsi_comm_open_net(ds_ctx *ctx, const dsi_comm_world *world, dsi_comm **comm_out)
{
    const char *asked = world->transport;
    const char *name = net_module_mpi() != NULL ? "mpi" : "ucx";
    bool flat = false;
    if (asked != NULL) {
        flat = strncmp(asked, "shm+", 4) != 0;
        name = flat ? asked : asked + 4;
        if (strcmp(name, "mpi") != 0 && strcmp(name, "ucx") != 0) {
            return ds_fail(ctx, DS_ERR_CONFIG,
                           "unknown transport \"%s\": shm serves one host; mpi, ucx, shm+mpi and "
                           "shm+ucx reach over a network",
                           asked);
        }
    }
    dsi_comm *comm = NULL;
    DS_TRY(net_world_open(ctx, world, name, &comm));
    if (!flat) {
        const ds_status status = add_hierarchy(world, &comm);
        if (status < 0) {
            dsi_comm_destroy(&comm);
            return status;
        }
    }
    *comm_out = comm;
    return DS_OK;
}
