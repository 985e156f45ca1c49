/* SPDX-License-Identifier: Apache-2.0 */
/* DeepSpeed's estimates of model states. Source: DeepSpeed 0.19, runtime/zero/stage_1_and_2.py and
 * stage3.py, estimate_zero2_model_states_mem_needs and estimate_zero3_model_states_mem_needs. */
#include "base/buf.h"
#include "base/reserved.h"
#include "compile/train_graph.h"

#include <deepspeed/plan.h>
#include <string.h>

enum { MAX_CELLS = 1 << 20 };

static ds_estimate_params with_defaults(const ds_estimate_params *params)
{
    ds_estimate_params p = *params;
    p.num_gpus_per_node = p.num_gpus_per_node > 0 ? p.num_gpus_per_node : 1;
    p.num_nodes = p.num_nodes > 0 ? p.num_nodes : 1;
    p.additional_buffer_factor =
        p.additional_buffer_factor > 0.0 ? p.additional_buffer_factor : 1.5;
    return p;
}

static double larger(double a, double b)
{
    return a > b ? a : b;
}

ds_estimate ds_estimate_zero2_model_states(const ds_estimate_params *params)
{
    const ds_estimate_params p = with_defaults(params);
    const double total = (double)p.total_params;
    const double gpus = (double)p.num_nodes * p.num_gpus_per_node;
    const double factor = p.additional_buffer_factor;
    if (p.cpu_offload) {
        return (ds_estimate){(uint64_t)(total * larger(4.0 * gpus, 16.0) * factor),
                             2 * p.total_params};
    }
    return (ds_estimate){(uint64_t)(total * 4.0 * p.num_gpus_per_node * factor),
                         2 * p.total_params + (uint64_t)(18.0 * total / gpus)};
}

ds_estimate ds_estimate_zero3_model_states(const ds_estimate_params *params)
{
    const ds_estimate_params p = with_defaults(params);
    const double total = (double)p.total_params;
    const double gpus = (double)p.num_nodes * p.num_gpus_per_node;
    const double factor = p.additional_buffer_factor;
    const double whole = 4.0 * p.num_gpus_per_node; /* every rank makes the model in fp32 */
    const uint64_t layer = 4 * p.largest_layer_params;
    if (!p.cpu_offload) {
        const double made =
            (p.zero_init ? (double)p.largest_layer_params : total) * 4.0 * p.num_gpus_per_node;
        return (ds_estimate){(uint64_t)(made * factor), layer + (uint64_t)(18.0 * total / gpus)};
    }
    const double states = (p.cpu_offload_params ? 18.0 : 16.0) / p.num_nodes;
    const double host = total * (p.zero_init ? states : larger(whole, states)) * factor;
    return (ds_estimate){(uint64_t)host,
                         layer + (p.cpu_offload_params ? 0 : (uint64_t)(2.0 * total / gpus))};
}

static void print_row(dsi_buf *text, ds_estimate e)
{
    const double gib = 1073741824.0;
    dsi_buf_printf(text, " %7.2fGB | %6.2fGB | ", (double)e.cpu_bytes / gib,
                   (double)e.gpu_bytes / gib);
}

static void print_zero2(dsi_buf *text, ds_estimate_params p)
{
    for (int offload = 1; offload >= 0; --offload) {
        p.cpu_offload = offload == 1;
        print_row(text, ds_estimate_zero2_model_states(&p));
        dsi_buf_printf(text, "offload_optimizer=%s\n", p.cpu_offload ? "cpu " : "none");
    }
}

static void print_zero3(dsi_buf *text, ds_estimate_params p)
{
    static const bool choices[3][2] = {{true, true}, {true, false}, {false, false}};
    for (int i = 0; i < 6; ++i) {
        p.cpu_offload = choices[i / 2][0];
        p.cpu_offload_params = choices[i / 2][1];
        p.zero_init = i % 2 == 0;
        print_row(text, ds_estimate_zero3_model_states(&p));
        dsi_buf_printf(text, "offload_param=%s, offload_optimizer=%s, zero_init=%d\n",
                       p.cpu_offload_params ? "cpu " : "none", p.cpu_offload ? "cpu " : "none",
                       p.zero_init ? 1 : 0);
    }
}

ds_status ds_estimate_table(ds_ctx *ctx, int stage, const ds_estimate_params *params,
                            char **text_out)
{
    DS_TRY(DSI_RESERVED_CHECK(ctx, "ds_estimate_params", params));
    const ds_estimate_params p = with_defaults(params);
    dsi_buf text = dsi_buf_make(1 << 16);
    if (stage != 2 && stage != 3) {
        return ds_fail(ctx, DS_ERR_ARG, "stage: expected 2 or 3, found %d", stage);
    }
    dsi_buf_printf(&text,
                   "Estimated memory needed for params, optim states and gradients for a:\n"
                   "HW: Setup with %u node%s, %u GPU%s per node.\n"
                   "SW: Model with %lluM total params",
                   p.num_nodes, p.num_nodes > 1 ? "s" : "", p.num_gpus_per_node,
                   p.num_gpus_per_node > 1 ? "s" : "",
                   (unsigned long long)(p.total_params / 1000000));
    if (stage == 3) {
        dsi_buf_printf(&text, ", %lluM largest layer params",
                       (unsigned long long)(p.largest_layer_params / 1000000));
    }
    dsi_buf_puts(&text, ".\n  per CPU  |  per GPU |   Options\n");
    if (stage == 2) {
        print_zero2(&text, p);
    } else {
        print_zero3(&text, p);
    }
    if (text.failed) {
        dsi_buf_free(&text);
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory for a table");
    }
    *text_out = text.data;
    return DS_OK;
}

/* Parameters of the layer that a parameter belongs to, those before it not counted again. */
static uint64_t layer_of(const ds_cells *cells, ds_cell first)
{
    const char *name = ds_cells_get(cells, first)->name;
    const char *dot = strrchr(name, '.');
    const size_t n = dot != NULL ? (size_t)(dot - name) + 1 : strlen(name);
    uint64_t sum = 0;
    for (ds_cell c = first; c < ds_cells_count(cells); ++c) {
        const ds_cell_info *cell = ds_cells_get(cells, c);
        if (cell->kind == DS_CELL_PARAM && strncmp(cell->name, name, n) == 0 &&
            strchr(cell->name + n, '.') == NULL) {
            sum += (uint64_t)ds_shape_count(cell->meta.shape);
        } else if (cell->kind == DS_CELL_PARAM) {
            break; /* a layer declares its parameters side by side */
        }
    }
    return sum;
}

ds_status ds_estimate_count(ds_ctx *ctx, const ds_model *model, uint64_t *total_out,
                            uint64_t *largest_layer_out)
{
    const ds_trace trace = {
        .mode = DS_TRACE_EVAL, .dtype = DS_DTYPE_BF16, .batch = 1, .seq_length = 8};
    ds_cells *cells = NULL;
    ds_graph *graph = NULL;
    uint64_t total = 0;
    uint64_t largest = 0;
    DS_TRY(ds_cells_create(ctx, MAX_CELLS, &cells));
    const ds_status status = dsi_forward_graph(model, &trace, NULL, NULL, cells, &graph);
    for (ds_cell c = 0; c < ds_cells_count(cells) && status >= 0; ++c) {
        const ds_cell_info *cell = ds_cells_get(cells, c);
        if (cell->kind == DS_CELL_PARAM) {
            const uint64_t layer = layer_of(cells, c);
            total += (uint64_t)ds_shape_count(cell->meta.shape);
            largest = layer > largest ? layer : largest;
        }
    }
    ds_graph_destroy(&graph);
    ds_cells_destroy(&cells);
    if (status >= 0) {
        *total_out = total;
        *largest_layer_out = largest;
    }
    return status;
}
