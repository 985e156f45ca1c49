/* SPDX-License-Identifier: Apache-2.0 */
/* In the place of a rank that ended and never came, over the rendezvous: whoever waits for it is
 * told, one that has joined is not blamed; without anybody in its place the error names the
 * missing. Over shared memory: test/launch/test_launch_absent.sh. */
#include "comm/comm.h"
#include "comm/rendezvous.h"
#include "common/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static const char gone[] = "rank %u on elsewhere exited with code 0 before it joined";

/* A process in rank r's place, whose exit code is 10 when somebody was told. */
static pid_t stand_in(uint32_t r, uint16_t port)
{
    const pid_t pid = fork();
    if (pid != 0) {
        return pid;
    }
    char number[16];
    char text[128];
    ds_ctx *ctx = NULL;
    dsi_comm_world world;
    (void)snprintf(number, sizeof number, "%u", port);
    (void)setenv("MASTER_ADDR", "127.0.0.1", 1);
    (void)setenv("MASTER_PORT", number, 1);
    (void)setenv("WORLD_SIZE", "3", 1);
    (void)setenv("LOCAL_WORLD_SIZE", "1", 1);
    (void)setenv("LOCAL_RANK", "0", 1);
    (void)setenv("CROSS_SIZE", "3", 1);
    (void)snprintf(number, sizeof number, "%u", r);
    (void)setenv("RANK", number, 1);
    (void)setenv("CROSS_RANK", number, 1);
    (void)snprintf(text, sizeof text, gone, r);
    const bool told = ds_ctx_create(NULL, &ctx) == DS_OK &&
                      dsi_comm_world_read(ctx, &world) == DS_OK &&
                      dsi_comm_stand_in(ctx, &world, text) == DS_OK;
    _exit(told ? 10 : 0);
}

static int code_of(pid_t pid)
{
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

typedef struct place {
    ds_ctx *ctx;
    dsi_rdv_options options;
    dsi_rdv_server *server;
} place;

static void make_place(place *p)
{
    memset(p, 0, sizeof *p);
    p->options = (dsi_rdv_options){.host = "127.0.0.1", .size = 3, .timeout = 5.0};
    assert_int_equal(ds_ctx_create(NULL, &p->ctx), DS_OK);
    assert_int_equal(dsi_rdv_free_port(p->ctx, &p->options.port), DS_OK);
}

static void serve(place *p)
{
    assert_int_equal(dsi_rdv_serve(p->ctx, &p->options, &p->server), DS_OK);
}

static dsi_rdv *join(place *p, uint32_t rank)
{
    dsi_rdv *rdv = NULL;
    p->options.rank = rank;
    assert_int_equal(dsi_rdv_join(p->ctx, &p->options, &rdv), DS_OK);
    return rdv;
}

static void drop_place(place *p)
{
    dsi_rdv_server_stop(&p->server, 0.1);
    ds_ctx_destroy(&p->ctx);
}

static void expect_failure(place *p, dsi_rdv *rdv, uint32_t from, const char *text)
{
    char key[32];
    void *value = NULL;
    size_t n = 0;
    (void)snprintf(key, sizeof key, "ucx/%u", from);
    CHECK_FAILS(p->ctx, dsi_rdv_get_from(rdv, from, key, 30.0, &value, &n), DS_ERR_PEER, text);
}

static void another_rank(void **state)
{
    place p;
    char text[128];
    (void)state;
    make_place(&p);
    const pid_t pid = stand_in(2, p.options.port); /* comes first, and waits for the server */
    serve(&p);
    dsi_rdv *rdv = join(&p, 0);
    (void)snprintf(text, sizeof text, gone, 2u);
    expect_failure(&p, rdv, 1, text);
    assert_string_equal(ds_ctx_error(p.ctx), text); /* no other rank is named with it */
    assert_int_equal(code_of(pid), 10);
    dsi_rdv_leave(&rdv);
    drop_place(&p);
}

static void rank_zero(void **state)
{
    place p;
    char text[128];
    (void)state;
    make_place(&p);
    const pid_t pid = stand_in(0, p.options.port);
    dsi_rdv *rdv = join(&p, 1);
    (void)snprintf(text, sizeof text, gone, 0u);
    expect_failure(&p, rdv, 0, text);
    dsi_rdv_leave(&rdv);
    assert_int_equal(code_of(pid), 10);
    drop_place(&p);
}

static void one_that_has_joined(void **state)
{
    place p;
    char what[DSI_RDV_TEXT_BYTES];
    uint32_t rank = 0;
    (void)state;
    make_place(&p);
    serve(&p);
    dsi_rdv *rdv = join(&p, 0);
    dsi_rdv *other = join(&p, 1);
    dsi_rdv_leave(&other);
    assert_int_equal(code_of(stand_in(1, p.options.port)), 0);
    assert_false(dsi_rdv_failed(rdv, what, &rank));
    dsi_rdv_leave(&rdv);
    drop_place(&p);
}

static void the_missing_are_named(void **state)
{
    place p;
    void *value = NULL;
    size_t n = 0;
    (void)state;
    make_place(&p);
    serve(&p);
    dsi_rdv *rdv = join(&p, 1);
    CHECK_FAILS(p.ctx, dsi_rdv_get_from(rdv, 0, "ucx/0", 0.3, &value, &n), DS_ERR_PEER,
                "rank 0 (never came), rank 2 (never came): did not join within 0.3 s");
    dsi_rdv_leave(&rdv);
    drop_place(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(another_rank),
        cmocka_unit_test(rank_zero),
        cmocka_unit_test(one_that_has_joined),
        cmocka_unit_test(the_missing_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
