/* SPDX-License-Identifier: Apache-2.0 */
/* A wire: moves bytes between processes, matched by peer and tag. What MPI and UCX give us, and
 * nothing else; the collectives are ours (net_comm.c).
 *
 * Implemented by separately loaded modules (mpi/, ucx/), which include only this header, link only
 * their own library, and export DSI_WIRE_SYMBOL. Messages of one sender with one tag arrive in the
 * order in which they were sent. One thread at a time, not always the same.
 */
#ifndef DSI_COMM_WIRE_H
#define DSI_COMM_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { DSI_WIRE_VERSION = 2, DSI_WIRE_ERROR_BYTES = 400, DSI_WIRE_TAG_BITS = 20 };

/* Largest message; longer ones are cut by the caller. */
#define DSI_WIRE_MESSAGE_BYTES ((size_t)1 << 30)

#define DSI_WIRE_NOBODY UINT32_MAX

typedef struct dsi_wire dsi_wire;

/* Functions that can fail return a negative number, with the text in wire->error and the rank, if
 * one is to blame, in wire->error_peer. */
typedef struct dsi_wire_ops {
    uint32_t version;
    const char *name; /* "mpi", "ucx" */
    /* Starts a message; data is borrowed until `test` says it is done. A handle of 0 is done. */
    int (*send)(dsi_wire *wire, uint32_t peer, uint32_t tag, const void *data, size_t n,
                uint64_t *handle_out);
    /* Starts to receive a message of at most n bytes. */
    int (*recv)(dsi_wire *wire, uint32_t peer, uint32_t tag, void *data, size_t n,
                uint64_t *handle_out);
    /* 1: done, the handle is used up, and of a receive *n_out bytes came; 0: not yet. peer: of the
     * message; when it is gone, the message fails. */
    int (*test)(dsi_wire *wire, uint64_t handle, uint32_t peer, size_t *n_out);
    /* Moves what is under way; called between tests. */
    void (*progress)(dsi_wire *wire);
    /* Gives up a message; its memory is not touched afterwards. */
    void (*cancel)(dsi_wire *wire, uint64_t handle);
    /* failed: peers may be gone, wait for none. */
    void (*close)(dsi_wire *wire, bool failed);
} dsi_wire_ops;

struct dsi_wire {
    const dsi_wire_ops *ops;
    uint32_t rank, size;
    bool ours_alone; /* no other part of the program calls the library, or any thread may */
    uint32_t error_peer;
    char error[DSI_WIRE_ERROR_BYTES];
    char library[128]; /* "Open MPI 4.1.4" */
};

/* What a module may need to find its peers. MPI finds them itself and calls none of these. */
typedef struct dsi_wire_setup {
    uint32_t rank, size;
    double timeout; /* seconds for the whole opening; 0: for ever */
    void *user;
    /* Gives every rank n bytes of this one; gets those of a rank (freed by the module with free).
     * Negative: failed, the caller knows why. */
    int (*put)(void *user, const void *value, size_t n);
    int (*get)(void *user, uint32_t rank, void **value_out, size_t *n_out);
} dsi_wire_setup;

typedef int (*dsi_wire_open_fn)(const dsi_wire_setup *setup, dsi_wire **wire_out, char *error_out);

#define DSI_WIRE_SYMBOL "dsi_wire_open"

#endif
