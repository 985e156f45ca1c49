/* A graph as text: one line a cell, a node, an output. Written for people and for comparisons.
 *
 *   cell param bf16[768,50257] "transformer.wte.weight"
 *   %7 = linear(%3, "wte.weight"@param, -) transposed=1 : bf16[4,8,768] ; forward "h.0.attn"
 *   output "loss" %9
 */
#include "base/buf.h"
#include "ir/graph.h"

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

static void print_value(dsi_buf *text, const ds_graph *graph, ds_value v)
{
    if (v == DS_NONE) {
        dsi_buf_putc(text, '-');
        return;
    }
    const dsi_value_info *value = &graph->values[v];
    if (value->cell != DS_NONE && value->producer == DS_NONE) {
        const ds_cell_info *cell = &graph->cells->items[value->cell];
        print_quoted(text, cell->name);
        dsi_buf_printf(text, "@%s", ds_cell_kind_name(cell->kind));
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
            dsi_buf_printf(text, " %s=%.17g", attr->name, value);
        }
    }
}

static void print_node(dsi_buf *text, const ds_graph *graph, const dsi_node_info *node)
{
    static const char *const phases[DS_PHASE_COUNT] = {
#define X(id, name) [DS_PHASE_##id] = name,
        DS_PHASE_LIST(X)
#undef X
    };
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
    dsi_buf_printf(text, " ; %s ", phases[node->phase]);
    print_quoted(text, node->scope);
    dsi_buf_putc(text, '\n');
}

/* The cells that the graph touches, in order of their ids. */
static void print_cells(dsi_buf *text, const ds_graph *graph)
{
    for (ds_cell c = 0; c < graph->cells->n && c < graph->current_capacity; ++c) {
        if (graph->current[c] != DS_NONE) {
            const ds_cell_info *cell = &graph->cells->items[c];
            dsi_buf_printf(text, "cell %s ", ds_cell_kind_name(cell->kind));
            print_meta(text, cell->meta);
            dsi_buf_putc(text, ' ');
            print_quoted(text, cell->name);
            dsi_buf_putc(text, '\n');
        }
    }
}

ds_status ds_graph_print(const ds_graph *graph, char **text_out)
{
    dsi_buf text = dsi_buf_make(TEXT_CEILING);
    print_cells(&text, graph);
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
