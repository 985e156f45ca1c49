/* SPDX-License-Identifier: Apache-2.0 */
/* Text that a terminal may show: named characters, and random ones against a plain statement of
 * what may remain. */
#include "base/plain.h"
#include "base/rng.h"
#include "common/check.h"

#include <deepspeed/context.h>
#include <stdio.h>
#include <string.h>

static const char *plain(const char *text, size_t n)
{
    static char out[8192];
    assert_int_equal(dsi_plain(text, n, out, sizeof out), n);
    return out;
}

static void named_characters(void **state)
{
    (void)state;
    assert_string_equal(plain("a\x1b[31mb", 7), "a\\x1b[31mb");
    assert_string_equal(plain("\x00x\x7f\r\a", 5), "\\x00x\\x7f\\x0d\\x07");
    assert_string_equal(plain("one\n\ttwo", 8), "one\n\ttwo");
    assert_string_equal(plain("\xc2\x9b", 2), "\\x9b");       /* CSI as UTF-8 */
    assert_string_equal(plain("\x9b", 1), "\\x9b");           /* CSI as a byte */
    assert_string_equal(plain("\xe2\x80\xae", 3), "\\u202e"); /* right-to-left override */
    assert_string_equal(plain("\xe2\x81\xa6", 3), "\\u2066"); /* isolate */
    assert_string_equal(plain("\xc3\xa9\xe6\xbc\xa2", 5), "\xc3\xa9\xe6\xbc\xa2");
    assert_string_equal(plain("\xf0\x9f\x98\x80", 4), "\xf0\x9f\x98\x80");
    assert_string_equal(plain("\xc0\x9b", 2), "\\xc0\\x9b");          /* too long for its value */
    assert_string_equal(plain("\xed\xa0\x80", 3), "\\xed\\xa0\\x80"); /* a surrogate */
    assert_string_equal(plain("\xe2\x80", 2), "\\xe2\\x80");          /* short */
}

static void names_have_no_lines(void **state)
{
    char out[64];
    (void)state;
    assert_string_equal(dsi_plain_name("w\nds_train: done\t", out, sizeof out),
                        "w\\x0ads_train: done\\x09");
}

/* Of random bytes, rich in what is special, nothing remains that a terminal would obey; a second
 * pass changes nothing; an escape is whole wherever the room ends. */
static void random_text(void **state)
{
    static const char *const bits[] = {"\x1b]0;", "\x1b[2J",      "\x9b",         "\xc2\x85",
                                       "\n",      "\xe2\x80\xaa", "\xe2\x81\xa9", "\xd8\x9c",
                                       "a",       "\xc3\xa9",     "\xe2",         "\\x1b"};
    (void)state;
    for (uint64_t round = 0; round < 3000; ++round) {
        char text[256];
        char once[2048];
        char twice[2048];
        size_t n = 0;
        while (n < 200) {
            const dsi_philox r = dsi_philox4x32(77, (uint32_t[4]){(uint32_t)round, (uint32_t)n});
            const char *bit = bits[r.v[0] % (sizeof bits / sizeof *bits)];
            const size_t width = r.v[1] % 3 == 0 ? 1 : strlen(bit);
            memcpy(text + n, r.v[1] % 3 == 0 ? (const char *)&r.v[2] : bit, width);
            n += width;
        }
        const size_t room = 8 + dsi_philox4x32(78, (uint32_t[4]){(uint32_t)round}).v[0] % 2000;
        const size_t used = dsi_plain(text, n, once, room);
        assert_true(strlen(once) < room && used <= n);
        for (const unsigned char *c = (const unsigned char *)once; *c != '\0'; ++c) {
            assert_true(*c == '\n' || *c == '\t' || (*c >= 0x20 && *c != 0x7F));
            assert_false(c[0] == 0xC2 && c[1] >= 0x80 && c[1] < 0xA0);
            assert_false(c[0] == 0xE2 && c[1] == 0x80 && c[2] >= 0xA8 && c[2] <= 0xAE);
            assert_false(c[0] == 0xE2 && c[1] == 0x81 && c[2] >= 0xA6 && c[2] <= 0xA9);
        }
        assert_int_equal(dsi_plain(once, strlen(once), twice, sizeof twice), strlen(once));
        assert_string_equal(once, twice);
    }
}

/* A list of errors ends after a whole line and says how many more there are. */
static void long_messages_say_how_much_more(void **state)
{
    char text[9000] = "";
    size_t n = 0;
    ds_ctx *ctx = NULL;
    (void)state;
    for (int i = 0; i < 300; ++i) {
        n += (size_t)snprintf(text + n, sizeof text - n, "%sfile:%d: unknown key",
                              i > 0 ? "\n" : "", i);
    }
    assert_int_equal(ds_ctx_create(NULL, &ctx), DS_OK);
    (void)ds_fail(ctx, DS_ERR_CONFIG, "%s", text);
    const char *said = ds_ctx_error(ctx);
    const char *more = strstr(said, "\n… and ");
    assert_non_null(more);
    int shown = 1;
    for (const char *c = said; c < more; ++c) {
        shown += *c == '\n' ? 1 : 0;
    }
    int left = 0;
    assert_int_equal(sscanf(more, "\n… and %d more lines", &left), 1);
    assert_int_equal(shown + left, 300);
    assert_memory_equal(more - strlen("unknown key"), "unknown key", strlen("unknown key"));
    for (size_t i = 0; i < n; ++i) {
        text[i] = i % 7 == 6 ? ' ' : 'w';
    }
    (void)ds_fail(ctx, DS_ERR_CONFIG, "%s", text);
    more = strstr(ds_ctx_error(ctx), " … and ");
    assert_non_null(more);
    assert_int_equal((more - ds_ctx_error(ctx)) % 7, 6);
    ds_ctx_destroy(&ctx);
}

static void keep_line(void *user, ds_log_level level, const char *line)
{
    (void)level;
    (void)snprintf(user, 200, "%s", line);
}

static void errors_and_logs_are_plain(void **state)
{
    char line[200] = "";
    (void)state;
    ds_ctx_params params = ds_ctx_params_default();
    params.log = keep_line;
    params.log_user = line;
    ds_ctx *ctx = NULL;
    assert_int_equal(ds_ctx_create(&params, &ctx), DS_OK);
    (void)ds_fail(ctx, DS_ERR_CONFIG, "unknown key \"%s\"", "\x1b[2Jx");
    assert_string_equal(ds_ctx_error(ctx), "unknown key \"\\x1b[2Jx\"");
    ds_log(ctx, DS_LOG_ERROR, "tensor %s",
           "\xc2\x9b"
           "7m");
    assert_string_equal(line, "tensor \\x9b7m");
    ds_ctx_destroy(&ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(named_characters),
        cmocka_unit_test(names_have_no_lines),
        cmocka_unit_test(random_text),
        cmocka_unit_test(long_messages_say_how_much_more),
        cmocka_unit_test(errors_and_logs_are_plain),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
