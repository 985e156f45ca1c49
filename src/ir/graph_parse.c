/* SPDX-License-Identifier: Apache-2.0 */
/* Graph text back into a graph: the inverse of graph_text.c, which describes the text.
 *
 * Operators come from the caller, since this layer knows none. Ids in the text are checked, not
 * obeyed: nodes are applied in the order of their lines through ds_graph_apply, cells are read when
 * the next id is theirs, and each id and shape printed must be the one that comes out. So whatever
 * is accepted is a graph that could have been traced, and prints as the same text.
 */
#include "base/packed_parts.h"
#include "ir/graph.h"
#include "ir/text_scan.h"

#include <stdlib.h>
#include <string.h>

enum { TEXT_CEILING = 512 << 20, NAME_CEILING = 1 << 16, WORD_BYTES = 64, ATTRS_BYTES = 4096 };

/* A value of version 0, in the order of their ids. */
typedef struct first_value {
    ds_value value;
    ds_cell cell;
} first_value;

/* What the text says of a cell of the table. */
typedef struct cell_row {
    bool has_line;
    ds_value value; /* of version 0, DS_NONE for "-" */
} cell_row;

typedef struct parser {
    dsi_text_scan scan;
    ds_cells *cells;
    const ds_op *(*find_op)(const char *name);
    ds_graph *graph;
    dsi_buf name;
    first_value *firsts; /* sorted once all cells are read */
    uint32_t n_firsts, firsts_capacity;
    uint32_t n_read; /* of firsts, in the graph already */
    cell_row *rows;  /* by cell */
    uint32_t n_rows, rows_capacity;
} parser;

static ds_status take_kind(parser *p, ds_cell_kind *kind_out)
{
    const dsi_text_scan before = p->scan;
    char word[WORD_BYTES];
    DS_TRY(dsi_text_word(&p->scan, "a kind of cell", word, sizeof word));
    for (int kind = 0; kind < DS_CELL_KIND_COUNT; ++kind) {
        if (strcmp(word, ds_cell_kind_name((ds_cell_kind)kind)) == 0) {
            *kind_out = (ds_cell_kind)kind;
            return DS_OK;
        }
    }
    p->scan = before;
    return dsi_text_expected(&p->scan, "a kind of cell");
}

/* "name"@kind of a cell that the table holds. */
static ds_status take_cell(parser *p, ds_cell *cell_out)
{
    const dsi_text_scan before = p->scan;
    ds_cell_kind kind = DS_CELL_PARAM;
    DS_TRY(dsi_text_name(&p->scan, "a cell's quoted name", &p->name));
    DS_TRY(dsi_text_take(&p->scan, "@"));
    DS_TRY(take_kind(p, &kind));
    *cell_out = ds_cells_find(p->cells, kind, dsi_buf_text(&p->name));
    if (*cell_out == DS_NONE) {
        p->scan = before;
        return dsi_text_expected(&p->scan, "a cell that has a line above");
    }
    return DS_OK;
}

static ds_status take_init(parser *p, ds_init *init)
{
    if (dsi_text_try(&p->scan, " normal=")) {
        init->kind = DS_INIT_NORMAL;
        return dsi_text_real(&p->scan, "a standard deviation", &init->std);
    }
    if (dsi_text_try(&p->scan, " log_uniform=")) {
        init->kind = DS_INIT_LOG_UNIFORM;
        return dsi_text_real(&p->scan, "an upper bound", &init->std);
    }
    if (dsi_text_try(&p->scan, " ones")) {
        init->kind = DS_INIT_ONES;
        return DS_OK;
    }
    init->kind = DS_INIT_ZEROS;
    return dsi_text_take(&p->scan, " zeros");
}

/* A cell may stand in the table before: then it must be what the line says. */
static ds_status same_cell(const parser *p, const ds_cell_info *line, const ds_cell_info *table)
{
    const bool same =
        line->meta.dtype == table->meta.dtype &&
        ds_shape_equal(line->meta.shape, table->meta.shape) &&
        line->init.kind == table->init.kind && line->frozen == table->frozen &&
        line->no_decay == table->no_decay && line->of == table->of &&
        line->packed.format == table->packed.format &&
        line->packed.transposed == table->packed.transposed &&
        line->packed.rows == table->packed.rows && line->packed.columns == table->packed.columns &&
        ((line->init.kind != DS_INIT_NORMAL && line->init.kind != DS_INIT_LOG_UNIFORM) ||
         line->init.std == table->init.std);
    if (!same) {
        return ds_fail(p->scan.ctx, DS_ERR_GRAPH,
                       "line %u: the %s cell \"%s\" stands in the table with another shape, "
                       "initialisation, flag or owner",
                       p->scan.n_lines, ds_cell_kind_name(line->kind), line->name);
    }
    return DS_OK;
}

static ds_status no_memory(const parser *p)
{
    return ds_fail(p->scan.ctx, DS_ERR_NOMEM, "no memory to read a graph");
}

/* A row for each cell of the table so far. */
static ds_status grow_rows(parser *p)
{
    const uint32_t n = ds_cells_count(p->cells);
    cell_row *rows = dsi_graph_grow(p->rows, &p->rows_capacity, n + 1, sizeof *rows);
    if (rows == NULL) {
        return no_memory(p);
    }
    p->rows = rows;
    while (p->n_rows < n) {
        p->rows[p->n_rows++] = (cell_row){.value = DS_NONE};
    }
    return DS_OK;
}

static ds_status add_cell(parser *p, const ds_cell_info *info, ds_value value)
{
    ds_cell cell = ds_cells_find(p->cells, info->kind, info->name);
    if (cell == DS_NONE) {
        DS_TRY(ds_cells_add(p->cells, info, &cell));
        DS_TRY(grow_rows(p));
    } else {
        DS_TRY(same_cell(p, info, ds_cells_get(p->cells, cell)));
    }
    if (p->rows[cell].has_line) {
        return ds_fail(p->scan.ctx, DS_ERR_FORMAT, "line %u: a second line of \"%s\"@%s",
                       p->scan.n_lines, info->name, ds_cell_kind_name(info->kind));
    }
    p->rows[cell] = (cell_row){.has_line = true, .value = value};
    if (value != DS_NONE) {
        first_value *firsts =
            dsi_graph_grow(p->firsts, &p->firsts_capacity, p->n_firsts + 1, sizeof *firsts);
        if (firsts == NULL) {
            return no_memory(p);
        }
        p->firsts = firsts;
        p->firsts[p->n_firsts++] = (first_value){.value = value, .cell = cell};
    }
    return DS_OK;
}

/* %N, or "-" which gives DS_NONE. */
static ds_status take_value(parser *p, ds_value *value_out)
{
    *value_out = DS_NONE;
    if (dsi_text_try(&p->scan, "-")) {
        return DS_OK;
    }
    if (!dsi_text_try(&p->scan, "%")) {
        return dsi_text_expected(&p->scan, "a value such as %3, or -");
    }
    return dsi_text_id(&p->scan, "the number of a value", value_out);
}

/* After " packed=". */
static ds_status take_packed(parser *p, const ds_meta *meta, ds_packed *packed)
{
    const dsi_text_scan before = p->scan;
    char word[WORD_BYTES];
    DS_TRY(dsi_text_word(&p->scan, "a packed format", word, sizeof word));
    packed->format = ds_packing_from_name(word);
    if (packed->format == DS_PACKING_NONE) {
        p->scan = before;
        return dsi_text_expected(&p->scan, "a packed format");
    }
    DS_TRY(dsi_text_take(&p->scan, ","));
    DS_TRY(dsi_text_int(&p->scan, "a number of rows", &packed->rows));
    DS_TRY(dsi_text_take(&p->scan, ","));
    DS_TRY(dsi_text_int(&p->scan, "a number of columns", &packed->columns));
    packed->transposed = dsi_text_try(&p->scan, ",transposed");
    if (packed->rows < 1 || packed->columns < 1 || meta->dtype != DS_DTYPE_U8 ||
        !ds_shape_equal(
            meta->shape,
            dsi_packed_shape(packed, meta->shape.n_dims == 2 ? meta->shape.dims[0] : 1))) {
        p->scan = before;
        return dsi_text_expected(&p->scan, "a packed matrix of the bytes of the cell");
    }
    return DS_OK;
}

/* After "cell ". */
static ds_status take_cell_line(parser *p)
{
    ds_cell_info info = {.of = DS_NONE};
    ds_value value = DS_NONE;
    DS_TRY(take_value(p, &value));
    DS_TRY(dsi_text_take(&p->scan, " "));
    DS_TRY(take_kind(p, &info.kind));
    DS_TRY(dsi_text_take(&p->scan, " "));
    DS_TRY(dsi_text_meta(&p->scan, &info.meta));
    DS_TRY(dsi_text_take(&p->scan, " "));
    dsi_buf name = dsi_buf_make(NAME_CEILING);
    ds_status status = dsi_text_name(&p->scan, "the cell's quoted name", &name);
    DS_TRY_GOTO(status, status, done);
    info.name = dsi_buf_text(&name);
    DS_TRY_GOTO(status, take_init(p, &info.init), done);
    info.frozen = dsi_text_try(&p->scan, " frozen");
    info.no_decay = dsi_text_try(&p->scan, " no_decay");
    if (dsi_text_try(&p->scan, " packed=")) {
        DS_TRY_GOTO(status, take_packed(p, &info.meta, &info.packed), done);
    }
    if (dsi_text_try(&p->scan, " of=")) {
        DS_TRY_GOTO(status, take_cell(p, &info.of), done);
    }
    DS_TRY_GOTO(status, add_cell(p, &info, value), done);
    status = dsi_text_end_line(&p->scan);
done:
    dsi_buf_free(&name);
    return status;
}

static int by_value(const void *a, const void *b)
{
    const ds_value x = ((const first_value *)a)->value;
    const ds_value y = ((const first_value *)b)->value;
    return x < y ? -1 : x > y;
}

/* Reads the cells whose values have the next ids. */
static ds_status read_cells(parser *p)
{
    while (p->n_read < p->n_firsts && p->firsts[p->n_read].value == p->graph->n_values) {
        ds_value value = DS_NONE;
        DS_TRY(ds_graph_read(p->graph, p->firsts[p->n_read++].cell, &value));
    }
    return DS_OK;
}

/* An input or an output of the graph: -, %3, "name"@kind. */
static ds_status take_operand(parser *p, ds_value *value_out)
{
    const dsi_text_scan before = p->scan;
    ds_cell cell = DS_NONE;
    if (*p->scan.at == '"') {
        DS_TRY(take_cell(p, &cell));
        *value_out = cell < p->n_rows ? p->rows[cell].value : DS_NONE;
    } else {
        DS_TRY(take_value(p, value_out));
        if (*value_out == DS_NONE) {
            return DS_OK;
        }
    }
    const bool defined = *value_out < p->graph->n_values;
    const dsi_value_info *value = defined ? &p->graph->values[*value_out] : NULL;
    if (!defined || (cell == DS_NONE && value->cell != DS_NONE && value->producer == DS_NONE)) {
        p->scan = before;
        return dsi_text_expected(&p->scan, "a value that a line above defines");
    }
    return DS_OK;
}

static ds_status take_attr(parser *p, const ds_attr *attr, char *attrs)
{
    DS_TRY(dsi_text_take(&p->scan, " "));
    DS_TRY(dsi_text_take(&p->scan, attr->name));
    DS_TRY(dsi_text_take(&p->scan, "="));
    if (attr->type == DS_ATTR_INT) {
        int64_t value = 0;
        DS_TRY(dsi_text_int(&p->scan, "a whole number", &value));
        memcpy(attrs + attr->offset, &value, sizeof value);
    } else {
        double value = 0.0;
        DS_TRY(dsi_text_real(&p->scan, "a real number", &value));
        memcpy(attrs + attr->offset, &value, sizeof value);
    }
    return DS_OK;
}

static ds_status take_op(parser *p, const ds_op **op_out)
{
    const dsi_text_scan before = p->scan;
    char word[WORD_BYTES];
    DS_TRY(dsi_text_word(&p->scan, "an operator", word, sizeof word));
    *op_out = p->find_op(word);
    if (*op_out == NULL || (*op_out)->version != DS_OP_VERSION ||
        (*op_out)->attrs_bytes > ATTRS_BYTES || (*op_out)->n_out > DS_MAX_OUT) {
        p->scan = before;
        return dsi_text_expected(&p->scan, "a known operator");
    }
    return dsi_text_take(&p->scan, "(");
}

/* After "parts ": of how many phases a micro-batch is. */
static ds_status take_parts_line(parser *p)
{
    int64_t n = 0;
    DS_TRY(dsi_text_int(&p->scan, "a number of parts", &n));
    const bool split = dsi_text_try(&p->scan, " split");
    if (n < 1 || n > DS_MAX_PHASES / (split ? 3 : 2) || (!split && n == 1)) {
        return dsi_text_expected(&p->scan, "a number of parts: 2 to 8, or 1 to 5 and split");
    }
    DS_TRY(dsi_text_end_line(&p->scan));
    return dsi_phases_part(p->scan.ctx, p->graph->arena, &p->graph->phases, (uint32_t)n, split);
}

/* After "phase ". */
static ds_status take_phase_line(parser *p)
{
    char word[WORD_BYTES];
    uint32_t flags = 0;
    ds_phase phase = 0;
    const uint32_t n_line = p->scan.n_lines;
    DS_TRY(dsi_text_word(&p->scan, "the name of a phase", word, sizeof word));
    for (uint32_t bit = 0; bit < 3; ++bit) {
        flags |= dsi_text_try(&p->scan, dsi_phase_words[bit]) ? 1u << bit : 0;
    }
    DS_TRY(dsi_text_end_line(&p->scan));
    const ds_status status = ds_graph_add_phase(p->graph, word, flags, &phase);
    return status < 0 ? ds_fail(p->scan.ctx, DS_ERR_FORMAT, "line %u: %s", n_line,
                                ds_ctx_error(p->scan.ctx))
                      : DS_OK;
}

static ds_status take_phase(parser *p)
{
    const dsi_text_scan before = p->scan;
    char word[WORD_BYTES];
    DS_TRY(dsi_text_word(&p->scan, "a phase", word, sizeof word));
    const ds_phase phase = ds_graph_find_phase(p->graph, word);
    if (phase == DS_NONE || phase < p->graph->phase) {
        p->scan = before;
        return dsi_text_expected(&p->scan, "a phase that is not before that of the line above");
    }
    ds_graph_set_phase(p->graph, phase);
    return DS_OK;
}

/* A node as its line has it. */
typedef struct node_line {
    const ds_op *op;
    uint32_t n_printed; /* outputs before "=" */
    ds_value out[DS_MAX_OUT];
    uint32_t n_in;
    ds_value in[DS_MAX_IN];
    ds_meta metas[DS_MAX_OUT];
    char attrs[ATTRS_BYTES];
} node_line;

/* "%4, - = op(%3, "w"@param, -)" */
static ds_status take_operands(parser *p, node_line *line)
{
    while (*p->scan.at != ' ') {
        if (line->n_printed == DS_MAX_OUT ||
            (line->n_printed > 0 && !dsi_text_try(&p->scan, ", "))) {
            return dsi_text_expected(&p->scan, "' = '");
        }
        DS_TRY(take_value(p, &line->out[line->n_printed++]));
    }
    DS_TRY(dsi_text_take(&p->scan, " = "));
    DS_TRY(take_op(p, &line->op));
    if (line->n_printed != line->op->n_out) {
        return ds_fail(p->scan.ctx, DS_ERR_FORMAT, "line %u: %s has %u outputs, the line has %u",
                       p->scan.n_lines, line->op->name, line->op->n_out, line->n_printed);
    }
    while (*p->scan.at != ')') {
        if (line->n_in == DS_MAX_IN || (line->n_in > 0 && !dsi_text_try(&p->scan, ", "))) {
            return dsi_text_expected(&p->scan, "')'");
        }
        DS_TRY(take_operand(p, &line->in[line->n_in++]));
    }
    p->scan.at += 1;
    return DS_OK;
}

/* What came out must be what the line says. */
static ds_status check_outputs(const parser *p, const node_line *line, uint32_t n_line,
                               const ds_value *out)
{
    for (uint32_t i = 0; i < line->op->n_out; ++i) {
        const ds_meta meta = ds_graph_meta(p->graph, out[i]);
        if (meta.dtype != line->metas[i].dtype ||
            !ds_shape_equal(meta.shape, line->metas[i].shape)) {
            char expected[160];
            char found[160];
            return ds_fail(p->scan.ctx, DS_ERR_SHAPE,
                           "line %u: output %u of %s: expected %s by the operator's rule, found %s",
                           n_line, i, line->op->name, ds_meta_text(meta, expected, sizeof expected),
                           ds_meta_text(line->metas[i], found, sizeof found));
        }
        if (out[i] != line->out[i]) {
            return ds_fail(p->scan.ctx, DS_ERR_FORMAT,
                           "line %u: output %u of %s: expected %%%u, the next free number, found "
                           "%%%u",
                           n_line, i, line->op->name, out[i], line->out[i]);
        }
    }
    return DS_OK;
}

static ds_status take_node_line(parser *p)
{
    node_line line = {.op = NULL};
    ds_value out[DS_MAX_OUT];
    const uint32_t n_line = p->scan.n_lines;
    DS_TRY(read_cells(p));
    DS_TRY(take_operands(p, &line));
    for (uint32_t i = 0; i < line.op->n_attrs; ++i) {
        DS_TRY(take_attr(p, &line.op->attrs[i], line.attrs));
    }
    DS_TRY(dsi_text_take(&p->scan, " :"));
    for (uint32_t i = 0; i < line.op->n_out; ++i) {
        DS_TRY(dsi_text_take(&p->scan, " "));
        DS_TRY(dsi_text_meta(&p->scan, &line.metas[i]));
    }
    DS_TRY(dsi_text_take(&p->scan, " ; "));
    DS_TRY(take_phase(p));
    DS_TRY(dsi_text_take(&p->scan, " "));
    DS_TRY(dsi_text_name(&p->scan, "the node's quoted scope", &p->name));
    p->graph->region = 0;
    if (dsi_text_try(&p->scan, " region=")) {
        DS_TRY(dsi_text_id(&p->scan, "the number of a region", &p->graph->region));
        if (p->graph->region == 0) {
            return dsi_text_expected(&p->scan, "a region above 0");
        }
    }
    p->graph->stage = 0;
    if (dsi_text_try(&p->scan, " stage=")) {
        DS_TRY(dsi_text_id(&p->scan, "the number of a stage", &p->graph->stage));
        if (p->graph->stage == 0) {
            return dsi_text_expected(&p->scan, "a stage above 0");
        }
    }
    p->graph->half = 0;
    if (dsi_text_try(&p->scan, " half=")) {
        DS_TRY(dsi_text_id(&p->scan, "the number of a half or chunk", &p->graph->half));
        if (p->graph->half == 0) {
            return dsi_text_expected(&p->scan, "a half or chunk above 0");
        }
    }
    p->graph->recomputed = dsi_text_try(&p->scan, " recomputed");
    p->graph->on_host = dsi_text_try(&p->scan, " host");
    DS_TRY(dsi_text_end_line(&p->scan));
    if (strcmp(p->graph->scope, dsi_buf_text(&p->name)) != 0) {
        DS_TRY(ds_graph_set_scope(p->graph, dsi_buf_text(&p->name)));
    }
    const ds_status status = ds_graph_apply(p->graph, line.op, line.attrs, line.in, line.n_in, out);
    if (status < 0) {
        return ds_fail(p->scan.ctx, status, "line %u: %s", n_line, ds_ctx_error(p->scan.ctx));
    }
    return check_outputs(p, &line, n_line, out);
}

/* After "output ". */
static ds_status take_output_line(parser *p)
{
    ds_value value = DS_NONE;
    DS_TRY(dsi_text_name(&p->scan, "the output's quoted name", &p->name));
    DS_TRY(dsi_text_take(&p->scan, " "));
    dsi_buf cell_name = dsi_buf_make(NAME_CEILING);
    dsi_buf name = p->name; /* the operand may name a cell */
    p->name = cell_name;
    ds_status status = take_operand(p, &value);
    cell_name = p->name;
    p->name = name;
    dsi_buf_free(&cell_name);
    DS_TRY(status);
    if (ds_graph_find_output(p->graph, dsi_buf_text(&name)) != DS_NONE || value == DS_NONE) {
        return ds_fail(p->scan.ctx, DS_ERR_FORMAT,
                       "line %u: output \"%s\": expected a new name and a value", p->scan.n_lines,
                       dsi_buf_text(&name));
    }
    DS_TRY(ds_graph_output(p->graph, dsi_buf_text(&name), value));
    return dsi_text_end_line(&p->scan);
}

static ds_status parse_lines(parser *p)
{
    DS_TRY(grow_rows(p));
    if (dsi_text_try(&p->scan, "parts ")) {
        DS_TRY(take_parts_line(p));
    }
    while (dsi_text_try(&p->scan, "phase ")) {
        DS_TRY(take_phase_line(p));
    }
    while (dsi_text_try(&p->scan, "cell ")) {
        DS_TRY(take_cell_line(p));
    }
    if (p->n_firsts > 0) {
        qsort(p->firsts, p->n_firsts, sizeof *p->firsts, by_value);
    }
    while (*p->scan.at == '%' || *p->scan.at == '-' || *p->scan.at == ' ') {
        DS_TRY(take_node_line(p));
    }
    DS_TRY(read_cells(p));
    while (dsi_text_try(&p->scan, "output ")) {
        DS_TRY(take_output_line(p));
    }
    if (*p->scan.at != '\0') {
        return dsi_text_expected(&p->scan, "phases, cells, nodes, outputs in this order");
    }
    if (p->n_read < p->n_firsts) {
        const first_value *left = &p->firsts[p->n_read];
        const ds_cell_info *cell = ds_cells_get(p->cells, left->cell);
        return ds_fail(p->scan.ctx, DS_ERR_FORMAT,
                       "cell \"%s\"@%s: expected a number that no line takes and that leaves none "
                       "out, found %%%u",
                       cell->name, ds_cell_kind_name(cell->kind), left->value);
    }
    return dsi_graph_check(p->graph);
}

ds_status ds_graph_parse(ds_ctx *ctx, const char *text, ds_cells *cells,
                         const ds_op *(*find_op)(const char *name), ds_graph **graph_out)
{
    parser p = {.scan = {.ctx = ctx, .at = text, .line = text, .n_lines = 1},
                .cells = cells,
                .find_op = find_op,
                .name = dsi_buf_make(NAME_CEILING)};
    ds_status status = DS_OK;
    if (strnlen(text, (size_t)TEXT_CEILING + 1) > TEXT_CEILING) {
        return ds_fail(ctx, DS_ERR_LIMIT, "graph text of more than %d bytes", TEXT_CEILING);
    }
    p.scan.numbers = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (p.scan.numbers == (locale_t)0) {
        return no_memory(&p);
    }
    DS_TRY_GOTO(status, ds_graph_create(ctx, cells, &p.graph), done);
    DS_TRY_GOTO(status, parse_lines(&p), done);
    *graph_out = p.graph;
    p.graph = NULL;
done:
    ds_graph_destroy(&p.graph);
    dsi_buf_free(&p.name);
    free(p.firsts);
    free(p.rows);
    freelocale(p.scan.numbers);
    return status;
}
