/* SPDX-License-Identifier: Apache-2.0 */
/* Small helpers that tests share; cmocka does the rest. */
#ifndef DS_TEST_CHECK_H
#define DS_TEST_CHECK_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <deepspeed/context.h>

/* Fails the test with the context's message when `call` is an error. */
#define CHECK_OK(ctx, call)                                                                        \
    do {                                                                                           \
        const ds_status check_status_ = (call);                                                    \
        if (check_status_ < 0) {                                                                   \
            fail_msg("%s: %s: %s", #call, ds_status_name(check_status_), ds_ctx_error(ctx));       \
        }                                                                                          \
    } while (0)

/* Fails unless `call` returns `status` and the message contains `text`. */
#define CHECK_FAILS(ctx, call, status, text) check_fails((ctx), (call), (status), (text), #call)

void check_fails(ds_ctx *ctx, ds_status got, ds_status want, const char *text, const char *call);

/* For groups whose *state is a context of its own. */
int check_set_up(void **state);
int check_tear_down(void **state);

/* A context with so many threads. The caller destroys it. */
ds_ctx *check_ctx(uint32_t n_threads);

/* Whether the test takes row `i` of a table: all rows, but with DS_TEST_BRIEF=N in the environment
 * one in N, among them the first. Under a sanitizer `make check` takes one in 8 where a table is of
 * many alike; `make check-long` takes all. */
bool check_long_row(size_t i);

/* Largest difference over largest reference magnitude. */
double check_relative_difference(const float *got, const float *want, size_t n);

#endif
