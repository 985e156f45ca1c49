/* SPDX-License-Identifier: Apache-2.0 */
/* The time of collectives by algorithm; the fastest counts. See device.h.
 *
 * P: bytes of the whole tensor; n ranks, g of them on this rank's node, k = n/g nodes. Each rank
 * sends, in a ring or in place, P(n-1)/n bytes for a reduce-scatter or an all-gather and twice that
 * for an all-reduce. A ring has n-1 hops (an all-reduce two rounds of them), a tree 2·log2(n).
 */
#include "cost/device.h"

#include <math.h>

typedef struct problem {
    const dsi_device *device;
    ds_comm_op kind;
    double bytes; /* P */
    double n, g, k;
} problem;

static double rounds(ds_comm_op kind)
{
    return kind == DS_COMM_ALL_REDUCE ? 2.0 : 1.0;
}

/* The share of a link that collectives of this kind reach; an all-reduce by ring is a
 * reduce-scatter and an all-gather. */
static double share_of(const dsi_link *link, ds_comm_op kind, bool ring)
{
    switch (kind) {
    case DS_COMM_ALL_REDUCE:
        return ring && link->multicast ? 2.0 / (1.0 / link->reduce_scatter + 1.0 / link->all_gather)
                                       : link->all_reduce;
    case DS_COMM_REDUCE_SCATTER:
        return link->reduce_scatter;
    default:
        return link->all_gather;
    }
}

static double rate_of(const dsi_link *link, ds_comm_op kind, bool ring)
{
    return link->bandwidth * share_of(link, kind, ring);
}

/* Bytes that each of n ranks sends. */
static double sent(ds_comm_op kind, double bytes, double n)
{
    switch (kind) {
    case DS_COMM_BARRIER:
        return 0.0;
    case DS_COMM_SEND:
    case DS_COMM_RECV:
    case DS_COMM_BROADCAST:
        return bytes;
    default:
        return rounds(kind) * bytes * (n - 1.0) / n;
    }
}

static double hops(ds_comm_op kind, double n)
{
    switch (kind) {
    case DS_COMM_BARRIER:
    case DS_COMM_BROADCAST:
        return ceil(log2(n));
    case DS_COMM_SEND:
    case DS_COMM_RECV:
        return 1.0;
    default:
        return rounds(kind) * (n - 1.0);
    }
}

static void offer(dsi_coll_time *best, double latency, double wire, const char *algorithm)
{
    if (best->algorithm == NULL || latency + wire < best->seconds) {
        best->seconds = latency + wire;
        best->wire_seconds = wire;
        best->algorithm = algorithm;
    }
}

/* Among n ranks on one kind of link. */
static void offer_flat(const problem *p, const dsi_link *link, dsi_coll_time *best)
{
    const double bytes = sent(p->kind, p->bytes, p->n);
    if (p->device->in_place) { /* everybody reads the others' memory after one meeting */
        offer(best, link->latency, bytes / rate_of(link, p->kind, false), "direct");
        return;
    }
    offer(best, hops(p->kind, p->n) * link->latency, bytes / rate_of(link, p->kind, true), "ring");
    if (p->kind == DS_COMM_ALL_REDUCE) {
        offer(best, 2.0 * ceil(log2(p->n)) * link->latency,
              2.0 * p->bytes / rate_of(link, p->kind, true), "tree");
        if (link->multicast) {
            offer(best, 2.0 * ceil(log2(p->n)) * link->latency,
                  p->bytes / rate_of(link, p->kind, false), "multicast");
        }
    }
}

/* Through all ranks as one ring that enters each node once on each of its network ports: the slower
 * of node and network counts. */
static void offer_pipelined(const problem *p, dsi_coll_time *best)
{
    const dsi_device *d = p->device;
    const double rate =
        fmin(rate_of(&d->node, p->kind, true), p->g * rate_of(&d->net, p->kind, true));
    const double within = rounds(p->kind) * (p->n - p->k) * d->node.latency;
    const double between = rounds(p->kind) * p->k * d->net.latency;
    offer(best, within + between, sent(p->kind, p->bytes, p->n) / rate, "ring");
    if (p->kind == DS_COMM_ALL_REDUCE) {
        const double deep = 2.0 * (p->g - 1.0) * d->node.latency;
        const double wide = 2.0 * ceil(log2(p->k)) * d->net.latency;
        offer(best, deep + wide, 2.0 * p->bytes / rate, "tree");
    }
}

/* Within the nodes, then between the peers of all nodes with P/g each, one after the other. */
static void offer_hierarchical(const problem *p, dsi_coll_time *best)
{
    const dsi_device *d = p->device;
    problem within = *p;
    dsi_coll_time inner = {0};
    double latency = 0.0;
    if (p->g > 1.0) {
        within.n = p->g;
        offer_flat(&within, &d->node, &inner);
        latency = inner.seconds - inner.wire_seconds;
    }
    const double direct = hops(p->kind, p->k);
    const double halving = rounds(p->kind) * ceil(log2(p->k)); /* recursive */
    const double across = sent(p->kind, p->bytes / p->g, p->k) / rate_of(&d->net, p->kind, true);
    offer(best, latency + fmin(direct, halving) * d->net.latency, inner.wire_seconds + across,
          p->g > 1.0 ? "hierarchical" : "halving");
}

dsi_coll_time dsi_time_collective(const dsi_device *device, ds_comm_op kind, dsi_group group,
                                  double bytes)
{
    if (group.n_ranks <= 1) {
        return (dsi_coll_time){.algorithm = "none"};
    }
    const uint32_t local = group.n_local < 1               ? 1
                           : group.n_local > group.n_ranks ? group.n_ranks
                                                           : group.n_local;
    const problem p = {.device = device,
                       .kind = kind,
                       .bytes = bytes,
                       .n = (double)group.n_ranks,
                       .g = (double)local,
                       .k = ceil((double)group.n_ranks / (double)local)};
    dsi_coll_time best = {0};
    if (p.k <= 1.0) {
        offer_flat(&p, &device->node, &best);
        best.node_bytes = sent(kind, bytes, p.n);
        return best;
    }
    const bool pair = kind == DS_COMM_SEND || kind == DS_COMM_RECV;
    if (p.g > 1.0 && !device->in_place && !pair) {
        offer_pipelined(&p, &best);
    }
    if (kind == DS_COMM_ALL_TO_ALL || pair) { /* nothing to combine within a node */
        const double far = pair ? bytes : bytes * (p.n - p.g) / p.n;
        best = (dsi_coll_time){.algorithm = NULL};
        offer(&best, (pair ? 1.0 : p.n - 1.0) * device->net.latency,
              far / rate_of(&device->net, kind, true), "direct");
    } else {
        offer_hierarchical(&p, &best);
    }
    best.net_bytes = pair ? bytes : sent(kind, bytes / p.g, p.k);
    best.node_bytes = pair || p.g <= 1.0 ? 0.0 : sent(kind, bytes, p.g);
    return best;
}
