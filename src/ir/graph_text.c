/* SPDX-License-Identifier: Apache-2.0 */
/* A graph as text: one line a cell, a node, an output. For people, comparisons, graph_parse.c.
 *
 *   cell %2 param bf16[768,50257] "wte.weight" normal=0.02 frozen no_decay
 *   cell %3 param u8[2304] "h.0.w" normal=0.02 frozen packed=nf4,64,64,transposed
 *   cell - master f32[8] "h.0.ln_1.weight" zeros of="h.0.ln_1.weight"@param
 *   %7 = linear(%3, "wte.weight"@param, -) transposed=1 : bf16[4,8,768] ; forward "h.0.attn"
 *   output "loss" %9
 *
 * After the scope of a node: region=N of a marked region, stage=N of a pipeline, half=N of rows or
 * positions, recomputed, host. %N is the id of a value. A cell's is that of its version 0, which is
 * otherwise written by the cell's name; "-" stands for a cell that the graph does not read but
 * another cell belongs to, and for absent operands.
 */
#include "base/buf.h"
#include "ir/graph.h"
#include "ir/text_scan.h"

#include <stdlib.h>
#include <string.h>

enum { TEXT_CEILING = 512 << 20 };

static void print_meta(dsi_buf *text, ds_meta meta)
{
    char word[160];
    dsi_buf_puts(text, ds_meta_text(meta, word, sizeof word));
}

static void print_quoted(dsi_buf *text, const char *name)
{
    dsi_buf_putc(text, '"');
    dsi_buf_json(text, name, strlen(name));
    dsi_buf_putc(text, '"');
}

static void print_cell_name(dsi_buf *text, const ds_cell_info *cell)
{
    print_quoted(text, cell->name);
    dsi_buf_printf(text, "@%s", ds_cell_kind_name(cell->kind));
}

static void print_value(dsi_buf *text, const ds_graph *graph, ds_value v)
{
    if (v == DS_NONE) {
        dsi_buf_putc(text, '-');
        return;
    }
    const dsi_value_info *value = &graph->values[v];
    if (value->cell != DS_NONE && value->producer == DS_NONE) {
        print_cell_name(text, &graph->cells->items[value->cell]);
        return;
    }
    dsi_buf_printf(text, "%%%u", v);
}

static void print_attrs(dsi_buf *text, const dsi_node_info *node)
{
    const char *attrs = node->attrs;
    for (uint32_t i = 0; i < node->op->n_attrs; ++i) {
        const ds_attr *attr = &node->op->attrs[i];
        if (attr->type == DS_ATTR_INT) {
            int64_t value;
            memcpy(&value, attrs + attr->offset, sizeof value);
            dsi_buf_printf(text, " %s=%lld", attr->name, (long long)value);
        } else {
            double value;
            memcpy(&value, attrs + attr->offset, sizeof value);
            dsi_buf_printf(text, " %s=", attr->name);
            dsi_text_print_real(text, value);
        }
    }
}

static void print_node(dsi_buf *text, const ds_graph *graph, const dsi_node_info *node)
{
    for (uint32_t i = 0; i < node->n_out; ++i) {
        const ds_value v = dsi_node_out(graph, node)[i];
        dsi_buf_puts(text, i == 0 ? "" : ", ");
        if (v == DS_NONE) {
            dsi_buf_putc(text, '-');
        } else {
            dsi_buf_printf(text, "%%%u", v);
        }
    }
    dsi_buf_printf(text, " = %s(", node->op->name);
    for (uint32_t i = 0; i < node->n_in; ++i) {
        dsi_buf_puts(text, i == 0 ? "" : ", ");
        print_value(text, graph, dsi_node_in(graph, node)[i]);
    }
    dsi_buf_putc(text, ')');
    print_attrs(text, node);
    dsi_buf_puts(text, " :");
    for (uint32_t i = 0; i < node->n_out; ++i) {
        const ds_value v = dsi_node_out(graph, node)[i];
        dsi_buf_putc(text, ' ');
        print_meta(text, v == DS_NONE ? (ds_meta){0} : graph->values[v].meta);
    }
    dsi_buf_printf(text, " ; %s ", graph->phases.items[node->phase].name);
    print_quoted(text, node->scope);
    if (node->region != 0) {
        dsi_buf_printf(text, " region=%u", node->region);
    }
    if (node->stage != 0) {
        dsi_buf_printf(text, " stage=%u", node->stage);
    }
    if (node->half != 0) {
        dsi_buf_printf(text, " half=%u", node->half);
    }
    dsi_buf_printf(text, "%s%s\n", node->recomputed ? " recomputed" : "",
                   node->on_host ? " host" : "");
}

static void print_cell(dsi_buf *text, const ds_graph *graph, const ds_cell_info *cell, ds_value v)
{
    dsi_buf_puts(text, "cell ");
    if (v == DS_NONE) {
        dsi_buf_putc(text, '-');
    } else {
        dsi_buf_printf(text, "%%%u", v);
    }
    dsi_buf_printf(text, " %s ", ds_cell_kind_name(cell->kind));
    print_meta(text, cell->meta);
    dsi_buf_putc(text, ' ');
    print_quoted(text, cell->name);
    if (cell->init.kind == DS_INIT_NORMAL) {
        dsi_buf_puts(text, " normal=");
        dsi_text_print_real(text, cell->init.std);
    } else if (cell->init.kind == DS_INIT_LOG_UNIFORM) {
        dsi_buf_puts(text, " log_uniform=");
        dsi_text_print_real(text, cell->init.std);
    } else {
        dsi_buf_puts(text, cell->init.kind == DS_INIT_ONES ? " ones" : " zeros");
    }
    dsi_buf_puts(text, cell->frozen ? " frozen" : "");
    dsi_buf_puts(text, cell->no_decay ? " no_decay" : "");
    if (cell->packed.format != DS_PACKING_NONE) {
        dsi_buf_printf(text, " packed=%s,%lld,%lld%s", ds_packing_name(cell->packed.format),
                       (long long)cell->packed.rows, (long long)cell->packed.columns,
                       cell->packed.transposed != 0 ? ",transposed" : "");
    }
    if (cell->of != DS_NONE) {
        dsi_buf_puts(text, " of=");
        print_cell_name(text, &graph->cells->items[cell->of]);
    }
    dsi_buf_putc(text, '\n');
}

/* The cells that the graph touches and those that they belong to, in order of their ids. */
static ds_status print_cells(dsi_buf *text, const ds_graph *graph)
{
    const uint32_t n = graph->cells->n;
    ds_value *first = malloc(((size_t)n + 1) * sizeof *first); /* version 0 of each cell */
    bool *shown = calloc((size_t)n + 1, sizeof *shown);
    if (first == NULL || shown == NULL) {
        free(first);
        free(shown);
        return ds_fail(graph->ctx, DS_ERR_NOMEM, "no memory to print the graph");
    }
    memset(first, 0xff, ((size_t)n + 1) * sizeof *first); /* all DS_NONE */
    for (ds_value v = 0; v < graph->n_values; ++v) {
        const dsi_value_info *value = &graph->values[v];
        if (value->cell != DS_NONE && value->producer == DS_NONE) {
            first[value->cell] = v;
        }
    }
    for (ds_cell c = n; c-- > 0;) { /* owners come before what they own */
        shown[c] = shown[c] || first[c] != DS_NONE;
        if (shown[c] && graph->cells->items[c].of != DS_NONE) {
            shown[graph->cells->items[c].of] = true;
        }
    }
    for (ds_cell c = 0; c < n; ++c) {
        if (shown[c]) {
            print_cell(text, graph, &graph->cells->items[c], first[c]);
        }
    }
    free(first);
    free(shown);
    return DS_OK;
}

/* Those that every graph has are not printed; in how many parts a micro-batch runs them is. */
static void print_phases(dsi_buf *text, const dsi_phases *phases)
{
    const uint32_t n = dsi_phases_micro(phases);
    if (n > DS_PHASE_STEP) {
        const uint32_t forward = dsi_phases_forward(phases);
        dsi_buf_printf(text, "parts %u%s\n", forward, n == 3 * forward ? " split" : "");
    }
    for (uint32_t p = n; p < phases->n; ++p) {
        dsi_buf_printf(text, "phase %s", phases->items[p].name);
        for (uint32_t bit = 0; bit < 3; ++bit) {
            if ((phases->items[p].flags >> bit & 1u) != 0) {
                dsi_buf_puts(text, dsi_phase_words[bit]);
            }
        }
        dsi_buf_putc(text, '\n');
    }
}

ds_status ds_graph_print(const ds_graph *graph, char **text_out)
{
    dsi_buf text = dsi_buf_make(TEXT_CEILING);
    dsi_buf_append(&text, "", 0); /* an empty graph is an empty text */
    print_phases(&text, &graph->phases);
    DS_TRY(print_cells(&text, graph));
    for (ds_node n = 0; n < graph->n_nodes; ++n) {
        print_node(&text, graph, &graph->nodes[n]);
    }
    for (uint32_t i = 0; i < graph->n_outputs; ++i) {
        dsi_buf_puts(&text, "output ");
        print_quoted(&text, graph->outputs[i].name);
        dsi_buf_putc(&text, ' ');
        print_value(&text, graph, graph->outputs[i].value);
        dsi_buf_putc(&text, '\n');
    }
    if (text.failed || text.data == NULL) {
        dsi_buf_free(&text);
        return ds_fail(graph->ctx, DS_ERR_NOMEM, "no memory to print the graph");
    }
    *text_out = text.data;
    return DS_OK;
}
