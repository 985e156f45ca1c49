/* SPDX-License-Identifier: Apache-2.0 */
/* Maps of files: their bytes, and of an empty file a place that may be added to. */
#include "common/check.h"
#include "common/scratch.h"

#include "io/file.h"
#include <string.h>

static void the_bytes_of_a_file(void **state)
{
    char *dir = scratch_make();
    const char *path = scratch_path(dir, "file");
    dsi_map map;
    scratch_write(path, "abc", 3);
    CHECK_OK(*state, dsi_map_open(*state, path, 0, &map));
    assert_int_equal(map.size, 3);
    assert_memory_equal(map.data, "abc", 3);
    dsi_map_close(&map);
    dsi_map_close(&map); /* closed: nothing */
    assert_int_equal(dsi_map_open(*state, dir, 0, &map), DS_ERR_IO);
    scratch_remove(dir);
}

/* Readers walk from data to data + size; of NULL that is undefined. */
static void an_empty_file_has_a_place(void **state)
{
    char *dir = scratch_make();
    const char *path = scratch_path(dir, "empty");
    dsi_map map;
    scratch_write(path, "", 0);
    CHECK_OK(*state, dsi_map_open(*state, path, 0, &map));
    assert_int_equal(map.size, 0);
    assert_non_null(map.data);
    dsi_map_close(&map);
    scratch_remove(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_bytes_of_a_file),
        cmocka_unit_test(an_empty_file_has_a_place),
    };
    return cmocka_run_group_tests(tests, check_set_up, check_tear_down);
}
