/* SPDX-License-Identifier: Apache-2.0 */
/* Device profiles: the shipped table, files and their errors, times of work. */
#include "common/check.h"
#include "cost/device.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static ds_ctx *ctx;

static int setup(void **state)
{
    (void)state;
    ds_ctx_params params = ds_ctx_params_default();
    params.level = DS_LOG_ERROR;
    return ds_ctx_create(&params, &ctx);
}

static int teardown(void **state)
{
    (void)state;
    ds_ctx_destroy(&ctx);
    return 0;
}

static ds_status parse(const char *text, dsi_device *device)
{
    return dsi_device_parse(ctx, "here.json", text, strlen(text), device);
}

/* Every shipped profile is complete, and survives being written and read. */
static void shipped(void **state)
{
    (void)state;
    assert_non_null(dsi_device_at(0));
    for (uint32_t i = 0; dsi_device_at(i) != NULL; ++i) {
        const dsi_device *d = dsi_device_at(i);
        dsi_device back;
        dsi_buf text = dsi_buf_make(1 << 20);
        dsi_buf again = dsi_buf_make(1 << 20);
        assert_true(d->name[0] != '\0' && d->source[0] != '\0');
        /* a processor without products of bf16 widens it as it packs */
        const bool widens = strcmp(d->name, "epyc-avx2-2") == 0;
        assert_true(d->peak[DSI_PEAK_BF16] >= (widens ? 0.8 : 1.0) * d->peak[DSI_PEAK_F32]);
        assert_true(d->memory_bytes > 1e9 && d->memory_bandwidth > 1e9);
        for (int p = 0; p < DSI_PEAK_COUNT; ++p) {
            for (int c = DSI_CLASS_FIRST; c < DS_CLASS_COUNT; ++c) {
                assert_true(d->rates[p][c].compute > 0.0 && d->rates[p][c].memory > 0.0);
            }
        }
        dsi_device_print(d, &text);
        CHECK_OK(ctx, dsi_device_parse(ctx, d->name, dsi_buf_text(&text), text.size, &back));
        dsi_device_print(&back, &again);
        assert_string_equal(dsi_buf_text(&text), dsi_buf_text(&again));
        assert_true(back.rates[1][DS_CLASS_LINEAR].half_k == d->rates[1][DS_CLASS_LINEAR].half_k);
        assert_true(back.net.bandwidth == d->net.bandwidth);
        dsi_buf_free(&text);
        dsi_buf_free(&again);
    }
    for (uint32_t i = 0; dsi_link_at(i) != NULL; ++i) {
        const dsi_link *l = dsi_link_at(i);
        assert_true(l->bandwidth > 0.0 && l->latency > 0.0 && l->all_gather > 0.0 &&
                    l->reduce_scatter > 0.0 && l->all_reduce > 0.0);
    }
}

/* By what drivers report: the whole of it, and every profile of a device that has such a name. */
static void driver_names(void **state)
{
    static const char *const others[] = {"",
                                         "NVIDIA H200 NVL",
                                         "NVIDIA H100 NVL",
                                         "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
                                         "NVIDIA GeForce RTX 4090 D",
                                         "NVIDIA A100-PCIE-40GB",
                                         "nvidia h200",
                                         "h200"};
    uint32_t n = 0;
    (void)state;
    for (uint32_t i = 0; dsi_device_at(i) != NULL; ++i) {
        const char *name = dsi_device_name_of(dsi_device_at(i)->name);
        assert_true((name != NULL) == !dsi_device_at(i)->shared);
        n += name != NULL && dsi_device_of_name(name) == dsi_device_at(i) ? 1 : 0;
    }
    assert_int_equal(n, 7);
    assert_string_equal(dsi_device_of_name("NVIDIA H100 80GB HBM3")->name, "h100-sxm");
    for (size_t i = 0; i < sizeof others / sizeof others[0]; ++i) {
        assert_null(dsi_device_of_name(others[i]));
    }
    assert_null(dsi_device_name_of("h100"));
}

static void names(void **state)
{
    (void)state;
    dsi_device d;
    CHECK_OK(ctx, dsi_device_find(ctx, "xeon-amx-2", &d));
    CHECK_OK(ctx, dsi_device_find(ctx, "epyc-avx2-2", &d));
    CHECK_OK(ctx, dsi_device_find(ctx, "epyc-zen5-2", &d));
    assert_true(d.peak[DSI_PEAK_BF16] > 1.5 * d.peak[DSI_PEAK_F32]); /* products of pairs */
    CHECK_OK(ctx, dsi_device_find(ctx, "h100-sxm", &d));
    assert_true(d.peak[DSI_PEAK_BF16] == 989.4e12);
    CHECK_FAILS(ctx, dsi_device_find(ctx, "h100-sxn", &d), DS_ERR_NOT_FOUND,
                "did you mean \"h100-sxm\"");
    CHECK_FAILS(ctx, dsi_device_load(ctx, "tpu", &d), DS_ERR_NOT_FOUND, "there are: a100-40g");
}

static void bases(void **state)
{
    (void)state;
    dsi_device d;
    CHECK_OK(ctx, parse("{\"base\": \"a100-80g\", \"name\": \"ours\", \"network\": \"ib-ndr400\","
                        " \"memory\": {\"bytes\": 7e10},"
                        " \"rates\": {\"bf16\": {\"linear\": {\"compute\": 0.5}}}}",
                        &d));
    assert_string_equal(d.name, "ours");
    assert_true(d.memory_bytes == 7e10 && d.memory_bandwidth == 2039e9);
    assert_true(d.net.bandwidth == 50e9);
    assert_true(d.rates[DSI_PEAK_BF16][DS_CLASS_LINEAR].compute == 0.5);
    assert_true(d.rates[DSI_PEAK_F16][DS_CLASS_LINEAR].compute == 0.87);
    CHECK_OK(ctx, parse("{\"name\": \"bare\", \"peak\": {\"f32\": 1e12, \"bf16\": 2e12, \"f16\": "
                        "2e12}, \"memory\": {\"bytes\": 1e9, \"bandwidth\": 1e11}}",
                        &d));
    assert_true(d.node.bandwidth == 0.0 && d.ranks_per_node == 1);
}

static void errors(void **state)
{
    (void)state;
    static const struct {
        const char *text, *message;
    } rows[] = {
        {"[]", "expected an object"},
        {"{", "here.json:1:"},
        {"{\"base\": \"a100-80g\", \"base\": \"h200\"}", "duplicate"},
        {"{\"base\": \"a100-80g\", \"latencie\": 1}", "did you mean \"latency\""},
        {"{\"base\": \"a100-80g\", \"memory\": {\"byte\": 1}}",
         "unknown key \"memory.byte\", did you mean \"bytes\""},
        {"{\"base\": \"a100-80g\", \"memory\": {\"bytes\": -1}}", "expected a number from"},
        {"{\"base\": \"a100-80g\", \"memory\": {\"bytes\": \"80\"}}", "\"memory.bytes\": expected"},
        {"{\"base\": \"a100-80g\", \"memory\": 1}", "\"memory\": expected an object"},
        {"{\"base\": \"a100-80g\", \"ranks_per_node\": 1.5}", "expected a whole number"},
        {"{\"base\": \"a100-80g\", \"shared\": 1}", "expected true or false"},
        {"{\"base\": \"a100-80g\", \"name\": \"\"}", "expected a text of 1 to 47 bytes"},
        {"{\"base\": \"a100-80g\", \"node\": \"nvlink9\"}",
         "there is no link \"nvlink9\", did you"},
        {"{\"base\": \"a100-80g\", \"node\": {\"name\": \"x\"}}", "\"node.latency\": expected a"},
        {"{\"base\": \"a100-80g\", \"rates\": {\"f8\": {}}}", "unknown key \"rates.f8\""},
        {"{\"base\": \"a100-80g\", \"rates\": {\"bf16\": {\"linea\": {}}}}",
         "unknown key \"rates.bf16.linea\", did you mean \"linear\""},
        {"{\"base\": \"a100-80g\", \"rates\": {\"bf16\": {\"linear\": {\"compute\": 0}}}}",
         "\"rates.bf16.linear.compute\": expected a number"},
        {"{\"base\": 3}", "expected the name of a shipped profile"},
        {"{\"base\": \"a100\"}", "there are:"},
        {"{\"name\": \"x\"}", "\"peak.f32\": expected a value: it is missing"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
        dsi_device d;
        const ds_status status = parse(rows[i].text, &d);
        if (status >= 0 || strstr(ds_ctx_error(ctx), rows[i].message) == NULL) {
            fail_msg("%s: status %d, \"%s\", expected \"%s\"", rows[i].text, (int)status,
                     ds_ctx_error(ctx), rows[i].message);
        }
    }
}

static void files(void **state)
{
    (void)state;
    char path[] = "device_XXXXXX";
    dsi_device d;
    const int file = mkstemp(path);
    static const char text[] = "{\"base\": \"h200\", \"name\": \"from a file\"}";
    assert_true(file >= 0 && write(file, text, strlen(text)) == (ssize_t)strlen(text));
    assert_true(close(file) == 0);
    const ds_status status = dsi_device_load(ctx, path, &d);
    assert_true(unlink(path) == 0);
    CHECK_OK(ctx, status);
    assert_string_equal(d.name, "from a file");
}

static void near(double got, double want)
{
    if (!(fabs(got - want) <= 1e-9 * fabs(want))) {
        fail_msg("got %.12g, expected %.12g", got, want);
    }
}

/* By hand: shares, sizes of half, the larger of arithmetic and memory, the latency on top. */
static void work(void **state)
{
    (void)state;
    dsi_device d = {.peak = {1e12, 10e12, 10e12}, .latency = 1e-5, .memory_bandwidth = 1e11};
    d.rates[DSI_PEAK_BF16][DS_CLASS_LINEAR] =
        (dsi_rate){.compute = 0.8, .memory = 0.5, .half_m = 100, .half_k = 300};
    dsi_work w = {.op_class = DS_CLASS_LINEAR,
                  .dtype = DS_DTYPE_BF16,
                  .m = 100,
                  .n = 7,
                  .k = 900,
                  .flops = 6e9,
                  .bytes = 1e6};
    near(dsi_time_work(&d, &w), 1e-5 + 6e9 / (10e12 * 0.8 * 0.5 * 0.75));
    w.bytes = 1e9;
    near(dsi_time_work(&d, &w), 1e-5 + 1e9 / 0.5e11);
    w.op_class = DS_CLASS_VIEW;
    near(dsi_time_work(&d, &w), 0.0);
    d.rates[DSI_PEAK_F32][DS_CLASS_OPTIMIZER] = (dsi_rate){.compute = 1e-6, .memory = 1.0};
    const dsi_work adam = {
        .op_class = DS_CLASS_OPTIMIZER, .dtype = DS_DTYPE_F32, .flops = 1e9, .bytes = 1e8};
    near(dsi_time_work(&d, &adam), 1e-5 + 1e-3);
}

static void shared_nodes(void **state)
{
    (void)state;
    dsi_device d = {.peak = {2e12, 4e12, 2e12},
                    .shared = true,
                    .memory_bytes = 8e9,
                    .memory_bandwidth = 6e10,
                    .node = {.bandwidth = 2e10}};
    const dsi_device one = dsi_device_of_rank(&d, 2, 0);
    near(one.peak[DSI_PEAK_BF16], 2e12);
    near(one.memory_bytes, 4e9);
    near(one.memory_bandwidth, 3e10);
    near(one.node.bandwidth, 1e10);
    const dsi_device same = dsi_device_of_rank(&one, 2, 0); /* divided once */
    near(same.peak[DSI_PEAK_BF16], 2e12);
    d.shared = false;
    near(dsi_device_of_rank(&d, 2, 0).peak[DSI_PEAK_BF16], 4e12);
}

/* A rank of few threads has so many cores; more threads than cores share them; a rank that waits
 * leaves its share to the others. */
static void cores_are_shared(void **state)
{
    (void)state;
    dsi_device d = {.peak = {2e12, 4e12, 2e12},
                    .shared = true,
                    .cores = {.n = 2},
                    .memory_bytes = 8e9,
                    .memory_bandwidth = 6e10};
    near(dsi_device_of_rank(&d, 1, 2).peak[DSI_PEAK_BF16], 4e12);
    near(dsi_device_of_rank(&d, 1, 0).peak[DSI_PEAK_BF16], 4e12);
    near(dsi_device_of_rank(&d, 1, 1).peak[DSI_PEAK_BF16], 2e12);
    near(dsi_device_of_rank(&d, 1, 1).memory_bandwidth, 3e10);
    near(dsi_device_of_rank(&d, 1, 1).memory_bytes, 8e9);
    near(dsi_device_of_rank(&d, 1, 8).peak[DSI_PEAK_BF16], 4e12);
    const dsi_device quarter = dsi_device_of_rank(&d, 4, 1);
    near(quarter.peak[DSI_PEAK_BF16], 1e12);
    near(quarter.memory_bandwidth, 1.5e10);
    near(dsi_cores_speed(&quarter.cores, 4), 1.0);
    near(dsi_cores_speed(&quarter.cores, 3), 4.0 / 3.0);
    near(dsi_cores_speed(&quarter.cores, 2), 2.0);
    near(dsi_cores_speed(&quarter.cores, 1), 2.0);
    const dsi_device half = dsi_device_of_rank(&d, 2, 1);
    near(dsi_cores_speed(&half.cores, 1), 1.0);
    d.cores.n = 0; /* not known: a fixed share */
    const dsi_device unknown = dsi_device_of_rank(&d, 4, 1);
    near(unknown.peak[DSI_PEAK_BF16], 1e12);
    near(dsi_cores_speed(&unknown.cores, 1), 1.0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shipped),
        cmocka_unit_test(names),
        cmocka_unit_test(driver_names),
        cmocka_unit_test(bases),
        cmocka_unit_test(errors),
        cmocka_unit_test(files),
        cmocka_unit_test(work),
        cmocka_unit_test(shared_nodes),
        cmocka_unit_test(cores_are_shared),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
