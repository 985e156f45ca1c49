/* SPDX-License-Identifier: Apache-2.0 */
/* Worlds of simulated ranks, and groups split from them, which are worlds again. See sim_impl.h. */
#include "comm/sim_impl.h"

#include "base/clock.h"
#include <stdlib.h>
#include <string.h>

void sim_world_free(sim_world *world)
{
    for (uint32_t r = 0; r < world->size && world->ranks != NULL; ++r) {
        for (uint32_t i = 0; i < SIM_RING; ++i) {
            free(world->ranks[r].coll[i].copy);
            free(world->ranks[r].coll[i].counts);
        }
    }
    (void)pthread_mutex_destroy(&world->lock);
    (void)pthread_cond_destroy(&world->moved);
    free(world->ranks);
    free(world->colors);
    free(world->keys);
    free(world->children);
    free(world);
}

sim_world *sim_world_make(uint32_t size, const dsi_comm_sim_options *options)
{
    sim_world *world = calloc(1, sizeof *world);
    if (world == NULL) {
        return NULL;
    }
    (void)pthread_mutex_init(&world->lock, NULL);
    (void)pthread_cond_init(&world->moved, NULL);
    world->size = size;
    world->n_users = size; /* a rank may leave before another has come */
    world->options = *options;
    world->ranks = calloc(size, sizeof *world->ranks);
    world->colors = calloc(size, sizeof *world->colors);
    world->keys = calloc(size, sizeof *world->keys);
    world->children = calloc(size, sizeof(sim_world *));
    if (world->ranks == NULL || world->colors == NULL || world->keys == NULL ||
        world->children == NULL) {
        sim_world_free(world);
        return NULL;
    }
    return world;
}

ds_status sim_comm_make(ds_ctx *ctx, sim_world *world, uint32_t rank, double timeout,
                        dsi_comm **comm_out)
{
    sim_comm *sim = calloc(1, sizeof *sim);
    if (sim == NULL) {
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory for a simulated communicator");
    }
    sim->head = (dsi_comm){.transport = &dsi_sim_transport,
                           .ctx = ctx,
                           .rank = rank,
                           .size = world->size,
                           .timeout = timeout};
    sim->world = world;
    *comm_out = &sim->head;
    return DS_OK;
}

/* IN: colors and keys of all. The place of `rank` among those of its color, their number, and the
 * lowest rank of them. */
static uint32_t place_in_group(const sim_world *world, uint32_t rank, uint32_t *size_out,
                               uint32_t *lowest_out)
{
    uint32_t place = 0;
    *size_out = 0;
    *lowest_out = rank;
    for (uint32_t r = 0; r < world->size; ++r) {
        if (world->colors[r] != world->colors[rank]) {
            continue;
        }
        *lowest_out = r < *lowest_out ? r : *lowest_out;
        *size_out += 1;
        const bool earlier =
            world->keys[r] < world->keys[rank] || (world->keys[r] == world->keys[rank] && r < rank);
        place += earlier ? 1 : 0;
    }
    return place;
}

static ds_status split_locked(sim_comm *sim, uint32_t color, uint32_t key, dsi_comm **comm_out)
{
    sim_world *world = sim->world;
    const double deadline = sim->head.timeout > 0.0 ? dsi_clock_seconds() + sim->head.timeout : 0.0;
    while (world->n_taken > 0) { /* the split before this one is not over */
        DS_TRY(sim_wait_for_change(sim, NULL, deadline));
    }
    world->colors[sim->head.rank] = color;
    world->keys[sim->head.rank] = key;
    const uint64_t this_split = world->n_splits;
    if (++world->n_asked == world->size) {
        ++world->n_splits;
        world->n_taken = world->size;
        (void)pthread_cond_broadcast(&world->moved);
    }
    while (world->n_splits == this_split) {
        DS_TRY(sim_wait_for_change(sim, NULL, deadline));
    }
    ds_status status = DS_OK;
    *comm_out = NULL;
    if (color != DSI_COLOR_NONE) {
        uint32_t size;
        uint32_t lowest;
        const uint32_t place = place_in_group(world, sim->head.rank, &size, &lowest);
        if (world->children[lowest] == NULL) {
            dsi_comm_sim_options options = world->options;
            options.drop_at = 0;
            options.seed += 0x9E3779B9u * (lowest + 1) + world->n_splits;
            world->children[lowest] = sim_world_make(size, &options);
        }
        status = world->children[lowest] == NULL
                     ? ds_fail(sim->head.ctx, DS_ERR_NOMEM, "no memory for a group")
                     : sim_comm_make(sim->head.ctx, world->children[lowest], place,
                                     sim->head.timeout, comm_out);
    }
    if (--world->n_taken == 0) {
        world->n_asked = 0;
        memset(world->children, 0, world->size * sizeof(sim_world *));
        (void)pthread_cond_broadcast(&world->moved);
    }
    return status;
}

ds_status sim_split(dsi_comm *comm, uint32_t color, uint32_t key, dsi_comm **comm_out)
{
    sim_comm *sim = (sim_comm *)comm;
    sim_delay(sim);
    (void)pthread_mutex_lock(&sim->world->lock);
    const ds_status status = split_locked(sim, color, key, comm_out);
    (void)pthread_mutex_unlock(&sim->world->lock);
    return status;
}
