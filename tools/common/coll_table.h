/* SPDX-License-Identifier: Apache-2.0 */
/* The output of ds_bench: DeepSpeed's tables, or JSON. Only rank 0 calls it. */
#ifndef DSI_TOOLS_COLL_TABLE_H
#define DSI_TOOLS_COLL_TABLE_H

#include "base/buf.h"
#include "common/coll_bench.h"

typedef struct coll_table_params {
    ds_dtype dtype;
    uint32_t n_ranks;
    bool raw;                /* bytes and microseconds without units */
    bool bytes;              /* GBps instead of Gbps */
    bool mpi, bound;         /* columns */
    const char *transport;   /* "shm" */
    const char *mpi_library; /* "Open MPI v4.1.4"; of JSON */
    uint32_t trials, warmups;
    bool private_operands;
} coll_table_params;

/* The heading of one operation's table, and a line of it. */
void coll_table_heading(dsi_buf *text, const coll_table_params *p, coll_bench_op op);
void coll_table_row(dsi_buf *text, const coll_table_params *p, const coll_bench_row *row);

/* One object: what was asked for, then "results". */
void coll_table_json(dsi_buf *text, const coll_table_params *p, const coll_bench_row *rows,
                     size_t n_rows);

#endif
