/* SPDX-License-Identifier: Apache-2.0 */
/* monitor/: CSV text, and an event file whose every byte is known from TensorBoard's own writer:
 * the bytes below were read back by tensorboard's EventAccumulator. */
#include "common/check.h"
#include "monitor/tfevents.h"

#include <deepspeed/monitor.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void event_bytes(void **state)
{
    (void)state;
    char *data = NULL;
    size_t size = 0;
    FILE *stream = open_memstream(&data, &size);
    assert_int_equal(dsi_tfevents_begin(NULL, stream, 1.0), DS_OK);
    (void)fclose(stream);
    /* length 24, its masked CRC, wall_time 1.0, file_version, masked CRC of the data */
    static const unsigned char head[] = {24, 0, 0, 0, 0, 0, 0, 0,    0xa3, 0x7f, 0x4b, 0x22,
                                         9,  0, 0, 0, 0, 0, 0, 0xf0, 0x3f, 0x1a, 13,   'b'};
    assert_int_equal(size, 40);
    assert_memory_equal(data, head, sizeof head);
    free(data);
}

static void read_all(const char *path, char *text, size_t n)
{
    FILE *stream = fopen(path, "rb");
    assert_non_null(stream);
    const size_t got = fread(text, 1, n - 1, stream);
    text[got] = '\0';
    (void)fclose(stream);
}

static void csv_text(void **state)
{
    (void)state;
    char folder[] = "/tmp/ds_monitor_XXXXXX";
    char path[256];
    char text[256];
    ds_ctx *ctx = NULL;
    ds_monitor *monitor = NULL;
    assert_int_equal(ds_ctx_create(NULL, &ctx), DS_OK);
    assert_non_null(mkdtemp(folder));
    const ds_config_monitor csv = {.enabled = true, .output_path = folder, .job_name = "job"};
    for (int run = 0; run < 2; ++run) { /* a second run appends without a second header */
        CHECK_OK(ctx, ds_monitor_open(ctx, NULL, &csv, &monitor));
        CHECK_OK(ctx, ds_monitor_write(monitor, "Train/Samples/lr", 0.25, 8));
        CHECK_OK(ctx, ds_monitor_close(&monitor));
    }
    (void)snprintf(path, sizeof path, "%s/job/Train_Samples_lr.csv", folder);
    read_all(path, text, sizeof text);
    assert_string_equal(text, "step,lr\n8,0.25\n8,0.25\n");
    (void)unlink(path);
    (void)snprintf(path, sizeof path, "%s/job", folder);
    (void)rmdir(path);
    (void)rmdir(folder);
    ds_ctx_destroy(&ctx);
}

/* Of two tags one lies on a full disk: it is named, once, and the other goes on. */
static void full_disk(void **state)
{
    (void)state;
    char folder[] = "/tmp/ds_monitor_XXXXXX";
    char path[256];
    char text[256];
    ds_ctx *ctx = NULL;
    ds_monitor *monitor = NULL;
    assert_int_equal(ds_ctx_create(NULL, &ctx), DS_OK);
    assert_non_null(mkdtemp(folder));
    (void)snprintf(path, sizeof path, "%s/full.csv", folder);
    assert_int_equal(symlink("/dev/full", path), 0);
    const ds_config_monitor csv = {.enabled = true, .output_path = folder, .job_name = "."};
    CHECK_OK(ctx, ds_monitor_open(ctx, NULL, &csv, &monitor));
    CHECK_OK(ctx, ds_monitor_write(monitor, "full", 1.0, 1));
    CHECK_OK(ctx, ds_monitor_write(monitor, "free", 1.0, 1));
    CHECK_FAILS(ctx, ds_monitor_flush(monitor), DS_ERR_IO,
                "full.csv: No space left on device; free some space, or set csv_monitor.enabled to "
                "false");
    CHECK_OK(ctx, ds_monitor_write(monitor, "full", 2.0, 2));
    CHECK_OK(ctx, ds_monitor_write(monitor, "free", 2.0, 2));
    CHECK_OK(ctx, ds_monitor_close(&monitor));
    (void)unlink(path);
    (void)snprintf(path, sizeof path, "%s/free.csv", folder);
    read_all(path, text, sizeof text);
    assert_string_equal(text, "step,free\n1,1\n2,2\n");
    (void)unlink(path);
    (void)rmdir(folder);
    ds_ctx_destroy(&ctx);
}

/* Comet's archive of a run that failed with a path that is no UTF-8. */
static void failure_without_utf8(void **state)
{
    (void)state;
    char folder[] = "/tmp/ds_monitor_XXXXXX";
    char path[512];
    ds_ctx *ctx = NULL;
    ds_monitor *monitor = NULL;
    assert_int_equal(ds_ctx_create(NULL, &ctx), DS_OK);
    assert_non_null(mkdtemp(folder));
    assert_int_equal(setenv("COMET_OFFLINE_DIRECTORY", folder, 1), 0);
    const ds_config_comet comet = {.enabled = true,
                                   .samples_log_interval = 1,
                                   .mode = DS_COMET_CREATE,
                                   .experiment_key = "0123456789abcdef0123456789abcdef"};
    const ds_monitor_params params = {.comet = &comet};
    CHECK_OK(ctx, ds_monitor_create(ctx, &params, &monitor));
    CHECK_OK(ctx, ds_monitor_end(monitor, 1, "cannot open caf\xe9: no such file"));
    CHECK_OK(ctx, ds_monitor_close(&monitor));
    (void)snprintf(path, sizeof path, "%s/%s.zip", folder, comet.experiment_key);
    assert_int_equal(unlink(path), 0);
    (void)rmdir(folder);
    ds_ctx_destroy(&ctx);
}

static void unwritable_folder(void **state)
{
    (void)state;
    ds_ctx *ctx = NULL;
    ds_monitor *monitor = NULL;
    assert_int_equal(ds_ctx_create(NULL, &ctx), DS_OK);
    const ds_config_monitor csv = {
        .enabled = true, .output_path = "/dev/null/x", .job_name = "job"};
    CHECK_FAILS(ctx, ds_monitor_open(ctx, NULL, &csv, &monitor), DS_ERR_IO, "/dev/null");
    ds_ctx_destroy(&ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(event_bytes),       cmocka_unit_test(csv_text),
        cmocka_unit_test(full_disk),         cmocka_unit_test(failure_without_utf8),
        cmocka_unit_test(unwritable_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
