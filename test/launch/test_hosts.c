/* SPDX-License-Identifier: Apache-2.0 */
/* Hostfiles, the choice of hosts and slots, and lists as text. */
#include "common/check.h"
#include "launch/base64.h"
#include "launch/hosts.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static ds_status parse(ds_ctx *ctx, const char *text, dsi_hosts *hosts)
{
    *hosts = (dsi_hosts){0};
    return dsi_hosts_parse(ctx, "hosts", text, strlen(text), hosts);
}

/* "w0:0,1,2,3 w1:0,1" */
static const char *show(const dsi_hosts *hosts, dsi_buf *buf)
{
    dsi_buf_clear(buf);
    for (size_t i = 0; i < hosts->n; ++i) {
        dsi_buf_printf(buf, "%s%s", i > 0 ? " " : "", hosts->items[i].name);
        for (uint32_t k = 0; k < hosts->items[i].n_slots; ++k) {
            dsi_buf_printf(buf, "%c%" PRIu32, k > 0 ? ',' : ':', hosts->items[i].slots[k]);
        }
    }
    return dsi_buf_text(buf);
}

static void reads_hostfiles(void **state)
{
    ds_ctx *ctx = *state;
    dsi_hosts hosts;
    dsi_buf buf = dsi_buf_make(1 << 16);
    CHECK_OK(ctx, parse(ctx,
                        "# comment\n\n  w0 slots=2\nw1\tslots=1 # here\r\n"
                        "10.0.0.3 slots=3 max_slots=8\n#w4 slots=1\nfe80::1 slots=1",
                        &hosts));
    assert_string_equal(show(&hosts, &buf), "w0:0,1 w1:0 10.0.0.3:0,1,2 fe80::1:0");
    assert_int_equal(dsi_hosts_n_ranks(&hosts), 7);
    assert_string_equal(dsi_hosts_of_rank(&hosts, 1), "w0");
    assert_string_equal(dsi_hosts_of_rank(&hosts, 2), "w1");
    assert_string_equal(dsi_hosts_of_rank(&hosts, 6), "fe80::1");
    assert_null(dsi_hosts_of_rank(&hosts, 7));
    assert_int_equal(dsi_hosts_first_rank(&hosts, 2), 3);
    dsi_hosts_free(&hosts);
    dsi_buf_free(&buf);
}

/* A zero byte is no end of a name. */
static void refuses_zero_bytes(void **state)
{
    ds_ctx *ctx = *state;
    static const char text[] = "w0 slots=1\nw\0\0 slots=1\nw0\0 slots=1\n";
    dsi_hosts hosts;
    CHECK_FAILS(ctx, dsi_hosts_parse(ctx, "hosts", text, sizeof text - 1, &hosts), DS_ERR_FORMAT,
                "hosts:2: a host name holds letters, digits and ._:- only");
}

static void names_wrong_lines(void **state)
{
    ds_ctx *ctx = *state;
    static const struct {
        const char *text, *message;
    } cases[] = {
        {"", "expected lines 'name slots=N', found no host"},
        {"# only\n", "found no host"},
        {"w0 slots=2\nw1\n", "hosts:2: expected 'name slots=N' with N from 1 to 1024, found 'w1'"},
        {"w0 slots=x", "hosts:1: expected 'name slots=N' with N from 1 to 1024, found 'slots=x'"},
        {"w0 slots=0", "hosts:1: expected 'name slots=N'"},
        {"w0 slots=-1", "hosts:1: expected 'name slots=N'"},
        {"w0 slots=99999999999999999999", "hosts:1: expected 'name slots=N'"},
        {"w0 slots = 2", "found 'slots'"},
        {"w0 slot=2", "found 'slot=2'"},
        {"w0 slots=2 gpus=3", "after slots=N, found 'gpus=3'"},
        {"w0 slots=2\n\nw0 slots=1", "hosts:3: expected each host once (it stands in line 1 too)"},
        {"-oProxyCommand=x slots=1", "begins with a letter or digit, found '-oProxyCommand=x'"},
        {"-l@w0 slots=1", "a user has 1 to 64 letters, digits and ._-, and no '-' first"},
        {"@w0 slots=1", "a user has 1 to 64 letters"},
        {"a@-w0 slots=1", "begins with a letter or digit"},
        {"a@b@w0 slots=1", "letters, digits and ._:- only"},
        {"w0 slots=1\nme@w0 slots=1", "hosts:2: expected each host once"},
        {"w0;id slots=1", "letters, digits and ._:- only"},
        {"a slots=1\n- slots=1\nb\n",
         "hosts:2: a host name begins with a letter or digit, found '-'"
         "\nhosts:3: expected 'name slots=N'"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        dsi_hosts hosts;
        CHECK_FAILS(ctx, parse(ctx, cases[i].text, &hosts), DS_ERR_FORMAT, cases[i].message);
    }
}

/* Users are for ssh; hosts are known by their names. */
static void reads_users(void **state)
{
    dsi_hosts hosts;
    CHECK_OK(*state, parse(*state, "alice@w0 slots=2\nw1 slots=1\n", &hosts));
    assert_string_equal(hosts.items[0].name, "w0");
    assert_string_equal(hosts.items[0].user, "alice");
    assert_null(hosts.items[1].user);
    assert_ptr_equal(dsi_hosts_with_user(&hosts), &hosts.items[0]);
    CHECK_OK(*state, dsi_hosts_select(*state, &hosts, "w1", NULL));
    assert_null(dsi_hosts_with_user(&hosts));
    dsi_hosts_free(&hosts);
}

#define POOL "w0 slots=4\nw1 slots=4\n"

/* Bare hosts and unknown slots as DeepSpeed documents them, not as its include does. */
static void chooses(void **state)
{
    ds_ctx *ctx = *state;
    dsi_buf buf = dsi_buf_make(1 << 16);
    static const struct {
        const char *include, *exclude, *result;
    } cases[] = {
        {NULL, NULL, "w0:0,1,2,3 w1:0,1,2,3"},
        {"", "", "w0:0,1,2,3 w1:0,1,2,3"},
        {"w1:0,2", NULL, "w1:0,2"},
        {"w1:2,0,2", NULL, "w1:0,2"},
        {"w1", NULL, "w1:0,1,2,3"},
        {"w0@w1:0,2", NULL, "w0:0,1,2,3 w1:0,2"},
        {"w1@w0", NULL, "w0:0,1,2,3 w1:0,1,2,3"},
        {"w0:1@w0:0", NULL, "w0:0,1"},
        {"w0:1@w0", NULL, "w0:1"},
        {NULL, "w1", "w0:0,1,2,3"},
        {NULL, "w1:0", "w0:0,1,2,3 w1:1,2,3"},
        {NULL, "w1:0,1,2,3", "w0:0,1,2,3"},
        {NULL, "w0:1@w0", "w1:0,1,2,3"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        dsi_hosts hosts;
        CHECK_OK(ctx, parse(ctx, POOL, &hosts));
        CHECK_OK(ctx, dsi_hosts_select(ctx, &hosts, cases[i].include, cases[i].exclude));
        assert_string_equal(show(&hosts, &buf), cases[i].result);
        dsi_hosts_free(&hosts);
    }
    dsi_buf_free(&buf);
}

static void refuses_choices(void **state)
{
    ds_ctx *ctx = *state;
    static const struct {
        const char *include, *exclude, *message;
    } cases[] = {
        {"w1:9", NULL, "--include: host 'w1' has no slot 9; it has 4 slots, from 0 to 3"},
        {NULL, "w1:9", "--exclude: host 'w1' has no slot 9"},
        {"x", NULL, "--include: expected a host of the hostfile, found 'x'"},
        {"w", NULL, "found 'w'"},
        {"w0@", NULL, "NAME[:SLOT,SLOT…][@NAME…]"},
        {"w0:", NULL, "expected slots as numbers between commas after 'w0:'"},
        {"w0:1,", NULL, "expected slots as numbers"},
        {"w0:0-2", NULL, "expected slots as numbers"},
        {"w0:1:2", NULL, "expected slots as numbers"},
        {"w0:99999999999999999999", NULL, "has no slot 99999999999999999999"},
        {"w0", "w1", "exclude one another"},
        {NULL, "w0@w1", "leaves no slot"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        dsi_hosts hosts;
        CHECK_OK(ctx, parse(ctx, POOL, &hosts));
        CHECK_FAILS(ctx, dsi_hosts_select(ctx, &hosts, cases[i].include, cases[i].exclude),
                    DS_ERR_ARG, cases[i].message);
        dsi_hosts_free(&hosts);
    }
}

static void counts(void **state)
{
    ds_ctx *ctx = *state;
    dsi_hosts hosts;
    dsi_buf buf = dsi_buf_make(1 << 16);
    CHECK_OK(ctx, parse(ctx, POOL, &hosts));
    CHECK_FAILS(ctx, dsi_hosts_first(ctx, &hosts, 3), DS_ERR_ARG, "expected at most 2");
    CHECK_FAILS(ctx, dsi_hosts_set_slots(ctx, &hosts, 5, false), DS_ERR_ARG,
                "expected at most 4, the slots of host w0, found 5");
    CHECK_OK(ctx, dsi_hosts_first(ctx, &hosts, 1));
    CHECK_OK(ctx, dsi_hosts_set_slots(ctx, &hosts, 2, false));
    assert_string_equal(show(&hosts, &buf), "w0:0,1");
    CHECK_OK(ctx, dsi_hosts_set_slots(ctx, &hosts, 6, true));
    assert_string_equal(show(&hosts, &buf), "w0:0,1,2,3,4,5");
    dsi_hosts_free(&hosts);
    dsi_buf_free(&buf);
}

static void travels_as_text(void **state)
{
    ds_ctx *ctx = *state;
    dsi_hosts hosts, back;
    dsi_buf text = dsi_buf_make(1 << 16);
    dsi_buf buf = dsi_buf_make(1 << 16);
    CHECK_OK(ctx, parse(ctx, POOL, &hosts));
    CHECK_OK(ctx, dsi_hosts_select(ctx, &hosts, "w0:1,3@w1:0", NULL));
    CHECK_OK(ctx, dsi_hosts_encode(ctx, &hosts, &text));
    /* what DeepSpeed's encode_world_info gives for it */
    assert_string_equal(dsi_buf_text(&text), "eyJ3MCI6IFsxLCAzXSwgIncxIjogWzBdfQ==");
    CHECK_OK(ctx, dsi_hosts_decode(ctx, dsi_buf_text(&text), &back));
    assert_string_equal(show(&back, &buf), "w0:1,3 w1:0");
    dsi_hosts_free(&back);
    dsi_hosts_free(&hosts);
    static const char *const wrong[] = {
        "",
        "####",
        "eyJ3MCI6IFsx",
        "e30=" /* {} */,
        "W10=" /* [] */,
        "None",
        "eyJ3MCI6IFtdfQ==" /* {"w0": []} */,
        "eyItYSI6IFswXX0=" /* {"-a": [0]} */,
        "eyJ3MCI6IFsxLCAwXX0=" /* falling */,
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; ++i) {
        CHECK_FAILS(ctx, dsi_hosts_decode(ctx, wrong[i], &back), DS_ERR_FORMAT, "--world_info");
    }
    dsi_buf_free(&text);
    dsi_buf_free(&buf);
}

static void base64_turns_back(void **state)
{
    (void)state;
    unsigned char bytes[64];
    for (size_t n = 0; n <= sizeof bytes; ++n) {
        dsi_buf text = dsi_buf_make(256);
        dsi_buf back = dsi_buf_make(256);
        for (size_t i = 0; i < n; ++i) {
            bytes[i] = (unsigned char)(i * 37 + n * 11);
        }
        dsi_base64_encode(&text, bytes, n);
        assert_true(dsi_base64_decode(&back, dsi_buf_text(&text), text.size));
        assert_int_equal(back.size, n);
        assert_true(n == 0 || memcmp(back.data, bytes, n) == 0);
        dsi_buf_free(&text);
        dsi_buf_free(&back);
    }
}

static int set_up(void **state)
{
    ds_ctx_params params = ds_ctx_params_default();
    params.n_threads = 1;
    return ds_ctx_create(&params, (ds_ctx **)state) < 0;
}

static int tear_down(void **state)
{
    ds_ctx_destroy((ds_ctx **)state);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_hostfiles),    cmocka_unit_test(names_wrong_lines),
        cmocka_unit_test(reads_users),        cmocka_unit_test(chooses),
        cmocka_unit_test(refuses_choices),    cmocka_unit_test(counts),
        cmocka_unit_test(travels_as_text),    cmocka_unit_test(base64_turns_back),
        cmocka_unit_test(refuses_zero_bytes),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
