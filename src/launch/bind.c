/* SPDX-License-Identifier: Apache-2.0 */
/* Cores by hwloc. See bind.h. */
#include "launch/bind.h"

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#ifdef DSI_HAVE_HWLOC
#include <hwloc.h>
#endif

enum { MAX_CORES = 8192 };

/* A number at *at; false when there is none or it is too large. */
static bool read_number(const char **at, uint32_t *number_out)
{
    char *end = NULL;
    if (**at < '0' || **at > '9') {
        return false;
    }
    errno = 0;
    const unsigned long number = strtoul(*at, &end, 10);
    *at = end;
    *number_out = (uint32_t)number;
    return errno == 0 && number < MAX_CORES;
}

ds_status dsi_core_list_parse(ds_ctx *ctx, const char *list, uint32_t *cores, size_t max,
                              size_t *n_out)
{
    size_t n = 0;
    const char *at = list;
    for (;;) {
        uint32_t first = 0;
        uint32_t last;
        bool right = read_number(&at, &first);
        last = first;
        if (right && *at == '-') {
            ++at;
            right = read_number(&at, &last) && last >= first;
        }
        right = right && (*at == ',' || *at == '\0') && (n == 0 || first > cores[n - 1]);
        if (!right) {
            return ds_fail(ctx, DS_ERR_ARG,
                           "--bind_core_list: expected rising numbers and ranges below %d such as "
                           "0,2-4,6, found '%s' (wrong at character %zu)",
                           MAX_CORES, list, (size_t)(at - list) + 1);
        }
        for (uint32_t core = first; core <= last; ++core) {
            if (n == max) {
                return ds_fail(ctx, DS_ERR_LIMIT, "--bind_core_list: more than %zu processors",
                               max);
            }
            cores[n++] = core;
        }
        if (*at++ == '\0') {
            break;
        }
    }
    *n_out = n;
    return DS_OK;
}

void dsi_binding_free(dsi_binding *binding)
{
    free(binding->cpus);
    free(binding->memory);
    *binding = (dsi_binding){0};
}

const cpu_set_t *dsi_binding_cpus(const dsi_binding *binding, uint32_t rank)
{
    return rank < binding->n ? (const cpu_set_t *)(binding->cpus + rank * binding->cpus_bytes)
                             : NULL;
}

int dsi_binding_memory(const dsi_binding *binding, uint32_t rank)
{
    return rank < binding->n ? binding->memory[rank] : -1;
}

#ifndef DSI_HAVE_HWLOC
ds_status dsi_bind(ds_ctx *ctx, const char *list, uint32_t n_ranks, dsi_binding *binding_out)
{
    (void)list;
    (void)n_ranks;
    (void)binding_out;
    return ds_fail(ctx, DS_ERR_UNSUPPORTED,
                   "--bind_cores_to_rank: this launcher was built without hwloc (libhwloc-dev); "
                   "start it under taskset or numactl instead");
}
#else

/* One core: its processors, as a set of hwloc. */
typedef struct cores {
    hwloc_topology_t topology;
    hwloc_bitmap_t allowed;
    hwloc_bitmap_t *sets;
    size_t n;
} cores;

static ds_status take_listed(ds_ctx *ctx, const char *list, cores *c)
{
    uint32_t *numbers = calloc(MAX_CORES, sizeof *numbers);
    if (numbers == NULL) {
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory for the cores");
    }
    size_t n = 0;
    ds_status status = dsi_core_list_parse(ctx, list, numbers, MAX_CORES, &n);
    for (size_t i = 0; status >= 0 && i < n; ++i) {
        if (!hwloc_bitmap_isset(c->allowed, numbers[i])) {
            char *have = NULL;
            (void)hwloc_bitmap_list_asprintf(&have, c->allowed);
            status = ds_fail(ctx, DS_ERR_ARG,
                             "--bind_core_list: expected processors that may be used here (%s), "
                             "found %" PRIu32,
                             have != NULL ? have : "?", numbers[i]);
            free(have);
        } else {
            hwloc_bitmap_only(c->sets[c->n++], numbers[i]);
        }
    }
    free(numbers);
    return status;
}

static void take_all(cores *c)
{
    const int n = hwloc_get_nbobjs_by_type(c->topology, HWLOC_OBJ_CORE);
    const hwloc_obj_type_t type = n > 0 ? HWLOC_OBJ_CORE : HWLOC_OBJ_PU;
    hwloc_obj_t object = NULL;
    while ((object = hwloc_get_next_obj_by_type(c->topology, type, object)) != NULL &&
           c->n < MAX_CORES) {
        hwloc_bitmap_and(c->sets[c->n], object->cpuset, c->allowed);
        c->n += hwloc_bitmap_iszero(c->sets[c->n]) ? 0 : 1;
    }
}

/* The one NUMA node, of several, that holds all the processors of a set; -1: none. */
static int memory_of(const cores *c, hwloc_const_cpuset_t set)
{
    if (hwloc_get_nbobjs_by_type(c->topology, HWLOC_OBJ_NUMANODE) < 2) {
        return -1;
    }
    hwloc_obj_t node = NULL;
    while ((node = hwloc_get_next_obj_by_type(c->topology, HWLOC_OBJ_NUMANODE, node)) != NULL) {
        if (hwloc_bitmap_isincluded(set, node->cpuset) && node->attr->numanode.local_memory > 0) {
            return (int)node->os_index;
        }
    }
    return -1;
}

static void write_set(hwloc_const_cpuset_t set, unsigned char *cpus, size_t bytes)
{
    int cpu;
    hwloc_bitmap_foreach_begin(cpu, set)
    {
        CPU_SET_S((size_t)cpu, bytes, (cpu_set_t *)cpus);
    }
    hwloc_bitmap_foreach_end();
}

static ds_status deal(ds_ctx *ctx, const cores *c, uint32_t n_ranks, dsi_binding *binding)
{
    binding->cores_each = (uint32_t)(c->n / n_ranks);
    binding->cpus_bytes = CPU_ALLOC_SIZE(MAX_CORES);
    binding->cpus = calloc(n_ranks, binding->cpus_bytes);
    binding->memory = calloc(n_ranks, sizeof *binding->memory);
    hwloc_bitmap_t set = hwloc_bitmap_alloc();
    if (binding->cpus == NULL || binding->memory == NULL || set == NULL) {
        hwloc_bitmap_free(set);
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory for the cores");
    }
    for (uint32_t rank = 0; rank < n_ranks; ++rank) {
        hwloc_bitmap_zero(set);
        for (uint32_t k = 0; k < binding->cores_each; ++k) {
            hwloc_bitmap_or(set, set, c->sets[rank * binding->cores_each + k]);
        }
        write_set(set, binding->cpus + rank * binding->cpus_bytes, binding->cpus_bytes);
        binding->memory[rank] = memory_of(c, set);
    }
    hwloc_bitmap_free(set);
    binding->n = n_ranks;
    return DS_OK;
}

static ds_status bind_with(ds_ctx *ctx, const char *list, uint32_t n_ranks, cores *c,
                           dsi_binding *binding)
{
    for (size_t i = 0; i < MAX_CORES; ++i) {
        c->sets[i] = hwloc_bitmap_alloc();
        if (c->sets[i] == NULL) {
            return ds_fail(ctx, DS_ERR_NOMEM, "no memory for the cores");
        }
    }
    if (list != NULL) {
        DS_TRY(take_listed(ctx, list, c));
    } else {
        take_all(c);
    }
    if (c->n < n_ranks) {
        return ds_fail(ctx, DS_ERR_ARG,
                       "--bind_cores_to_rank: expected a core for each of %" PRIu32
                       " ranks, found %zu; start fewer ranks or do not bind",
                       n_ranks, c->n);
    }
    return deal(ctx, c, n_ranks, binding);
}

ds_status dsi_bind(ds_ctx *ctx, const char *list, uint32_t n_ranks, dsi_binding *binding_out)
{
    if (getenv("KMP_AFFINITY") != NULL) {
        return ds_fail(ctx, DS_ERR_ARG,
                       "--bind_cores_to_rank: the environment sets KMP_AFFINITY, which binds "
                       "threads too; unset one of them");
    }
    cores c = {.sets = calloc(MAX_CORES, sizeof(hwloc_bitmap_t))};
    dsi_binding binding = {0};
    c.allowed = hwloc_bitmap_alloc();
    if (c.sets == NULL || c.allowed == NULL || hwloc_topology_init(&c.topology) < 0) {
        hwloc_bitmap_free(c.allowed);
        free(c.sets);
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory for the cores");
    }
    ds_status status;
    if (hwloc_topology_load(c.topology) < 0) {
        status = ds_fail(ctx, DS_ERR_IO, "hwloc cannot read the machine's topology: %s",
                         strerror(errno));
    } else {
        if (hwloc_get_cpubind(c.topology, c.allowed, HWLOC_CPUBIND_PROCESS) < 0) {
            (void)hwloc_bitmap_copy(c.allowed, hwloc_topology_get_allowed_cpuset(c.topology));
        }
        status = bind_with(ctx, list, n_ranks, &c, &binding);
    }
    for (size_t i = 0; i < MAX_CORES; ++i) {
        hwloc_bitmap_free(c.sets[i]);
    }
    free(c.sets);
    hwloc_bitmap_free(c.allowed);
    hwloc_topology_destroy(c.topology);
    if (status < 0) {
        dsi_binding_free(&binding);
        return status;
    }
    *binding_out = binding;
    return DS_OK;
}
#endif
