/* SPDX-License-Identifier: Apache-2.0 */
/* One machine has one id, and what cannot be read is like nothing else. */
#include "base/machine_id.h"

#include "common/check.h"

#include <stdio.h>
#include <unistd.h>

static void write_line(const char *path, const char *line)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(line, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static void same_text_is_same_machine(void **state)
{
    (void)state;
    const char *path = "ds_test_machine_id";
    write_line(path, "0a1b\n");
    const uint64_t first = dsi_machine_id_of(path);
    assert_true(first == dsi_machine_id_of(path));
    write_line(path, "0a1b");
    assert_true(first == dsi_machine_id_of(path));
    write_line(path, "0a1c\n");
    assert_false(first == dsi_machine_id_of(path));
    write_line(path, "\n");
    assert_false(dsi_machine_id_of(path) == dsi_machine_id_of(path));
    assert_int_equal(unlink(path), 0);
    assert_false(dsi_machine_id_of(path) == dsi_machine_id_of(path));
}

static void own_stays(void **state)
{
    (void)state;
    assert_true(dsi_machine_id() == dsi_machine_id());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_text_is_same_machine),
        cmocka_unit_test(own_stays),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
