/* SPDX-License-Identifier: Apache-2.0 */
/* Conformance of a communicator, whatever the transport: each rank calls the same functions on its
 * own communicator; every rank knows the inputs of all and computes what it must get, with a plain
 * recursive sum that shares no code with the library's.
 *
 * Failures are counted and printed, not asserted: ranks are threads or processes.
 */
#ifndef TEST_COMMON_COMM_CONFORM_H
#define TEST_COMMON_COMM_CONFORM_H

#include "comm/comm.h"

typedef struct conform {
    dsi_comm *comm;
    uint64_t seed; /* the same on all ranks */
    char *shared;  /* symmetric memory, NULL: no symmetric calls */
    size_t shared_bytes, shared_used;
    uint32_t n_failed;
    bool planted; /* self-test: expect a left fold instead of the tree */
} conform;

enum { CONFORM_MAX_PARTS = 12 };

typedef struct conform_case {
    ds_comm_op kind;
    ds_dtype dtype;
    dsi_reduction reduction;
    float factor;
    uint32_t peer;
    size_t counts[CONFORM_MAX_PARTS];
    uint32_t n_parts;
    bool symmetric, in_place;
    /* of a started case */
    dsi_comm_part parts[CONFORM_MAX_PARTS];
    size_t *pair_counts[CONFORM_MAX_PARTS]; /* counts_in, then counts_out */
    void *owned[2 * CONFORM_MAX_PARTS];     /* buffers that are not symmetric memory */
    uint32_t n_owned;
    uint64_t salt;
    dsi_comm_ticket ticket;
    char what[48];
} conform_case;

/* Allocates, fills, starts; waits, compares, frees. */
void conform_begin(conform *t, conform_case *c, uint64_t salt);
void conform_end(conform *t, conform_case *c);
void conform_one(conform *t, conform_case c, uint64_t salt);

void conform_collectives(conform *t);            /* kinds × dtypes × sizes × forms */
void conform_large(conform *t, size_t count);    /* some of them with one large tensor */
void conform_async(conform *t, uint32_t rounds); /* many at once, waited for in any order */
void conform_pairs(conform *t);                  /* send and receive */
void conform_splits(conform *t);                 /* groups, and collectives inside of them */

/* All of them. Gets its symmetric memory itself. Returns the number of failures. */
uint32_t conform_all(dsi_comm *comm, uint64_t seed, bool planted);

/* A random schedule: groups of calls of random kinds and sizes, waited for in random orders. */
void conform_random(conform *t, uint32_t n_groups);

#endif
