/* SPDX-License-Identifier: Apache-2.0 */
/* The memory that a process may use, from files as Linux writes them. */
#include "base/machine_memory.h"
#include "common/check.h"
#include "common/scratch.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static char *folder;

static void put(const char *name, const char *text)
{
    scratch_write(scratch_path(folder, name), text, strlen(text));
}

static size_t found(void)
{
    char *meminfo = strdup(scratch_path(folder, "meminfo"));
    char *groups = strdup(scratch_path(folder, "cgroup"));
    const size_t bytes = dsi_machine_memory_of(meminfo, groups, folder);
    free(meminfo);
    free(groups);
    return bytes;
}

static void make(const char *name)
{
    assert_int_equal(mkdir(scratch_path(folder, name), 0755), 0);
}

static void the_lowest_limit_counts(void **state)
{
    (void)state;
    assert_int_equal(found(), 0); /* nothing to read */
    put("meminfo", "MemFree: 5 kB\nMemTotal:       1000 kB\nMemAvailable: 7 kB\n");
    assert_int_equal(found(), 1024000);
    put("cgroup", "0::/a/b\n");
    assert_int_equal(found(), 1024000); /* no such group here: another namespace */
    make("a");
    make("a/b");
    put("a/b/memory.max", "max\n");
    assert_int_equal(found(), 1024000);
    put("a/memory.max", "512000\n"); /* of the group that holds it */
    assert_int_equal(found(), 512000);
    put("a/b/memory.max", "4096\n");
    assert_int_equal(found(), 4096);
    put("cgroup", "0::/\n");
    assert_int_equal(found(), 1024000);
    put("memory.max", "8192\n"); /* a container sees its own group as the root */
    assert_int_equal(found(), 8192);
}

static void the_older_groups(void **state)
{
    (void)state;
    put("meminfo", "MemTotal:       1000 kB\n");
    put("cgroup", "12:cpu,cpuacct:/x\n5:memory:/x\nnonsense\n7:\n");
    put("memory.max", "8192\n"); /* not of these */
    make("memory");
    make("memory/x");
    put("memory/x/memory.limit_in_bytes", "16384\n");
    assert_int_equal(found(), 16384);
    put("memory/x/memory.limit_in_bytes", "9223372036854771712\n"); /* none */
    assert_int_equal(found(), 1024000);
}

static void this_machine(void **state)
{
    (void)state;
    assert_true(dsi_machine_memory() > 1 << 20);
}

static int set_up(void **state)
{
    (void)state;
    folder = scratch_make();
    return folder == NULL;
}

static int tear_down(void **state)
{
    (void)state;
    scratch_remove(folder);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(the_lowest_limit_counts, set_up, tear_down),
        cmocka_unit_test_setup_teardown(the_older_groups, set_up, tear_down),
        cmocka_unit_test(this_machine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
