/* SPDX-License-Identifier: Apache-2.0 */
/* Device profiles: what one rank's processor, memory, links and disk can do.
 *
 * A profile comes from the shipped table (device_table.c, data-sheet figures with their sources),
 * from a JSON file (written by a measurement or by hand; "base" names a profile to start from), or
 * from both. Everything is plain numbers: a profile is copied by assignment. Who uses them: the
 * time models here, the simulator, the planner.
 *
 * Time of a step: latency + the larger of
 *   flops / (peak[dtype] · compute · m/(m+half_m) · n/(n+half_n) · k/(k+half_k))
 *   bytes / (memory_bandwidth · memory)
 * with the rates of its operator class and dtype.
 */
#ifndef DSI_COST_DEVICE_H
#define DSI_COST_DEVICE_H

#include "base/buf.h"
#include "comm/comm.h"
#include "cost/cores.h"
#include "cost/op_class.h"

/* Rows of peak[] and rates[]. */
typedef enum dsi_peak { DSI_PEAK_F32, DSI_PEAK_BF16, DSI_PEAK_F16, DSI_PEAK_COUNT } dsi_peak;

/* What one class of operators reaches. */
typedef struct dsi_rate {
    double compute;                /* share of the peak at large sizes; of products only */
    double memory;                 /* share of the memory bandwidth */
    double half_m, half_n, half_k; /* sizes at which half of `compute` is left; 0: none */
} dsi_rate;

/* One kind of link as one rank sees it. */
typedef struct dsi_link {
    char name[32];    /* "nvlink4" */
    double latency;   /* seconds of one hop, software included */
    double bandwidth; /* bytes/s that a rank sends while it receives as many */
    double all_reduce, reduce_scatter, all_gather; /* shares of it that large collectives reach */
    bool multicast; /* the switch sums: an all-reduce moves each byte once (NVLink SHARP) */
} dsi_link;

typedef struct dsi_device {
    char name[48];
    char source[192];
    double peak[DSI_PEAK_COUNT]; /* FLOP/s, dense */
    double latency;              /* seconds that a step costs on top of its work */
    double memory_bytes;
    double memory_bandwidth; /* bytes/s */
    dsi_rate rates[DSI_PEAK_COUNT][DS_CLASS_COUNT];
    bool shared;     /* the figures above are of a whole node, divided among its ranks (processors);
                        else of one rank's device */
    dsi_cores cores; /* of a shared profile: those that the figures are of, and who has them */

    bool in_place; /* ranks of a node read one another's memory: one meeting, no hops */

    uint32_t ranks_per_node;
    dsi_link node;   /* between ranks of a node */
    dsi_link net;    /* between nodes; bandwidth of one rank's share */
    double overlap;  /* share of a collective that goes on while the rank computes: 1 with copy
                        engines or kernels of its own, 0 when the waiting thread does the work */
    double slowdown; /* share of its speed that computation loses meanwhile */

    double host_memory_bytes;     /* of a node */
    double host_bandwidth;        /* bytes/s, of a node's memory */
    double host_link;             /* bytes/s between device and host, each way, of one rank */
    double host_adam;             /* parameters/s that a node's processor updates from memory */
    double disk_read, disk_write; /* bytes/s of a node, one of them alone */
    double disk_both;             /* bytes/s read and written while both go on; 0: their sum */
    double disk_latency;          /* seconds */
} dsi_device;

/* ---- profiles ---- */

/* Looks a profile up in the shipped table. Errors: ERR_NOT_FOUND names all and the nearest. */
ds_status dsi_device_find(ds_ctx *ctx, const char *name, dsi_device *device_out);
/* The i-th shipped profile, NULL past the end. */
const dsi_device *dsi_device_at(uint32_t i);
/* The shipped profile of a device by its driver's name for it, "NVIDIA H100 80GB HBM3"; NULL: there
 * is none. */
const dsi_device *dsi_device_of_name(const char *driver_name);
/* The other way: NULL where no device is known to be what a profile describes. */
const char *dsi_device_name_of(const char *profile);
/* The shipped links, likewise: "nvlink4", "ib-ndr400". */
const dsi_link *dsi_link_at(uint32_t i);

/* A shipped name, or the path of a profile file. */
ds_status dsi_device_load(ds_ctx *ctx, const char *name_or_path, dsi_device *device_out);
/* Parses a profile; label names it in messages. Unknown keys, wrong types and values out of range
 * are ERR_FORMAT naming the key. */
ds_status dsi_device_parse(ds_ctx *ctx, const char *label, const char *text, size_t n,
                           dsi_device *device_out);
/* The profile as JSON that dsi_device_parse gives back. */
void dsi_device_print(const dsi_device *device, dsi_buf *text);

/* The figures of one rank of `threads` threads (0: its share of the cores) when `local_ranks` ranks
 * share a node and all compute: divides a `shared` profile. */
dsi_device dsi_device_of_rank(const dsi_device *device, uint32_t local_ranks, uint32_t threads);
/* Cores of a node: the profile's where it says them (NULL: no profile), else this machine's. */
uint32_t dsi_device_cores(const dsi_device *device);

/* FLOP/s of a dtype's arithmetic. */
double dsi_device_peak(const dsi_device *device, ds_dtype dtype);

/* ---- time, all in seconds. Pure ---- */

/* Of one step of computation on the device. */
double dsi_time_work(const dsi_device *device, const dsi_work *work);

/* The ranks of one collective: n_ranks, of which n_local stand on this rank's node. */
typedef struct dsi_group {
    uint32_t n_ranks, n_local;
} dsi_group;

typedef struct dsi_coll_time {
    double seconds;
    double wire_seconds; /* of which bytes on links; the rest is latency */
    double net_bytes;    /* that this rank sends to other nodes */
    double node_bytes;   /* that it sends within its node */
    const char
        *algorithm; /* "none", "direct", "ring", "tree", "multicast", "hierarchical", "halving" */
} dsi_coll_time;

/* Of a collective that carries a tensor of `bytes` in all (P, as in comm.h): the fastest algorithm.
 * Within a node: ring or, for all-reduce, tree and multicast. Over nodes: within each node, then
 * between peers of all nodes with bytes/n_local each, one after the other or, on large ones,
 * pipelined as a ring through all: the slower link counts. */
dsi_coll_time dsi_time_collective(const dsi_device *device, ds_comm_op kind, dsi_group group,
                                  double bytes);

/* Of a message from one rank to another, on this node or, `far`, on another one. */
double dsi_time_message(const dsi_device *device, bool far, double bytes);

/* Of bytes between device and host, and host and disk, one rank among local_ranks that do alike. */
double dsi_time_host(const dsi_device *device, double bytes, uint32_t local_ranks);
double dsi_time_disk(const dsi_device *device, bool write, double bytes, uint32_t local_ranks);

#endif
