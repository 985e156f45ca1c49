/* SPDX-License-Identifier: Apache-2.0 */
/* Several datasets drawn from by weight. See loader.h.
 *
 * Draw i has the number start + i * phi modulo 2^64, where phi is 2^64 over the golden ratio and
 * start is of the seed; each lane owns a share of the numbers as large as its weight. Such numbers
 * fill every interval evenly (Knuth, The Art of Computer Programming 3, 6.4, theorem S): after any
 * number of draws each lane has had its share but for a few, and no table or count is needed.
 */
#include "data/loader.h"

#include "base/rng.h"

enum { SITE_LANES = 0x4c414e45 };

void dsi_loader_share(ds_loader *loader)
{
    double total = 0.0;
    double sum = 0.0;
    for (uint32_t i = 0; i < loader->n_lanes; ++i) {
        total += loader->lanes[i].weight;
    }
    for (uint32_t i = 0; i < loader->n_lanes; ++i) {
        sum += loader->lanes[i].weight;
        const double share = sum / total * 0x1p64;
        loader->lanes[i].upto = share < 0x1p64 ? (uint64_t)share : UINT64_MAX;
    }
    loader->lanes[loader->n_lanes - 1].upto = UINT64_MAX;
}

/* Draws of a lane's epoch. */
static uint64_t lane_draws(const ds_loader *loader, const dsi_lane *lane, uint64_t epoch)
{
    return loader->samples ? lane->dataset->n_docs / dsi_dataset_each(lane->dataset)
                           : dsi_lane_windows(loader, lane, epoch);
}

/* A mixture's epoch has as many draws as all lanes hold, whatever of them it draws. */
uint64_t dsi_loader_draws(const ds_loader *loader)
{
    uint64_t draws = 0;
    if (loader->n_lanes == 1) {
        return lane_draws(loader, loader->lanes, loader->epoch);
    }
    for (uint32_t i = 0; i < loader->n_lanes; ++i) {
        draws += lane_draws(loader, &loader->lanes[i], 0);
    }
    return draws;
}

static dsi_lane *by_weight(ds_loader *loader)
{
    static const uint64_t phi = UINT64_C(0x9E3779B97F4A7C15);
    const uint64_t start = (uint64_t)dsi_rng_u32(loader->params.seed, SITE_LANES, 0, 0) << 32;
    const uint64_t draw = loader->epoch * dsi_loader_draws(loader) + loader->next;
    const uint64_t number = start + draw * phi;
    dsi_lane *lane = loader->lanes;
    while (number > lane->upto) {
        ++lane;
    }
    return lane;
}

/* Without shuffle: one lane after another. */
static dsi_lane *in_order(ds_loader *loader)
{
    dsi_lane *lane = loader->lanes;
    const dsi_lane *last = lane + loader->n_lanes - 1;
    while (lane < last && lane->next >= lane_draws(loader, lane, lane->epoch)) {
        ++lane;
    }
    return lane;
}

dsi_lane *dsi_loader_lane(ds_loader *loader)
{
    dsi_lane *lane = loader->lanes;
    if (loader->n_lanes > 1) {
        lane = loader->params.shuffle ? by_weight(loader) : in_order(loader);
    }
    if (lane->next >= lane_draws(loader, lane, lane->epoch)) {
        lane->epoch += 1;
        lane->next = 0;
    }
    return lane;
}

void dsi_loader_drew(ds_loader *loader, dsi_lane *lane)
{
    lane->next += 1;
    loader->next += 1;
}

void dsi_loader_rewind_to(ds_loader *loader, uint64_t epoch, uint64_t next)
{
    loader->epoch = epoch;
    loader->next = next;
    for (uint32_t i = 0; i < loader->n_lanes; ++i) {
        loader->lanes[i].epoch = epoch;
        loader->lanes[i].next = next;
    }
}
