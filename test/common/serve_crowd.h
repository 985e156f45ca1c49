/* SPDX-License-Identifier: Apache-2.0 */
/* A crowd of requests of all kinds, and a server that is asked them in some way. */
#ifndef DS_TEST_SERVE_CROWD_H
#define DS_TEST_SERVE_CROWD_H

#include <deepspeed/serve.h>

enum { CROWD_REQUESTS = 24, CROWD_IDS = 150, CROWD_NEW = 40, CROWD_EVENTS = 256 };

typedef struct asked {
    uint32_t ids[CROWD_IDS];
    size_t n;
    ds_serve_request request;
    ds_serve_bias bias;
    ds_dry dry;
} asked;

typedef struct answer {
    uint32_t ids[CROWD_NEW];
    float logprobs[CROWD_NEW], top[CROWD_NEW];
    float prompt[CROWD_IDS], prompt_top[CROWD_IDS]; /* of those that ask for it */
    int32_t ranks[CROWD_IDS];
    int64_t n;
    ds_serve_finish finish;
} answer;

typedef struct way {
    const char *name;
    ds_serve_params sizes;
    uint32_t threads;
    bool backwards, cancels;
} way;

/* A number below n, of a linear congruential generator. */
uint32_t crowd_below(uint64_t *seed, uint32_t n);
/* Fills a[CROWD_REQUESTS]; some share a begin. */
void crowd_ask(asked *a, int64_t vocab, uint64_t seed);
/* All requests, some steps apart; those beside them that are cancelled leave no trace. */
void crowd_serve(ds_ctx *ctx, ds_server *server, const way *w, const asked *a, answer *got);

#endif
